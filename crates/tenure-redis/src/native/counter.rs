//! State of the server's grant counter as this process knows it: by replies, which can be trusted,
//! and by pushes, which cannot.
//!
//! Anybody who may publish can push any number. So a pushed counter never raises the server's, and
//! no grant is compared with it. It is a reason to raise the counter before the next grant, by the
//! server's clock. The renewal after a hand-over reads the counter as well, and a lease with a
//! fence above it is not renewed. The owners of such leases are remembered: the number of a lease
//! is not enough, because counters are deleted and leases move between processes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::{Lease, Owner};

/// Time from which grants are numbered, since 1970: 2026-01-01T00:00:00Z, as in fence.lua.
pub(crate) const EPOCH: Duration = Duration::from_secs(1_767_225_600);

/// Tolerance in ms of a pushed counter ahead of time, for clocks that are set and for slow replies.
const SLACK: i64 = 10_000;

/// Largest number of remembered owners. Others ask the server.
const MOST: usize = 10_000;

#[derive(Debug)]
pub(crate) struct Counter {
    /// The largest counter of any reply.
    largest: AtomicU64,
    /// Largest lead in ms of the counter over the clock of this machine, as replies have shown it.
    /// Counters rise no faster than time: one number for each microsecond.
    lead: AtomicI64,
    /// When a counter above those of all replies was last pushed, ms since boot.
    pushed_at: AtomicU64,
    /// Owners whose grants only a push has reported.
    unconfirmed: Mutex<HashMap<Owner, Unconfirmed>>,
}

/// A grant that only a push has reported.
#[derive(Clone, Copy, Debug)]
struct Unconfirmed {
    /// When it ends without a renewal, and somewhat later, ms since boot.
    until: u64,
    /// The largest counter of any reply before.
    seen: u64,
}

impl Default for Counter {
    fn default() -> Self {
        // No push is explained before the first reply.
        Self {
            largest: AtomicU64::new(0),
            lead: AtomicI64::new(i64::MIN / 2),
            pushed_at: AtomicU64::new(0),
            unconfirmed: Mutex::default(),
        }
    }
}

impl Counter {
    pub(crate) fn largest(&self) -> u64 {
        self.largest.load(Ordering::Acquire)
    }

    /// Notes the `counter` of a reply at `now`.
    pub(crate) fn saw(&self, counter: u64, now: u64) {
        self.largest.fetch_max(counter, Ordering::AcqRel);
        self.lead.fetch_max(lead(counter, now), Ordering::AcqRel);
    }

    /// Notes that the server has raised its counter to `counter` at `now`, when asked for `least`.
    /// If its clock does not explain `least`, it takes a smaller number. Then `least` is forgotten,
    /// or it would be asked for again after somebody has corrected the counter.
    pub(crate) fn raised(&self, least: u64, counter: u64, now: u64) {
        if counter < least {
            let _ = self.largest.compare_exchange(least, counter, Ordering::AcqRel, Ordering::Acquire);
            self.lead.store(lead(counter, now), Ordering::Release);
        }
        self.saw(counter, now);
    }

    /// Whether a pushed counter may be the server's, by the time that has passed.
    pub(crate) fn explains(&self, pushed: u64, now: u64) -> bool {
        lead(pushed, now) <= self.lead.load(Ordering::Acquire).saturating_add(SLACK)
    }

    /// Notes that `counter` was pushed at `now`.
    pub(crate) fn pushed(&self, counter: u64, now: u64) {
        if counter > self.largest() {
            self.pushed_at.fetch_max(now, Ordering::AcqRel);
        }
    }

    /// When a counter was last pushed for which the server's has to be raised again.
    pub(crate) fn pushed_at(&self) -> u64 {
        self.pushed_at.load(Ordering::Acquire)
    }

    /// Remembers that a push has reported a grant to `owner` for `handoff_ttl`, at `now`. False if
    /// there is no room: then the push must not be trusted.
    pub(crate) fn remember(&self, owner: &Owner, handoff_ttl: Duration, now: u64) -> bool {
        let mut pushed = self.unconfirmed();
        if pushed.len() >= MOST {
            pushed.retain(|_, known| known.until > now);
        }
        if pushed.len() >= MOST && !pushed.contains_key(owner) {
            return false;
        }
        let handoff_ttl = u64::try_from(handoff_ttl.as_millis()).unwrap_or(u64::MAX);
        let until = now.saturating_add(handoff_ttl).saturating_add(SLACK.unsigned_abs());
        let until = pushed.get(owner).map_or(until, |known| known.until.max(until));
        pushed.insert(owner.clone(), Unconfirmed { until, seen: self.largest() });
        true
    }

