//! What a guard and the watchdog share about one held lease.

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::terms::Terms;
use crate::{BootTime, Clock, Fence, Lease, Name, Owner, Share};

/// How sure a holder may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// The lease stands and renewals, if any, are answered.
    Held,
    /// The lease still stands, but a renewal is overdue and being retried.
    Jeopardy,
    /// The tenure has ended; another may hold the name.
    Lost,
}

/// Why a tenure ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndReason {
    /// The time for which it could be believed ran out without a renewal.
    Expired,
    /// The store says that it is this owner's no longer: deleted, flushed, evicted or taken over.
    Gone,
    /// It had lasted for the longest hold that was allowed.
    MaxHold,
    /// The holder gave it up itself.
    Released,
}

impl std::fmt::Display for EndReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Expired => "the lease ran out without an answer to its renewals",
            Self::Gone => "the store says it is no longer ours: it was broken, flushed or evicted",
            Self::MaxHold => "it had lasted for the longest hold allowed",
            Self::Released => "the holder gave it up",
        })
    }
}

/// The part of a lease that changes while it is held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Current {
    pub(crate) share: Share,
    pub(crate) ttl: Duration,
    pub(crate) fence: Option<Fence>,
}

/// One held lease.
#[derive(Debug)]
pub(crate) struct HeldLease {
    pub(crate) name: Name,
    pub(crate) owner: Owner,
    current: Mutex<Current>,
    pub(crate) terms: Terms,
    /// When it was asked for.
    pub(crate) since: BootTime,
    /// When the store's grant was heard of, or asked for: a cohort's turn begins.
    granted_at: BootTime,
    /// When it is renewed for the first time, if it is.
    pub(crate) renew_at: BootTime,
    /// What operators see of the holder.
    pub(crate) label: Arc<str>,
    pub(crate) generated: bool,
    /// An acquire of this token had no answer, and may still run.
    pub(crate) late: bool,
    valid_until: AtomicU64,
    store_until: AtomicU64,
    /// Until when nobody else can have the name, whatever the clocks do: belief without the time to stop work, and without a cap.
    exclusive_until: AtomicU64,
    /// When it ends however well renewals go; the largest number for never.
    cap: AtomicU64,
    jeopardy: AtomicBool,
    /// It claims less than the store may keep: no answer has told that the share shrank.
    shrinking: AtomicBool,
    pub(crate) ended: CancellationToken,
    reason: OnceLock<EndReason>,
    /// Somebody has taken it on to give the name up, or to pass it on.
    release_claimed: AtomicBool,
    /// No work has begun under it: no pause is due when it is given up.
    idle: AtomicBool,
    /// How many guards stand for it.
    guards: AtomicUsize,
}

/// For how long a lease passes from task to task of one process before it goes through the store, where others may wait.
const HANDOFF_WINDOW: Duration = Duration::from_millis(10);

impl HeldLease {
    /// The tenure of a lease that a request sent at `sent_at` was granted for `granted`.
    pub(crate) fn new(lease: Lease, terms: Terms, label: Arc<str>, sent_at: BootTime, granted: Duration) -> Self {
        let renew_at = sent_at + lease.ttl / 3;
        let held = Self { renew_at, ..Self::blank(lease, terms, label, sent_at) };
        held.extend_validity(sent_at, granted);
        held
    }

    /// The tenure of a lease that was handed to a waiter for `claim`, after the store had executed what the waiter sent at
    /// `heard`. Until it is renewed it leaves a tenth of the claim to stop work.
    pub(crate) fn handed_over(
        lease: Lease,
        terms: Terms,
        label: Arc<str>,
        sent_at: BootTime,
        handoff_ttl: Duration,
        now: BootTime,
    ) -> Self {
        let held = Self { granted_at: now, ..Self::blank(lease, terms, label, sent_at) };
        held.extend_by(&terms.for_handoff(handoff_ttl), sent_at, handoff_ttl);
        Self { renew_at: now + (handoff_ttl / 3).min(held.valid_until().since(now) / 3), ..held }
    }

