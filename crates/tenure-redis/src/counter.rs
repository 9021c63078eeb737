//! What this process knows of the grant counter at the server: by replies, which are the server's word, and by pushes, which are not.
//!
//! Anybody who may publish can push any number. So a pushed one is never what the counter is lifted to, and never what a grant is held
//! against. It is a reason to lift the counter before the next grant, by the server's clock; and the renewal that follows a hand-over reads
//! the counter as well, so that a fence above it is not kept. Whose those are is remembered: the number of a lease does not tell, for
//! counters are deleted, and leases go from process to process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::{Lease, Owner};

/// How far beyond what time explains a pushed counter may be, ms: for clocks that are set, and replies that were long on their way.
const SLACK: i64 = 10_000;

/// Owners that are remembered at once. Whoever comes then asks the server.
const MOST: usize = 10_000;

#[derive(Debug)]
pub(crate) struct Counter {
    /// The largest counter that a reply has told.
    largest: AtomicU64,
    /// How far the counter is ahead of the clock of this machine, ms: the most that a reply has shown. Counters rise no faster than
    /// time, a number for each microsecond.
    ahead: AtomicI64,
    /// When a push last told of a counter above those of replies, ms since boot.
    pushed_at: AtomicU64,
    /// Owners that a push alone has told of their grants.
    pushed: Mutex<HashMap<Owner, Pushed>>,
}

/// What is known of a grant of which a push has told.
#[derive(Clone, Copy, Debug)]
struct Pushed {
    /// When it ends unless it is renewed, and somewhat later, ms since boot.
    until: u64,
    /// The largest counter that a reply had told before.
    seen: u64,
}

impl Default for Counter {
    fn default() -> Self {
        // So far ahead of nothing is no push.
        Self {
            largest: AtomicU64::new(0),
            ahead: AtomicI64::new(i64::MIN / 2),
            pushed_at: AtomicU64::new(0),
            pushed: Mutex::default(),
        }
    }
}

impl Counter {
    pub(crate) fn largest(&self) -> u64 {
        self.largest.load(Ordering::Acquire)
    }

    /// A reply has told of `counter` at `now`.
    pub(crate) fn saw(&self, counter: u64, now: u64) {
        self.largest.fetch_max(counter, Ordering::AcqRel);
        self.ahead.fetch_max(ahead(counter, now), Ordering::AcqRel);
    }

    /// The server has lifted its counter to `counter`, at `now`, when it was asked for `least`. It takes no number that its clock does not
    /// explain: then that one is forgotten, or it would be asked for again after somebody has set the counter right.
    pub(crate) fn lifted(&self, least: u64, counter: u64, now: u64) {
        if counter < least {
            let _ = self.largest.compare_exchange(least, counter, Ordering::AcqRel, Ordering::Acquire);
            self.ahead.store(ahead(counter, now), Ordering::Release);
        }
        self.saw(counter, now);
    }

    /// Whether a pushed counter may be the server's, as far as time tells.
    pub(crate) fn explains(&self, pushed: u64, now: u64) -> bool {
        ahead(pushed, now) <= self.ahead.load(Ordering::Acquire).saturating_add(SLACK)
    }

    /// A push told of `counter` at `now`.
    pub(crate) fn heard(&self, counter: u64, now: u64) {
        if counter > self.largest() {
            self.pushed_at.fetch_max(now, Ordering::AcqRel);
        }
    }

    /// When something was last heard for which the counter has to be lifted again.
    pub(crate) fn pushed_at(&self) -> u64 {
        self.pushed_at.load(Ordering::Acquire)
    }

    /// Remembers that a push told `owner` of a grant for `claim`, at `now`. False where there is no room: then it is not to be believed.
    pub(crate) fn remember(&self, owner: &Owner, claim: Duration, now: u64) -> bool {
        let mut pushed = self.pushed();
        if pushed.len() >= MOST {
            pushed.retain(|_, known| known.until > now);
        }
        if pushed.len() >= MOST && !pushed.contains_key(owner) {
            return false;
        }
        let claim = u64::try_from(claim.as_millis()).unwrap_or(u64::MAX);
        let until = now.saturating_add(claim).saturating_add(SLACK.unsigned_abs());
        let until = pushed.get(owner).map_or(until, |known| known.until.max(until));
        pushed.insert(owner.clone(), Pushed { until, seen: self.largest() });
        true
    }

    /// Where nobody but a push has told of the fence of a lease, at `now`: what the counter was before that push, at least.
    pub(crate) fn before_push(&self, lease: &Lease, now: u64) -> Option<u64> {
        lease.fence.filter(|fence| fence.counter() > self.largest())?;
        self.pushed().get(&lease.owner).filter(|known| known.until > now).map(|known| known.seen)
    }

    /// A reply has told what became of the owner's grant.
    pub(crate) fn confirmed(&self, owner: &Owner) {
        self.pushed().remove(owner);
    }

    fn pushed(&self) -> MutexGuard<'_, HashMap<Owner, Pushed>> {
        self.pushed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How far a counter, in microseconds, is ahead of a clock, in ms.
fn ahead(counter: u64, now: u64) -> i64 {
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
        assert_eq!(seen.pushed().len(), 1);
    }

    #[test]
    fn a_number_that_the_server_does_not_take_is_forgotten() {
        let seen = Counter::default();
        seen.saw((1 << 53) - 2, 5_000);
        seen.lifted((1 << 53) - 2, COUNTER, 5_000);
        assert_eq!(seen.largest(), COUNTER);
        assert!(!seen.explains(COUNTER + 20_000_000, 5_000));
        seen.lifted(COUNTER, COUNTER + 7, 5_000);
        assert_eq!(seen.largest(), COUNTER + 7);
    }
}
