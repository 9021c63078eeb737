//! How many requests ask the store at once, and whether it answers any of them.
//!
//! A call to the store has a timeout, and it runs from the call. So a crowd whose calls queue up in
//! this process would time out at a store that is well. Here they wait for a turn instead, and only
//! what the store has really got is timed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure::{BootTime, Error, ErrorKind};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Least time by which a timer may ring late on a machine that is busy.
const SLACK: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Traffic {
    turns: Arc<Semaphore>,
    /// When the store last answered, in nanoseconds since boot.
    answered: AtomicU64,
    /// Longest time of a call to the store.
    limit: Duration,
}

/// Turn of a request among those that ask the store.
pub(crate) type Turn = OwnedSemaphorePermit;

/// Reason of a failure that may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The store cannot be reached, cannot serve, or answers nobody.
    Outage,
    /// The store answers others, or this process was late itself.
    Overload,
}

impl Traffic {
    pub(crate) fn new(in_flight: usize, limit: Duration) -> Self {
        let turns = Arc::new(Semaphore::new(in_flight.min(Semaphore::MAX_PERMITS)));
        Self { turns, answered: AtomicU64::new(0), limit }
    }

    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Waits for a turn; `None` if there is none within `patience`.
    ///
    /// # Cancel safety
    /// A dropped future gives its turn to the next.
    pub(crate) async fn turn(&self, patience: Duration) -> Option<Turn> {
        if let Ok(turn) = Arc::clone(&self.turns).try_acquire_owned() {
            return Some(turn);
        }
        timeout(patience, Arc::clone(&self.turns).acquire_owned()).await.ok()?.ok()
    }

    /// Notes that the store has answered a request.
    pub(crate) fn answered(&self) {
        self.answered.fetch_max(nanos(BootTime::now()), Ordering::Relaxed);
    }

    /// Returns why a wait that began at `since` has failed. On time it takes no longer than `most`.
    pub(crate) fn cause(&self, error: Option<&Error>, since: BootTime, most: Duration) -> Cause {
        // The store says it itself.
        if error.is_some_and(|error| error.kind() == ErrorKind::Unavailable) {
            return Cause::Outage;
        }
        // A timer rings a little late at any time. If it is more, this process stood still, and the
        // silence may be its own.
        let (now, slack) = (BootTime::now(), (self.limit / 4).max(SLACK));
        let was_late = now.since(since) > most.saturating_add(slack);
        let others_were_answered = self.answered.load(Ordering::Relaxed) > nanos(since.max(now - self.limit - slack));
        if others_were_answered || was_late { Cause::Overload } else { Cause::Outage }
    }
}

fn nanos(time: BootTime) -> u64 {
    u64::try_from(time.since_boot().as_nanos()).unwrap_or(u64::MAX)
}
