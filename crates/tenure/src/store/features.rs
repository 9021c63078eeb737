//! Promises of a store, and the timeout of a call to it.

use std::time::Duration;

use crate::Name;
use crate::setters::setters;

/// Promises of a store.
#[allow(clippy::struct_excessive_bools, reason = "a list of independent promises")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Features {
    /// Grants carry a fence.
    pub fence: bool,
    /// The store keeps shares other than a mutex.
    pub shares: bool,
    /// Waiters queue at the store and are served in order.
    pub queue: bool,
    /// A lease may go from task to task of one process without a request to the store: its value
    /// names the process's acquisition, and its fence has room for the index of a handoff.
    pub cohort: bool,
    /// [`Store::watch`](super::Store::watch) sends notices.
    pub push: bool,
    /// Leases end by the store's own clock, not by those of its clients.
    pub server_clock: bool,
    /// A command whose reply was lost may still run after a later command was answered. Releases
    /// are then repeated until the ttl of the lease has passed.
    pub late_commands: bool,
    /// Shortest ttl that the store can keep.
    pub min_ttl: Duration,
    /// Longest time for which a lease that nobody renews outlives its ttl.
    pub late_end: Duration,
    /// Longest name that the store can keep, in bytes.
    pub max_name: usize,
    /// Timeout of one call; `None` for [`operation_timeout`].
    pub operation_timeout: Option<Duration>,
    /// Each call ends by itself at its [timeout](Features::limit), with
    /// [`Unreachable`](crate::ErrorKind::Unreachable). Else the caller sets a timer of its own. A store
    /// that wraps another, and may take longer, does not promise it.
    pub timed_calls: bool,
    /// An owner token is good for one try: after one that was not granted, the store releases it by
    /// itself. The next try needs another token, because that release may run late.
    pub token_per_try: bool,
    /// A lease is bound to the process that took it, and ends with it. No other process can renew it
    /// or adopt it, and nothing keeps the name taken after its release.
    pub process_bound: bool,
    /// Id of the process that opened the store, if no other can use it. In the child of a `fork` every call
    /// of a [`Locker`](crate::Locker) over the store fails then.
    pub opened_by: Option<u32>,
}

impl Features {
    /// The least that a store can promise: it keeps mutexes, by the clocks of its clients. A lease
    /// may last 10 ms, and every name fits.
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
            late_end: Duration::ZERO,
            max_name: Name::MAX_BYTES,
            operation_timeout: None,
            timed_calls: false,
            token_per_try: false,
            process_bound: false,
            opened_by: None,
        }
    }

    /// Timeout of one call about a lease of `ttl`. Pass [`Duration::MAX`] for calls that concern no
    /// lease.
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
    with_late_end(late_end: Duration),
    with_max_name(max_name: usize),
    with_operation_timeout(operation_timeout: impl Into<Option<Duration>>),
    with_timed_calls(timed_calls: bool),
    with_token_per_try(token_per_try: bool),
    with_process_bound(process_bound: bool),
    with_opened_by(opened_by: impl Into<Option<u32>>),
}

/// Default timeout of one call to a store: a sixth of the ttl, at most a second.
pub fn operation_timeout(ttl: Duration) -> Duration {
    (ttl / 6).min(Duration::from_secs(1))
}

/// The process that opened all of several stores; one that cannot use them if there are two.
pub(crate) fn opened_by(all: &[Features]) -> Option<u32> {
    let here = std::process::id();
    all.iter().filter_map(|store| store.opened_by).max_by_key(|process| *process != here)
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
