//! How many requests ask the store at once, and whether the store is gone when one of them fails.
//!
//! The timeout of a call to the store runs from the call. So the calls of a crowd would time out in
//! this process, at a store that is well. Here a request waits for a turn, and then asks.
//!
//! A request that has asked in vain gives a verdict. The store is gone if it has served nobody
//! meanwhile. Requests without a turn know nothing by themselves, and go by the last verdict.

use std::sync::Arc;
use std::time::Duration;

use tenure::{BootTime, Error, ErrorKind, Locker};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

/// Least time by which a timer may ring late on a machine that is busy.
const SLACK: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Traffic {
    locks: Locker,
    turns: Arc<Semaphore>,
    /// When a request last found the store gone.
    gone: watch::Sender<Option<BootTime>>,
    /// Longest time of a call to the store.
    limit: Duration,
}

/// Turn of a request among those that ask the store.
pub(crate) type Turn = OwnedSemaphorePermit;

/// Reason of a failure that may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The store serves nobody.
    Outage,
    /// The store serves others, or this process was late itself.
    Overload,
}

impl Traffic {
    pub(crate) fn new(locks: Locker, in_flight: usize, limit: Duration) -> Self {
        let turns = Arc::new(Semaphore::new(in_flight.min(Semaphore::MAX_PERMITS)));
        Self { locks, turns, gone: watch::Sender::new(None), limit }
    }

    /// Waits for a turn among those that ask, for `wait` if the request may wait for its key. Fails if there is none in
    /// time. One that may not wait fails at once while the store is gone.
    ///
    /// # Cancel safety
    /// A dropped future gives its turn to the next.
    pub(crate) async fn turn(&self, wait: Duration) -> Result<Turn, Cause> {
        if let Ok(turn) = Arc::clone(&self.turns).try_acquire_owned() {
            return Ok(turn);
        }
        let turn = Arc::clone(&self.turns).acquire_owned();
        let turn = if wait.is_zero() {
            let mut gone = self.gone.subscribe();
            if self.is_gone() {
                return Err(Cause::Outage);
            }
            tokio::select! {
                biased;
                turn = timeout(self.limit, turn) => turn,
                _ = gone.changed() => return Err(Cause::Outage),
            }
        } else {
            timeout(wait, turn).await
        };
        match turn {
            Ok(Ok(turn)) => Ok(turn),
            _ if self.is_gone() => Err(Cause::Outage),
            _ => Err(Cause::Overload),
        }
    }

    /// Whether the last verdict is of now: each request with a turn gives another.
    fn is_gone(&self) -> bool {
        let Some(gone) = *self.gone.borrow() else { return false };
        BootTime::now().since(gone) <= self.limit + self.slack() && self.locks.last_served() < Some(gone)
    }

    /// Returns why a request has failed that asked from `since` on, and might wait for its key for `wait`.
    pub(crate) fn verdict(&self, error: &Error, since: BootTime, wait: Duration) -> Cause {
        if error.kind() == ErrorKind::Overloaded {
            return Cause::Overload;
        }
        // If the timers of this process are late, it stood still, and the silence may be its own.
        let now = BootTime::now();
        let was_late = now.since(since) > wait.saturating_add(self.limit + self.slack());
        let recently = since.max(now - self.limit - self.slack());
        if was_late || self.locks.last_served() > Some(recently) {
            return Cause::Overload;
        }
        self.gone.send_replace(Some(now));
        Cause::Outage
    }

    fn slack(&self) -> Duration {
        (self.limit / 4).max(SLACK)
    }
}

#[cfg(test)]
mod tests {
    use tenure::MemoryStore;

    use super::*;

    /// The pool of an application may have nothing to spare, and rivals may be quicker.
    #[test]
    fn a_call_that_got_no_turn_at_the_store_is_no_outage() {
        let (limit, since) = (Duration::from_secs(1), BootTime::now());
        let traffic = Traffic::new(Locker::new(MemoryStore::new()), 1, limit);
        assert_eq!(traffic.verdict(&Error::overloaded("the pool lent no connection"), since, Duration::ZERO), Cause::Overload);
        assert!(!traffic.is_gone());
        assert_eq!(traffic.verdict(&Error::unavailable("it is loading"), since, Duration::ZERO), Cause::Outage);
        assert!(traffic.is_gone());
    }
}
