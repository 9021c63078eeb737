//! What a store can promise, and how long a call to it may take.

use std::time::Duration;

use crate::Name;
use crate::setters::setters;

/// What a store can promise.
#[allow(clippy::struct_excessive_bools, reason = "a list of independent promises")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Features {
    /// Grants carry a fence.
    pub fence: bool,
    /// Shares other than a mutex are kept.
    pub shares: bool,
    /// Waiters queue at the store and are served in order.
    pub queue: bool,
    /// A lease may pass from task to task of one process without the store knowing: its value names the process's claim, and its
    /// fence leaves room for a hand-over's index.
    pub cohort: bool,
    /// [`Store::watch`] says when to look.
    pub push: bool,
    /// Leases end by the store's own clock, not by that of its clients.
    pub server_clock: bool,
    /// A command whose reply was lost may still run after a later command was answered. Clean-ups are then repeated until
    /// the ttl of what they clear up has passed.
    pub late_commands: bool,
    /// The shortest ttl the store can keep.
    pub min_ttl: Duration,
    /// The longest name the store can keep, in bytes.
    pub max_name: usize,
    /// How long one call may take; `None` is [`operation_timeout`].
    pub operation_timeout: Option<Duration>,
}

impl Features {
    /// The least a store can be: it keeps mutexes, by the clocks of its clients, and promises nothing more. Leases last 10 ms or
    /// longer, and every name fits.
    pub const fn basic() -> Self {
        Self {
            fence: false,
            shares: false,
            queue: false,
            cohort: false,
            push: false,
            server_clock: false,
            late_commands: false,
            min_ttl: Duration::from_millis(10),
            max_name: Name::MAX_BYTES,
            operation_timeout: None,
        }
    }

    /// How long one call about a lease of `ttl` may take. A look hangs on no lease: its ttl is [`Duration::MAX`].
    pub fn limit(&self, ttl: Duration) -> Duration {
        self.operation_timeout.unwrap_or_else(|| operation_timeout(ttl))
    }
}

setters! { Features:
    with_fence(fence: bool),
    with_shares(shares: bool),
    with_queue(queue: bool),
    with_cohort(cohort: bool),
    with_push(push: bool),
    with_server_clock(server_clock: bool),
    with_late_commands(late_commands: bool),
    with_min_ttl(min_ttl: Duration),
    with_max_name(max_name: usize),
    with_operation_timeout(operation_timeout: impl Into<Option<Duration>>),
}

/// How long one call to a store may take where nothing else was said: a sixth of the ttl, at most a second.
pub fn operation_timeout(ttl: Duration) -> Duration {
    (ttl / 6).min(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_may_take_a_sixth_of_the_ttl_and_no_more_than_a_second() {
        for (ttl, limit) in [(600, 100), (3_000, 500), (6_000, 1_000), (60_000, 1_000)] {
            assert_eq!(operation_timeout(Duration::from_millis(ttl)), Duration::from_millis(limit));
        }
    }
}