    fn blank(lease: Lease, terms: Terms, label: Arc<str>, since: BootTime) -> Self {
        let Lease { name, owner, share, ttl, fence } = lease;
        Self {
            name,
            owner,
            current: Mutex::new(Current { share, ttl, fence }),
            cap: AtomicU64::new(terms.max_hold.map_or(u64::MAX, |max| nanos(since + max))),
            terms,
            since,
            granted_at: since,
            renew_at: since,
            label,
            generated: true,
            late: false,
            valid_until: AtomicU64::new(0),
            store_until: AtomicU64::new(0),
            exclusive_until: AtomicU64::new(0),
            jeopardy: AtomicBool::new(false),
            shrinking: AtomicBool::new(false),
            ended: CancellationToken::new(),
            reason: OnceLock::new(),
            release_claimed: AtomicBool::new(false),
            idle: AtomicBool::new(false),
            guards: AtomicUsize::new(1),
        }
    }

    /// Until when the lease may pass from task to task without the store. No time at all, where it never may.
    pub(crate) fn handoffs_until(&self) -> BootTime {
        let Terms { ttl, renews, min_hold, linger, .. } = self.terms;
        let plain = renews && self.cap.load(Ordering::Acquire) == u64::MAX && min_hold.is_zero() && linger.is_zero();
        let current = self.current();
        let passes = self.generated && plain && current.ttl == ttl && current.share.is_exclusive();
        if passes { self.granted_at + HANDOFF_WINDOW } else { self.granted_at }
    }

    /// The same lease as the next task of the process has it, with the next fence. `None` where it has to go through the store:
    /// the turn is over, the fence leaves no room, or what was asked for it is not what the next one asks for.
    pub(crate) fn successor(&self, now: BootTime) -> Option<Self> {
        if self.end_reason(now).is_some() || now >= self.handoffs_until() {
            return None;
        }
        let mut lease = self.snapshot();
        lease.fence = Some(lease.fence?.next()?);
        let blank = Self::blank(lease, self.terms, Arc::clone(&self.label), self.since);
        let next = Self { late: self.late, granted_at: self.granted_at, ..blank };
        for (to, from) in [
            (&next.valid_until, &self.valid_until),
            (&next.store_until, &self.store_until),
            (&next.exclusive_until, &self.exclusive_until),
        ] {
            to.store(from.load(Ordering::Acquire), Ordering::Release);
        }
        next.jeopardy.store(self.jeopardy.load(Ordering::Acquire), Ordering::Release);
        Some(next)
    }

    pub(crate) fn snapshot(&self) -> Lease {
        let Current { share, ttl, fence } = self.current();
        Lease::new(self.name.clone(), self.owner.clone(), share, ttl).with_fence(fence)
    }

    pub(crate) fn current(&self) -> Current {
        *self.current_mut()
    }

