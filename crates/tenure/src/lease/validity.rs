//! State of one held lease, which its guards and the watchdog share.

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::state::{EndReason, State};
use super::terms::Terms;
use crate::store::Durable;
use crate::{BootTime, Clock, Error, Fence, Lease, Name, Owner, Share};

/// The part of a lease that may change while it is held.
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
    /// Time of its request.
    pub(crate) since: BootTime,
    /// Time of the store's grant, or of its notice: the handoff window begins.
    granted_at: BootTime,
    /// Time of the first renewal, if it renews.
    pub(crate) renew_at: BootTime,
    /// Label of the holder, for operators.
    pub(crate) label: Arc<str>,
    pub(crate) generated: bool,
    /// Copies of the grant.
    pub(crate) durability: Option<Durable>,
    /// An acquire with this token had no answer, and may still run.
    pub(crate) late: bool,
    valid_until: AtomicU64,
    store_until: AtomicU64,
    /// End of the time in which nobody else can have the name, whatever the clocks do. Without the
    /// safety margin and the cap.
    exclusive_until: AtomicU64,
    /// Latest end of the lease; the largest number for none.
    cap: AtomicU64,
    jeopardy: AtomicBool,
    /// Error of the last renewal, if it failed.
    failure: Mutex<Option<Error>>,
    /// The guard claims less than the store may keep: no answer has confirmed the smaller share.
    shrinking: AtomicBool,
    /// Cancelled when the lease ends. Made for the first task that asks for it.
    ended: OnceLock<CancellationToken>,
    reason: OnceLock<EndReason>,
    /// Somebody has claimed the right to release the lease, or to hand it on.
    release_claimed: AtomicBool,
    /// No work has begun under it, so a release leaves no pause.
    idle: AtomicBool,
    /// Number of guards.
    guards: AtomicUsize,
}

/// Time for which a lease goes from task to task of one process, before the waiters at the store
/// get their turn.
const HANDOFF_WINDOW: Duration = Duration::from_millis(10);

impl HeldLease {
    /// Makes a lease that was granted for `granted`, after a request sent at `sent_at`.
    pub(crate) fn new(lease: Lease, terms: Terms, label: Arc<str>, sent_at: BootTime, granted: Duration) -> Self {
        let renew_at = sent_at + lease.ttl / 3;
        let held = Self { renew_at, ..Self::blank(lease, terms, label, sent_at) };
        held.extend_validity(sent_at, granted);
        held
    }