    /// If only a push has reported the fence of a lease at `now`, the counter before that push, at
    /// least.
    pub(crate) fn before_push(&self, lease: &Lease, now: u64) -> Option<u64> {
        lease.fence.filter(|fence| fence.counter() > self.largest())?;
        self.unconfirmed().get(&lease.owner).filter(|known| known.until > now).map(|known| known.seen)
    }

    /// Notes that a reply has confirmed or ended the owner's grant.
    pub(crate) fn confirmed(&self, owner: &Owner) {
        self.unconfirmed().remove(owner);
    }

    fn unconfirmed(&self) -> MutexGuard<'_, HashMap<Owner, Unconfirmed>> {
        self.unconfirmed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lead in ms of a counter, in microseconds, over a clock in ms.
fn lead(counter: u64, now: u64) -> i64 {
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    signed(counter / 1_000).saturating_sub(signed(now))
}

#[cfg(test)]
mod tests {
    use tenure::{Fence, Name, Share};

    use super::*;

    const COUNTER: u64 = 28_000_000_000_000;

    #[test]
    fn a_pushed_counter_is_explained_by_time_alone() {
        let seen = Counter::default();
        assert!(!seen.explains(1, 5_000), "nothing is known yet");
        seen.saw(COUNTER, 5_000);
        for (pushed, now, explained) in [
            (COUNTER + 1, 5_000, true),
            (COUNTER + 10_000_999, 5_000, true),
            (COUNTER + 10_001_000, 5_000, false),
            (COUNTER + 3_600_000_000, 3_605_000, true),
            (COUNTER + 3_600_000_000, 5_000, false),
            ((1 << 53) - 1, 5_000, false),
        ] {
            assert_eq!(seen.explains(pushed, now), explained, "{pushed} at {now}");
        }
        assert_eq!(seen.largest(), COUNTER);
    }

    #[test]
    fn a_push_is_remembered_until_a_reply_or_its_end() {
        let seen = Counter::default();
        let [mine, other] = ["mine", "other"].map(|label| Owner::generate(label).unwrap());
        let lease = |owner: &Owner, counter| {
            Lease::new(Name::new("door").unwrap(), owner.clone(), Share::MUTEX, Duration::from_secs(60))
                .with_fence(Fence::from_counter(counter))
        };
        seen.saw(COUNTER, 5_000);
        assert!(seen.remember(&mine, Duration::from_secs(2), 5_000));
        assert!(seen.remember(&mine, Duration::ZERO, 5_000), "a second push shortens nothing");
        for (owner, counter, now, pushed) in [
            (&mine, COUNTER + 1, 5_000, true),
            (&mine, COUNTER, 5_000, false),
            (&other, COUNTER + 1, 5_000, false),
            (&mine, COUNTER + 1, 16_999, true),
            (&mine, COUNTER + 1, 17_000, false),
        ] {
            assert_eq!(seen.before_push(&lease(owner, counter), now), pushed.then_some(COUNTER), "{counter} at {now}");
        }
        seen.confirmed(&mine);
        assert_eq!(seen.before_push(&lease(&mine, COUNTER + 1), 5_000), None);
    }

    #[test]
    fn no_more_pushes_are_remembered_than_there_is_room_for() {
        let (seen, second) = (Counter::default(), Duration::from_secs(1));
        let owner = |number: usize| Owner::from_bytes(number.to_string().into_bytes());
        for number in 0..MOST {
            assert!(seen.remember(&owner(number), second, 5_000));
        }
        assert!(!seen.remember(&owner(MOST), second, 5_000));
        assert!(seen.remember(&owner(0), second, 5_000), "it is known");
        assert!(seen.remember(&owner(MOST), second, 16_000), "those before have ended");
        assert_eq!(seen.unconfirmed().len(), 1);
    }

    #[test]
    fn a_number_that_the_server_does_not_take_is_forgotten() {
        let seen = Counter::default();
        seen.saw((1 << 53) - 2, 5_000);
        seen.raised((1 << 53) - 2, COUNTER, 5_000);
        assert_eq!(seen.largest(), COUNTER);
        assert!(!seen.explains(COUNTER + 20_000_000, 5_000));
        seen.raised(COUNTER, COUNTER + 7, 5_000);
        assert_eq!(seen.largest(), COUNTER + 7);
    }
}
