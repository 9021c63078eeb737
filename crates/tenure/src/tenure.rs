//! What a guard and the watchdog share about one held lease.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::{BootTime, Clock, Lease};

/// How sure a holder may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
pub enum Loss {
    /// The time for which it could be believed ran out without a renewal.
    Expired,
    /// The store says that it is this owner's no longer: deleted, flushed, evicted or taken over.
    Gone,
    /// It had lasted for the longest hold that was allowed.
    MaxHold,
    /// The holder gave it up itself.
    GivenUp,
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Expired => "the lease ran out without an answer to its renewals",
            Self::Gone => "the store says it is no longer ours: it was broken, flushed or evicted",
            Self::MaxHold => "it had lasted for the longest hold allowed",
            Self::GivenUp => "the holder gave it up",
        })
    }
}

/// How long a lease is asked for and believed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    /// The part of every second by which clocks may run apart.
    pub(crate) drift: f64,
    /// Time to stop work between the end of belief and the end of the lease.
    pub(crate) guard: Duration,
    pub(crate) renews: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Duration,
}

impl Terms {
    /// Clocks are read in whole milliseconds at either end.
    const GRAIN: Duration = Duration::from_millis(2);

    /// For how long after the request was *sent* a lease of `ttl` certainly stands, if nobody breaks it.
    fn certain(&self, ttl: Duration) -> Duration {
        ttl.saturating_sub(ttl.mul_f64(self.drift)).saturating_sub(Self::GRAIN)
    }

    /// For how long after the request was *sent* a lease of `ttl` may be believed.
    pub(crate) fn belief(&self, ttl: Duration) -> Duration {
        self.certain(ttl).saturating_sub(self.guard)
    }
}

/// One held lease.
#[derive(Debug)]
pub(crate) struct Tenure {
    lease: Mutex<Lease>,
    pub(crate) terms: Terms,
    pub(crate) since: BootTime,
    pub(crate) minted: bool,
    /// An acquire of this token had no answer, and may still run.
    pub(crate) late: bool,
    believed_until: AtomicU64,
    store_until: AtomicU64,
    /// Until when nobody else can have the name, whatever the clocks do: belief without the time to stop work, and without a cap.
    alone_until: AtomicU64,
    jeopardy: AtomicBool,
    pub(crate) ended: CancellationToken,
    loss: OnceLock<Loss>,
    /// Somebody has taken it on to give the name up, or to pass it on.
    given_up: AtomicBool,
}

impl Tenure {
    /// The tenure of a lease that a request sent at `sent_at` was granted for `granted`.
    pub(crate) fn new(lease: Lease, terms: Terms, sent_at: BootTime, granted: Duration) -> Self {
        let tenure = Self {
            terms,
            since: sent_at,
            minted: true,
            late: false,
            believed_until: AtomicU64::new(0),
            store_until: AtomicU64::new(0),
            alone_until: AtomicU64::new(0),
            jeopardy: AtomicBool::new(false),
            ended: CancellationToken::new(),
            loss: OnceLock::new(),
            given_up: AtomicBool::new(false),
            lease: Mutex::new(lease),
        };
        tenure.believe(sent_at, granted);
        tenure
    }

    pub(crate) fn lease(&self) -> Lease {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes over that a lease of `ttl`, asked for at `sent_at`, was granted. Never shortens a belief.
    pub(crate) fn believe(&self, sent_at: BootTime, ttl: Duration) {
        let cap = self.terms.max_hold.map_or(u64::MAX, |max| nanos(self.since + max));
        let until = nanos(sent_at + self.terms.belief(ttl)).min(cap);
        self.believed_until.fetch_max(until, Ordering::AcqRel);
        self.alone_until.fetch_max(nanos(sent_at + self.terms.certain(ttl)), Ordering::AcqRel);
        self.store_until.fetch_max(nanos(sent_at + ttl), Ordering::AcqRel);
        self.jeopardy.store(false, Ordering::Release);
    }

    /// True for the one who may give the name up: a token is released once, and never used after.
    pub(crate) fn give_up(&self) -> bool {
        !self.given_up.swap(true, Ordering::AcqRel)
    }

    /// Whether the value at the store may be another's, who was given the same, when a command that is sent now has run within
    /// `limit`. Never for a value with random bits of our own.
    pub(crate) fn may_be_anothers(&self, now: BootTime, limit: Duration) -> bool {
        let alone_until = BootTime::from_boot(Duration::from_nanos(self.alone_until.load(Ordering::Acquire)));
        !self.minted && (self.loss.get() == Some(&Loss::Gone) || now + limit >= alone_until)
    }

    /// What is left of the shortest hold.
    pub(crate) fn min_hold_left(&self, now: BootTime) -> Duration {
        (self.since + self.terms.min_hold).since(now)
    }

    /// From now on renewals are for `ttl`.
    pub(crate) fn set_ttl(&self, ttl: Duration) {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner).ttl = ttl;
    }

    pub(crate) fn doubt(&self) {
        self.jeopardy.store(true, Ordering::Release);
    }

    pub(crate) fn believed_until(&self) -> BootTime {
        BootTime::from_boot(Duration::from_nanos(self.believed_until.load(Ordering::Acquire)))
    }

    /// When the lease ends at the store if nothing renews it, as far as answers tell.
    pub(crate) fn store_until(&self) -> BootTime {
        BootTime::from_boot(Duration::from_nanos(self.store_until.load(Ordering::Acquire)))
    }