    /// Makes a lease that was handed to a waiter for `handoff_ttl`. The store did so after it had
    /// executed the waiter's request of `sent_at`. Its safety margin is a tenth of that until it is
    /// renewed.
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
            durability: None,
            late: false,
            valid_until: AtomicU64::new(0),
            store_until: AtomicU64::new(0),
            exclusive_until: AtomicU64::new(0),
            jeopardy: AtomicBool::new(false),
            failure: Mutex::default(),
            shrinking: AtomicBool::new(false),
            ended: OnceLock::new(),
            reason: OnceLock::new(),
            release_claimed: AtomicBool::new(false),
            idle: AtomicBool::new(false),
            guards: AtomicUsize::new(1),
        }
    }

    /// End of the time in which the lease may go from task to task without the store. The time of
    /// the grant if it never may.
    pub(crate) fn handoffs_until(&self) -> BootTime {
        let Terms { ttl, renews, min_hold, linger, hands_on, .. } = self.terms;
        let plain = hands_on && renews && self.cap.load(Ordering::Acquire) == u64::MAX && min_hold.is_zero() && linger.is_zero();
        let current = self.current();
        let passes = self.generated && plain && current.ttl == ttl && current.share.is_exclusive();
        if passes { self.granted_at + HANDOFF_WINDOW } else { self.granted_at }
    }

    /// Makes the lease of the next task of this process, with the next fence. `None` if it has to
    /// go through the store: the handoff window is over, the fence has no room, or its terms were
    /// changed.
    pub(crate) fn successor(&self, now: BootTime) -> Option<Self> {
        if self.end_reason(now).is_some() || now >= self.handoffs_until() {
            return None;
        }
        let mut lease = self.snapshot();
        lease.fence = Some(lease.fence?.next()?);
        let blank = Self::blank(lease, self.terms, Arc::clone(&self.label), self.since);
        let next = Self { late: self.late, durability: self.durability, granted_at: self.granted_at, ..blank };
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

    /// Notes a grant for `ttl`, after a request sent at `sent_at`. Never shortens the validity.
    pub(crate) fn extend_validity(&self, sent_at: BootTime, ttl: Duration) {
        self.extend_by(&self.terms, sent_at, ttl);
    }

    fn extend_by(&self, terms: &Terms, sent_at: BootTime, ttl: Duration) {
        let until = nanos(sent_at + terms.validity(ttl)).min(self.cap.load(Ordering::Acquire));
        self.valid_until.fetch_max(until, Ordering::AcqRel);
        self.exclusive_until.fetch_max(nanos(sent_at + terms.certain(ttl)), Ordering::AcqRel);
        self.store_until.fetch_max(nanos(sent_at + ttl), Ordering::AcqRel);
        if self.jeopardy.swap(false, Ordering::AcqRel) {
            *self.failure() = None;
        }
    }

    /// Adds a guard.
    pub(crate) fn enter(&self) {
        self.guards.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a guard. Returns the number that is left.
    pub(crate) fn leave(&self) -> usize {
        self.guards.fetch_sub(1, Ordering::AcqRel) - 1
    }

    /// Number of guards.
    pub(crate) fn guards(&self) -> usize {
        self.guards.load(Ordering::Acquire)
    }

    /// Claims the right to release the lease. Returns true once: a token is released once and never
    /// used again.
    pub(crate) fn claim_release(&self) -> bool {
        !self.release_claimed.swap(true, Ordering::AcqRel)
    }

    /// Whether another client may hold with the same supplied token by the time a command sent now
    /// has run within `limit`. Never true of a generated token.
    pub(crate) fn may_be_of_another(&self, now: BootTime, limit: Duration) -> bool {
        let exclusive_until = BootTime::from_boot(Duration::from_nanos(self.exclusive_until.load(Ordering::Acquire)));
        !self.generated && (self.reason.get() == Some(&EndReason::Gone) || now + limit >= exclusive_until)
    }

    /// Time for which the name stays taken by nobody if it is released now.
    pub(crate) fn linger(&self, now: BootTime) -> Duration {
        if self.idle.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        (self.since + self.terms.min_hold).since(now).max(self.terms.linger)
    }

    /// Sets whether the lease only waits for others that the work needs.
    pub(crate) fn set_idle(&self, idle: bool) {
        self.idle.store(idle, Ordering::Release);
    }

    /// Ends the lease at `at`, even if its renewals succeed. No renewal may be entered meanwhile.
    pub(crate) fn end_at(&self, at: BootTime) {
        self.cap.store(nanos(at), Ordering::Release);
        self.valid_until.fetch_min(nanos(at), Ordering::AcqRel);
    }

    /// Lowers the claimed share to `share`, whatever the store still keeps. It never grows again.
    pub(crate) fn shrink(&self, share: Share) {
        let mut current = self.current_mut();
        if share.weight() < current.share.weight() {
            current.share = share;
            self.shrinking.store(true, Ordering::Release);
        }
    }

    /// Notes that the store keeps `share` and no more.
    pub(crate) fn shrunk(&self, share: Share) {
        let current = self.current_mut();
        if share.weight() <= current.share.weight() {
            self.shrinking.store(false, Ordering::Release);
        }
    }

    /// Whether the store may keep more than the guard claims.
    pub(crate) fn is_shrinking(&self) -> bool {
        self.shrinking.load(Ordering::Acquire)
    }

    /// Notes the fence of another grant to the same owner, unless an earlier answer had a later
    /// one.
    pub(crate) fn set_fence(&self, fence: Option<Fence>) {
        let mut current = self.current_mut();
        current.fence = current.fence.max(fence);
    }

    /// Sets the ttl of the next renewals.
    pub(crate) fn set_ttl(&self, ttl: Duration) {
        self.current_mut().ttl = ttl;
    }

    pub(crate) fn mark_overdue(&self) {
        self.jeopardy.store(true, Ordering::Release);
    }

    /// Notes that a renewal failed.
    pub(crate) fn renewal_failed(&self, error: Error) {
        *self.failure() = Some(error);
        self.mark_overdue();
    }

    /// Error of the last renewal, if it failed.
    pub(crate) fn renewal_error(&self) -> Option<Error> {
        self.failure().clone()
    }

    fn failure(&self) -> MutexGuard<'_, Option<Error>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn valid_until(&self) -> BootTime {
        BootTime::from_boot(Duration::from_nanos(self.valid_until.load(Ordering::Acquire)))
    }

    /// Whether the lease ends in time for the safety margin of its terms. A handed-over lease does
    /// not before its first renewal.
    pub(crate) fn leaves_margin(&self) -> bool {
        let exclusive_until = BootTime::from_boot(Duration::from_nanos(self.exclusive_until.load(Ordering::Acquire)));
        self.valid_until() + self.terms.safety_margin <= exclusive_until
    }

    /// Time at which the lease ends at the store without a renewal, as far as answers tell.
    pub(crate) fn store_until(&self) -> BootTime {
        BootTime::from_boot(Duration::from_nanos(self.store_until.load(Ordering::Acquire)))
    }

    /// Reason to end at the deadline.
    pub(crate) fn deadline_reason(&self) -> EndReason {
        if nanos(self.valid_until()) >= self.cap.load(Ordering::Acquire) { EndReason::MaxHold } else { EndReason::Expired }
    }

    /// Ends the lease, once: the first reason stays.
    pub(crate) fn end(&self, reason: EndReason) {
        let _ = self.reason.set(reason);
        // Either the task that makes the token now sees the reason, or this one sees the token.
        fence(Ordering::SeqCst);
        if let Some(ended) = self.ended.get() {
            ended.cancel();
        }
    }

    /// Returns the token that is cancelled when the lease ends.
    pub(crate) fn ended(&self) -> &CancellationToken {
        let ended = self.ended.get_or_init(CancellationToken::new);
        fence(Ordering::SeqCst);
        if self.reason.get().is_some() {
            ended.cancel();
        }
        ended
    }

    /// Resolves when the lease has ended, with the reason. The clock alone suffices: no other task
    /// need run.
    pub(crate) async fn until_end(&self, clock: &dyn Clock) -> EndReason {
        loop {
            tokio::select! {
                biased;
                () = self.ended().cancelled() => {}
                () = clock.sleep_until(self.valid_until()) => {}
            }
            // A renewal may have moved the deadline meanwhile.
            if let Some(reason) = self.end_reason(clock.now()) {
                self.end(reason);
                return self.reason.get().copied().unwrap_or(reason);
            }
        }
    }

    /// Reason of its end, by the clock or by an answer; `None` while it stands.
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
