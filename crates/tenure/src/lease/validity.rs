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
pub(crate) struct Kept {
    pub(crate) share: Share,
    pub(crate) ttl: Duration,
    pub(crate) fence: Option<Fence>,
}

/// One held lease.
#[derive(Debug)]
pub(crate) struct Tenure {
    pub(crate) name: Name,
    pub(crate) owner: Owner,
    kept: Mutex<Kept>,
    pub(crate) terms: Terms,
    /// When it was asked for.
    pub(crate) since: BootTime,
    /// When the store's grant was heard of, or asked for: a cohort's turn begins.
    granted_at: BootTime,
    /// When it is renewed for the first time, if it is.
    pub(crate) renew_at: BootTime,
    /// What operators see of the holder.
    pub(crate) label: Arc<str>,
    pub(crate) minted: bool,
    /// An acquire of this token had no answer, and may still run.
    pub(crate) late: bool,
    believed_until: AtomicU64,
    store_until: AtomicU64,
    /// Until when nobody else can have the name, whatever the clocks do: belief without the time to stop work, and without a cap.
    alone_until: AtomicU64,
    /// When it ends however well renewals go; the largest number for never.
    cap: AtomicU64,
    jeopardy: AtomicBool,
    /// It claims less than the store may keep: no answer has told that the share shrank.
    shrinking: AtomicBool,
    pub(crate) ended: CancellationToken,
    loss: OnceLock<EndReason>,
    /// Somebody has taken it on to give the name up, or to pass it on.
    given_up: AtomicBool,
    /// No work has begun under it: no pause is due when it is given up.
    idle: AtomicBool,
    /// How many guards stand for it.
    guards: AtomicUsize,
}

/// For how long a lease passes from task to task of one process before it goes through the store, where others may wait.
const TURN: Duration = Duration::from_millis(10);

impl Tenure {
    /// The tenure of a lease that a request sent at `sent_at` was granted for `granted`.
    pub(crate) fn new(lease: Lease, terms: Terms, label: Arc<str>, sent_at: BootTime, granted: Duration) -> Self {
        let renew_at = sent_at + lease.ttl / 3;
        let tenure = Self { renew_at, ..Self::unbelieved(lease, terms, label, sent_at) };
        tenure.believe(sent_at, granted);
        tenure
    }

    /// The tenure of a lease that was handed to a waiter for `claim`, after the store had executed what the waiter sent at
    /// `heard`. Until it is renewed it leaves a tenth of the claim to stop work.
    pub(crate) fn handed(lease: Lease, terms: Terms, label: Arc<str>, heard: BootTime, claim: Duration, now: BootTime) -> Self {
        let tenure = Self { granted_at: now, ..Self::unbelieved(lease, terms, label, heard) };
        tenure.believe_by(&terms.claimed(claim), heard, claim);
        Self { renew_at: now + (claim / 3).min(tenure.believed_until().since(now) / 3), ..tenure }
    }

    fn unbelieved(lease: Lease, terms: Terms, label: Arc<str>, since: BootTime) -> Self {
        let Lease { name, owner, share, ttl, fence } = lease;
        Self {
            name,
            owner,
            kept: Mutex::new(Kept { share, ttl, fence }),
            cap: AtomicU64::new(terms.max_hold.map_or(u64::MAX, |max| nanos(since + max))),
            terms,
            since,
            granted_at: since,
            renew_at: since,
            label,
            minted: true,
            late: false,
            believed_until: AtomicU64::new(0),
            store_until: AtomicU64::new(0),
            alone_until: AtomicU64::new(0),
            jeopardy: AtomicBool::new(false),
            shrinking: AtomicBool::new(false),
            ended: CancellationToken::new(),
            loss: OnceLock::new(),
            given_up: AtomicBool::new(false),
            idle: AtomicBool::new(false),
            guards: AtomicUsize::new(1),
        }
    }

    /// Until when the lease may pass from task to task without the store. No time at all, where it never may.
    pub(crate) fn turn_ends(&self) -> BootTime {
        let Terms { ttl, renews, min_hold, linger, .. } = self.terms;
        let plain = renews && self.cap.load(Ordering::Acquire) == u64::MAX && min_hold.is_zero() && linger.is_zero();
        let kept = self.kept();
        let passes = self.minted && plain && kept.ttl == ttl && kept.share.is_exclusive();
        if passes { self.granted_at + TURN } else { self.granted_at }
    }

    /// The same lease as the next task of the process has it, with the next fence. `None` where it has to go through the store:
    /// the turn is over, the fence leaves no room, or what was asked for it is not what the next one asks for.
    pub(crate) fn successor(&self, now: BootTime) -> Option<Self> {
        if self.loss(now).is_some() || now >= self.turn_ends() {
            return None;
        }
        let mut lease = self.lease();
        lease.fence = Some(lease.fence?.next()?);
        let blank = Self::unbelieved(lease, self.terms, Arc::clone(&self.label), self.since);
        let next = Self { late: self.late, granted_at: self.granted_at, ..blank };
        for (to, from) in [
            (&next.believed_until, &self.believed_until),
            (&next.store_until, &self.store_until),
            (&next.alone_until, &self.alone_until),
        ] {
            to.store(from.load(Ordering::Acquire), Ordering::Release);
        }
        next.jeopardy.store(self.jeopardy.load(Ordering::Acquire), Ordering::Release);
        Some(next)
    }