    /// Why belief ends at its deadline.
    pub(crate) fn deadline_loss(&self) -> Loss {
        match self.terms.max_hold {
            Some(max) if self.believed_until() >= self.since + max => Loss::MaxHold,
            _ => Loss::Expired,
        }
    }

    /// Ends the tenure, once: the first reason stays.
    pub(crate) fn end(&self, loss: Loss) {
        let _ = self.loss.set(loss);
        self.ended.cancel();
    }

    /// Resolves when the tenure has ended, with the reason. The clock alone suffices: no other task need be alive.
    pub(crate) async fn over(&self, clock: &dyn Clock) -> Loss {
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
    pub(crate) fn loss(&self, now: BootTime) -> Option<Loss> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Name, Owner, Share};

    fn tenure(terms: Terms) -> Tenure {
        let (name, owner) = (Name::new("n").unwrap(), Owner::mint("").unwrap());
        let lease = Lease { name, owner, share: Share::MUTEX, ttl: terms.ttl, fence: None };
        Tenure::new(lease, terms, at(100), terms.ttl)
    }

    fn at(seconds: u64) -> BootTime {
        BootTime::from_boot(Duration::from_secs(seconds))
    }

    const TERMS: Terms = Terms {
        ttl: Duration::from_secs(30),
        drift: 0.01,
        guard: Duration::from_secs(3),
        renews: true,
        max_hold: None,
        min_hold: Duration::ZERO,
    };

    #[test]
    fn belief_counts_from_the_send_less_drift_and_guard() {
        let tenure = tenure(TERMS);
        assert_eq!(tenure.believed_until(), at(100) + Duration::from_millis(30_000 - 300 - 2 - 3_000));
        assert_eq!(tenure.state(tenure.believed_until() - Duration::from_nanos(1)), State::Held);
        assert_eq!(tenure.loss(tenure.believed_until()), Some(Loss::Expired));
    }

    #[test]
    fn an_answer_to_an_older_request_does_not_shorten_belief() {
        let tenure = tenure(TERMS);
        tenure.believe(at(110), TERMS.ttl);
        let until = tenure.believed_until();
        tenure.believe(at(105), TERMS.ttl);
        assert_eq!(tenure.believed_until(), until);
    }

    #[test]
    fn max_hold_caps_what_renewals_give() {
        let tenure = tenure(Terms { max_hold: Some(Duration::from_secs(40)), ..TERMS });
        tenure.believe(at(130), TERMS.ttl);
        assert_eq!(tenure.believed_until(), at(140));
        assert_eq!(tenure.loss(at(140)), Some(Loss::MaxHold));
    }

    #[test]
    fn a_guard_above_the_ttl_leaves_nothing_to_believe() {
        let tenure = tenure(Terms { guard: Duration::from_secs(60), ..TERMS });
        assert_eq!(tenure.state(at(100)), State::Lost);
    }

    #[test]
    fn the_first_loss_is_the_one_told() {
        let tenure = tenure(TERMS);
        tenure.end(Loss::Gone);
        tenure.end(Loss::Expired);
        assert_eq!(tenure.loss(at(100)), Some(Loss::Gone));
        assert!(tenure.ended.is_cancelled());
    }

    #[test]
    fn only_a_longest_hold_that_was_reached_is_why_it_ended() {
        let terms = Terms { max_hold: Some(Duration::from_secs(40)), ..TERMS };
        let fixed = tenure(terms);
        assert_eq!(fixed.loss(fixed.believed_until()), Some(Loss::Expired));
        fixed.believe(at(111), TERMS.ttl);
        assert_eq!(fixed.deadline_loss(), Loss::Expired, "{:?}", fixed.believed_until());
    }

    #[test]
    fn a_name_is_given_up_by_one() {
        let tenure = tenure(TERMS);
        assert_eq!((tenure.give_up(), tenure.give_up()), (true, false));
    }

    #[test]
    fn a_given_value_is_certainly_ours_until_a_command_could_run_too_late() {
        let limit = Duration::from_secs(1);
        let mut tenure = tenure(TERMS);
        let alone_until = at(100) + Duration::from_millis(30_000 - 300 - 2);
        let before = alone_until - limit - Duration::from_nanos(1);
        assert!(!tenure.may_be_anothers(alone_until, limit), "random bits are nobody else's");
        tenure.minted = false;
        assert!(!tenure.may_be_anothers(before, limit));
        assert!(tenure.may_be_anothers(alone_until - limit, limit));
        tenure.end(Loss::MaxHold);
        assert!(!tenure.may_be_anothers(before, limit), "it was ended here, and stands at the store");
        let gone = Tenure { minted: false, ..self::tenure(TERMS) };
        gone.end(Loss::Gone);
        assert!(gone.may_be_anothers(at(100), limit), "the store says it is not ours");
    }

    #[test]
    fn what_was_answered_tells_when_the_store_forgets() {
        let tenure = tenure(Terms { min_hold: Duration::from_secs(20), ..TERMS });
        assert_eq!(tenure.store_until(), at(130));
        tenure.believe(at(110), Duration::from_secs(60));
        assert_eq!(tenure.store_until(), at(170));
        assert_eq!((tenure.min_hold_left(at(105)), tenure.min_hold_left(at(130))), (Duration::from_secs(15), Duration::ZERO));
    }

    #[test]
    fn doubt_is_jeopardy_until_the_next_answer() {
        let tenure = tenure(TERMS);
        tenure.doubt();
        assert_eq!(tenure.state(at(101)), State::Jeopardy);
        tenure.believe(at(110), TERMS.ttl);
        assert_eq!(tenure.state(at(111)), State::Held);
    }
}
