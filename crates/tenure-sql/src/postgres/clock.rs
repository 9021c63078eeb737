//! The database's clock, as its answers have shown it.
//!
//! Nobody can end what a pool has under way: it may send a statement when the client has long gone. So
//! each statement carries the latest time at which it may begin, by the database's clock.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long after its end a statement may still begin: the clock may run differently meanwhile.
const SLACK: Duration = Duration::from_secs(1);

/// An answer that took longer says too little. A statement may begin later by as much.
const PROMPT: Duration = Duration::from_secs(1);

/// How long after its end a statement may still run, beside a wait for a row.
pub(super) const LATE: Duration = Duration::from_secs(3);

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// The clock of a database behind a pool. The statements of a session of one's own need no latest
/// time: the next connection ends what the last has left.
#[derive(Default)]
pub(super) struct Clock(Mutex<Option<Reading>>);

struct Reading {
    sent_at: Instant,
    /// Microseconds since 1970.
    now: i64,
}

impl Reading {
    /// An answer that took long was given at an unknown time. So a statement may rather begin too little later than too much.
    fn new(now: i64, sent_at: Instant) -> Self {
        let earliest = Instant::now().checked_sub(PROMPT);
        Self { sent_at: earliest.map_or(sent_at, |earliest| sent_at.max(earliest)), now }
    }
}

impl Clock {
    /// Forgets what it was. Statements have no latest time from now on.
    pub(super) fn stop(&self) {
        *self.lock() = None;
    }

    /// Begins with an answer, however long it took.
    pub(super) fn start(&self, now: i64, sent_at: Instant) {
        *self.lock() = Some(Reading::new(now, sent_at));
    }

    /// Takes over what an answer says, if it has begun.
    pub(super) fn reads(&self, now: i64, sent_at: Instant) {
        if let Some(reading) = self.lock().as_mut() {
            // A clock that has jumped forward refuses all that comes, until it is known.
            let is_ahead = now > reading.now.saturating_add(micros(reading.sent_at.elapsed()));
            if is_ahead || sent_at.elapsed() < PROMPT {
                *reading = Reading::new(now, sent_at);
            }
        }
    }

    /// The latest time for a statement that has to be done by `end`.
    pub(super) fn at(&self, end: Instant) -> i64 {
        let reading = self.lock();
        let Some(Reading { sent_at, now }) = reading.as_ref() else { return i64::MAX };
        now.saturating_add(micros(end.saturating_duration_since(*sent_at) + SLACK))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Reading>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