    pub(crate) fn lease(&self) -> Lease {
        let Kept { share, ttl, fence } = self.kept();
        Lease::new(self.name.clone(), self.owner.clone(), share, ttl).with_fence(fence)
    }

    pub(crate) fn kept(&self) -> Kept {
        *self.kept_mut()
    }

    fn kept_mut(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over that a lease of `ttl`, asked for at `sent_at`, was granted. Never shortens a belief.
    pub(crate) fn believe(&self, sent_at: BootTime, ttl: Duration) {
        self.believe_by(&self.terms, sent_at, ttl);
    }

    fn believe_by(&self, terms: &Terms, sent_at: BootTime, ttl: Duration) {
        let until = nanos(sent_at + terms.belief(ttl)).min(self.cap.load(Ordering::Acquire));
        self.believed_until.fetch_max(until, Ordering::AcqRel);
        self.alone_until.fetch_max(nanos(sent_at + terms.certain(ttl)), Ordering::AcqRel);
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
    pub(crate) fn give_up(&self) -> bool {
        !self.given_up.swap(true, Ordering::AcqRel)
    }

    /// Whether the value at the store may be another's, who was given the same, when a command that is sent now has run within
    /// `limit`. Never for a value with random bits of our own.
    pub(crate) fn may_be_anothers(&self, now: BootTime, limit: Duration) -> bool {
        let alone_until = BootTime::from_boot(Duration::from_nanos(self.alone_until.load(Ordering::Acquire)));
        !self.minted && (self.loss.get() == Some(&EndReason::Gone) || now + limit >= alone_until)
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
        self.believed_until.fetch_min(nanos(at), Ordering::AcqRel);
    }

    /// From now on it claims no more than `share`, whatever the store still keeps. It never grows again.
    pub(crate) fn shrink(&self, share: Share) {
        let mut kept = self.kept_mut();
        if share.weight() < kept.share.weight() {
            kept.share = share;
            self.shrinking.store(true, Ordering::Release);
        }
    }

    /// The store keeps `share` and no more.
    pub(crate) fn shrunk(&self, share: Share) {
        let kept = self.kept_mut();
        if share.weight() <= kept.share.weight() {
            self.shrinking.store(false, Ordering::Release);
        }
    }

    /// Whether the store may keep more than is claimed.
    pub(crate) fn is_shrinking(&self) -> bool {
        self.shrinking.load(Ordering::Acquire)
    }

    /// Takes over the number of another grant to the same owner, unless an answer that came before had a later one.
    pub(crate) fn set_fence(&self, fence: Option<Fence>) {
        let mut kept = self.kept_mut();
        kept.fence = kept.fence.max(fence);
    }

    /// From now on renewals are for `ttl`.
    pub(crate) fn set_ttl(&self, ttl: Duration) {
        self.kept_mut().ttl = ttl;
    }

    pub(crate) fn doubt(&self) {
        self.jeopardy.store(true, Ordering::Release);
    }

    pub(crate) fn believed_until(&self) -> BootTime {
        BootTime::from_boot(Duration::from_nanos(self.believed_until.load(Ordering::Acquire)))
    }

    /// Whether belief ends in time to stop work as the terms say. Not before a lease that was handed over has been renewed.
    pub(crate) fn leaves_time(&self) -> bool {
        let alone_until = BootTime::from_boot(Duration::from_nanos(self.alone_until.load(Ordering::Acquire)));
        self.believed_until() + self.terms.safety_margin <= alone_until
    }

    /// When the lease ends at the store if nothing renews it, as far as answers tell.
    pub(crate) fn store_until(&self) -> BootTime {
        BootTime::from_boot(Duration::from_nanos(self.store_until.load(Ordering::Acquire)))
    }

    /// Why belief ends at its deadline.
    pub(crate) fn deadline_loss(&self) -> EndReason {
        if nanos(self.believed_until()) >= self.cap.load(Ordering::Acquire) { EndReason::MaxHold } else { EndReason::Expired }
    }

    /// Ends the tenure, once: the first reason stays.
    pub(crate) fn end(&self, loss: EndReason) {
        let _ = self.loss.set(loss);
        self.ended.cancel();
    }

    /// Resolves when the tenure has ended, with the reason. The clock alone suffices: no other task need be alive.
    pub(crate) async fn over(&self, clock: &dyn Clock) -> EndReason {
        loop {
            tokio::select! {
                biased;
                () = self.ended.cancelled() => {}
                () = clock.sleep_until(self.believed_until()) => {}
            }
            // A renewal may have moved the deadline meanwhile.
            if let Some(loss) = self.loss(clock.now()) {
                self.end(loss);
                return self.loss.get().copied().unwrap_or(loss);
            }
        }
    }

    /// Why it ended, by the clock or by what was told; `None` while it stands.
    pub(crate) fn loss(&self, now: BootTime) -> Option<EndReason> {
        self.loss.get().copied().or_else(|| (now >= self.believed_until()).then(|| self.deadline_loss()))
    }

    pub(crate) fn state(&self, now: BootTime) -> State {
        match self.loss(now) {
            Some(_) => State::Lost,
            None if self.jeopardy.load(Ordering::Acquire) => State::Jeopardy,
            None => State::Held,
        }
    }
}

fn nanos(at: BootTime) -> u64 {
    u64::try_from(at.since_boot().as_nanos()).unwrap_or(u64::MAX)
}