    fn current_mut(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over that a lease of `ttl`, asked for at `sent_at`, was granted. Never shortens a belief.
    pub(crate) fn extend_validity(&self, sent_at: BootTime, ttl: Duration) {
        self.extend_by(&self.terms, sent_at, ttl);
    }

    fn extend_by(&self, terms: &Terms, sent_at: BootTime, ttl: Duration) {
        let until = nanos(sent_at + terms.validity(ttl)).min(self.cap.load(Ordering::Acquire));
        self.valid_until.fetch_max(until, Ordering::AcqRel);
        self.exclusive_until.fetch_max(nanos(sent_at + terms.certain(ttl)), Ordering::AcqRel);
        self.store_until.fetch_max(nanos(sent_at + ttl), Ordering::AcqRel);
        self.jeopardy.store(false, Ordering::Release);
    }

    /// One more guard stands for it.
    pub(crate) fn enter(&self) {
        self.guards.fetch_add(1, Ordering::Relaxed);
    }

    /// One guard fewer stands for it; how many are left.
    pub(crate) fn leave(&self) -> usize {
        self.guards.fetch_sub(1, Ordering::AcqRel) - 1
    }

    /// How many guards stand for it.
    pub(crate) fn guards(&self) -> usize {
        self.guards.load(Ordering::Acquire)
    }

    /// True for the one who may give the name up: a token is released once, and never used after.
    pub(crate) fn claim_release(&self) -> bool {
        !self.release_claimed.swap(true, Ordering::AcqRel)
    }

    /// Whether the value at the store may be another's, who was given the same, when a command that is sent now has run within
    /// `limit`. Never for a value with random bits of our own.
    pub(crate) fn may_be_of_another(&self, now: BootTime, limit: Duration) -> bool {
        let exclusive_until = BootTime::from_boot(Duration::from_nanos(self.exclusive_until.load(Ordering::Acquire)));
        !self.generated && (self.reason.get() == Some(&EndReason::Gone) || now + limit >= exclusive_until)
    }

    /// For how long the name stays taken by nobody if it is released now.
    pub(crate) fn linger(&self, now: BootTime) -> Duration {
        if self.idle.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        (self.since + self.terms.min_hold).since(now).max(self.terms.linger)
    }

    /// Whether it is only kept until its holder has all that its work needs.
    pub(crate) fn set_idle(&self, idle: bool) {
        self.idle.store(idle, Ordering::Release);
    }

    /// Ends it at `at` however well renewals go. Renewals must not be entered meanwhile.
    pub(crate) fn end_at(&self, at: BootTime) {
        self.cap.store(nanos(at), Ordering::Release);
        self.valid_until.fetch_min(nanos(at), Ordering::AcqRel);
    }

    /// From now on it claims no more than `share`, whatever the store still keeps. It never grows again.
    pub(crate) fn shrink(&self, share: Share) {
        let mut current = self.current_mut();
        if share.weight() < current.share.weight() {
            current.share = share;
            self.shrinking.store(true, Ordering::Release);
        }
    }

    /// The store keeps `share` and no more.
    pub(crate) fn shrunk(&self, share: Share) {
        let current = self.current_mut();
        if share.weight() <= current.share.weight() {
            self.shrinking.store(false, Ordering::Release);
        }
    }

    /// Whether the store may keep more than is claimed.
    pub(crate) fn is_shrinking(&self) -> bool {
        self.shrinking.load(Ordering::Acquire)
    }

    /// Takes over the number of another grant to the same owner, unless an answer that came before had a later one.
    pub(crate) fn set_fence(&self, fence: Option<Fence>) {
        let mut current = self.current_mut();
        current.fence = current.fence.max(fence);
    }

    /// From now on renewals are for `ttl`.
    pub(crate) fn set_ttl(&self, ttl: Duration) {
        self.current_mut().ttl = ttl;
    }

    pub(crate) fn mark_overdue(&self) {
        self.jeopardy.store(true, Ordering::Release);
    }

    pub(crate) fn valid_until(&self) -> BootTime {
        BootTime::from_boot(Duration::from_nanos(self.valid_until.load(Ordering::Acquire)))
    }

    /// Whether belief ends in time to stop work as the terms say. Not before a lease that was handed over has been renewed.
    pub(crate) fn leaves_margin(&self) -> bool {
        let exclusive_until = BootTime::from_boot(Duration::from_nanos(self.exclusive_until.load(Ordering::Acquire)));
        self.valid_until() + self.terms.safety_margin <= exclusive_until
    }

    /// When the lease ends at the store if nothing renews it, as far as answers tell.
    pub(crate) fn store_until(&self) -> BootTime {
        BootTime::from_boot(Duration::from_nanos(self.store_until.load(Ordering::Acquire)))
    }

    /// Why belief ends at its deadline.
    pub(crate) fn deadline_reason(&self) -> EndReason {
        if nanos(self.valid_until()) >= self.cap.load(Ordering::Acquire) { EndReason::MaxHold } else { EndReason::Expired }
    }

    /// Ends the tenure, once: the first reason stays.
    pub(crate) fn end(&self, reason: EndReason) {
        let _ = self.reason.set(reason);
        self.ended.cancel();
    }

    /// Resolves when the tenure has ended, with the reason. The clock alone suffices: no other task need be alive.
    pub(crate) async fn until_end(&self, clock: &dyn Clock) -> EndReason {
        loop {
            tokio::select! {
                biased;
                () = self.ended.cancelled() => {}
                () = clock.sleep_until(self.valid_until()) => {}
            }
            // A renewal may have moved the deadline meanwhile.
            if let Some(reason) = self.end_reason(clock.now()) {
                self.end(reason);
                return self.reason.get().copied().unwrap_or(reason);
            }
        }
    }

    /// Why it ended, by the clock or by what was told; `None` while it stands.
    pub(crate) fn end_reason(&self, now: BootTime) -> Option<EndReason> {
        self.reason.get().copied().or_else(|| (now >= self.valid_until()).then(|| self.deadline_reason()))
    }

    pub(crate) fn state(&self, now: BootTime) -> State {
        match self.end_reason(now) {
            Some(_) => State::Lost,
            None if self.jeopardy.load(Ordering::Acquire) => State::Jeopardy,
            None => State::Held,
        }
    }
}

fn nanos(at: BootTime) -> u64 {
    u64::try_from(at.since_boot().as_nanos()).unwrap_or(u64::MAX)
}
