//! Counters of a layer, for the metrics of the application.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of a layer and its clones. A handle: clones count the same.
#[derive(Clone, Debug, Default)]
pub struct Stats(Arc<[AtomicU64; Event::COUNT]>);

/// State of the counters of a [`Stats`]. They only rise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Requests that got the lease.
    pub granted: u64,
    /// Requests that were refused, because their key was taken or cooled down. Requests that joined a
    /// refused one are counted as it is.
    pub refused: u64,
    /// Requests that had to wait, whether they were served or refused afterwards.
    pub waited: u64,
    /// Requests that waited for the answer of another one.
    pub joined: u64,
    /// Requests that joined another one and got no copy of its answer: it failed, or was too large.
    pub unanswered: u64,
    /// Requests that were served without a lock in an outage of the store.
    pub failed_open: u64,
    /// Requests that were refused in an outage of the store, or by the store.
    pub failed_closed: u64,
    /// Requests that were refused, because this process had more than the store answers.
    pub overloaded: u64,
    /// Leases that were lost before their request was answered.
    pub lost: u64,
    /// Requests that were refused for what they are: without a key, with a bad one, or with a body that
    /// broke off or is too large to look for the key.
    pub invalid: u64,
    /// Requests that were served without a lock, because they had no key.
    pub keyless: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Granted,
    Refused,
    Waited,
    Joined,
    Unanswered,
    FailedOpen,
    FailedClosed,
    Overloaded,
    Lost,
    Invalid,
    Keyless,
}

impl Event {
    const COUNT: usize = Self::Keyless as usize + 1;
}

impl Stats {
    /// Reads the counters, one after the other.
    pub fn counts(&self) -> Counts {
        let read = |event: Event| self.0[event as usize].load(Ordering::Relaxed);
        Counts {
            granted: read(Event::Granted),
            refused: read(Event::Refused),
            waited: read(Event::Waited),
            joined: read(Event::Joined),
            unanswered: read(Event::Unanswered),
            failed_open: read(Event::FailedOpen),
            failed_closed: read(Event::FailedClosed),
            overloaded: read(Event::Overloaded),
            lost: read(Event::Lost),
            invalid: read(Event::Invalid),
            keyless: read(Event::Keyless),
        }
    }

    pub(crate) fn count(&self, event: Event) {
        self.0[event as usize].fetch_add(1, Ordering::Relaxed);
    }
}
