//! State that the clones of a layer share: its settings, and how a request gets its lease.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure::{Acquire, BootTime, Error, ErrorKind, Guard, Holder, Locker, Name, ReleaseOutcome, Waiting};

use crate::join::Joins;
use crate::key::Key;
use crate::policy::{Duplicate, Keyless, OnOutage, RefuseWith};
use crate::problem::Problem;
use crate::stats::{Event, Stats};
use crate::traffic::{Cause, Traffic, Turn};

/// Time between two warnings of one kind.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) stats: Stats,
    pub(crate) joins: Arc<Joins>,
    traffic: Traffic,
    unlocked: Warnings,
    refused: Warnings,
    overloaded: Warnings,
    lost: Warnings,
}

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) locks: Locker,
    pub(crate) prefix: String,
    pub(crate) key: Key,
    pub(crate) on_outage: OnOutage,
    pub(crate) duplicate: Duplicate,
    pub(crate) refuse_with: RefuseWith,
    pub(crate) keyless: Keyless,
    pub(crate) ttl: Option<Duration>,
    pub(crate) cool_down: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) in_flight: usize,
    pub(crate) max_key: usize,
    pub(crate) digests: bool,
    pub(crate) copy_limit: usize,
}

/// Warnings of one kind: one at once, and then one in a while. An outage may concern thousands of requests a
/// second.
#[derive(Debug, Default)]
struct Warnings {
    /// Requests since the last warning.
    requests: AtomicU64,
    /// Time of the next warning, in milliseconds since boot.
    quiet_until: AtomicU64,
}

/// Outcome of the way in.
pub(crate) enum Entry {
    Locked(Guard),
    Unlocked,
    Refused(Problem),
}

impl Settings {
    pub(crate) fn acquire(&self, name: &Name) -> Acquire {
        let mut acquire = self.locks.mutex(name).min_hold(self.cool_down).wait(self.wait());
        if let Some(ttl) = self.ttl {
            acquire = acquire.ttl(ttl);
        }
        if let Some(max) = self.max_hold {
            acquire = acquire.max_hold(max);
        }
        acquire
    }

    /// Time for which a request may wait for its key.
    fn wait(&self) -> Duration {
        if let Duplicate::Wait(limit) = self.duplicate { limit } else { Duration::ZERO }
    }

    /// Longest time of one call to the store. A first lease covers the cool-down.
    pub(crate) fn call_limit(&self) -> Duration {
        self.locks.store().features().limit(self.ttl.map_or(Duration::MAX, |ttl| ttl.max(self.cool_down)))
    }

    /// Makes the name of a key at the store.
    pub(crate) fn name(&self, key: &str) -> Result<Name, Problem> {
        const TOO_LONG: Problem = Problem::BadKey("The key is too long.");
        const ODD: Problem = Problem::BadKey("The key has control characters.");
        let most = self.locks.store().features().max_name;
        let is_long = key.len() > self.max_key;
        if is_long && !self.digests {
            return Err(TOO_LONG);
        }
        let whole = self.prefix.len() + 1 + key.len();
        if whole > Name::MAX_BYTES || (whole > most && !self.digests) {
            return Err(TOO_LONG);
        }
        let name = Name::new(format!("{}:{key}", self.prefix)).map_err(|_| ODD)?;
        if !self.digests {
            return Ok(name);
        }
        // Names that pose as digests are digested as well.
        let room = if is_long { most.min(self.prefix.len() + 1 + self.max_key) } else { most };
        Name::new(name.short_key(room, |_| true)).map_err(|_| ODD)
    }
}

impl Shared {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            traffic: Traffic::new(settings.locks.clone(), settings.in_flight, settings.call_limit()),
            settings,
            stats: Stats::default(),
            joins: Arc::default(),
            unlocked: Warnings::default(),
            refused: Warnings::default(),
            overloaded: Warnings::default(),
            lost: Warnings::default(),
        }
    }

    /// Takes the lease of a request.
    ///
    /// # Cancel safety
    /// A dropped future leaves nothing behind, as [`Acquire::acquire`] does not.
    pub(crate) async fn enter(&self, name: &Name) -> Entry {
        let (began, wait) = (BootTime::now(), self.settings.wait());
        let turn = match self.traffic.turn(wait).await {
            Ok(turn) => turn,
            Err(cause) => return self.refused(name, &Error::unreachable("the request got no turn at the store in time"), cause),
        };
        let asked = BootTime::now();
        let left = wait.saturating_sub(asked.since(began));
        match self.acquire(name, left, turn).await {
            Ok(guard) => {
                self.stats.count(Event::Granted);
                self.warn_of_the_rest();
                Entry::Locked(guard)
            }
            Err(error) if error.is_transient() => {
                let cause = self.traffic.verdict(&error, asked, left);
                self.refused(name, &error, cause)
            }
            Err(error) => self.refused(name, &error, Cause::Overload),
        }
    }

    /// Keeps the turn for the first call: until the store has answered, or has not in time. Then a request that waits
    /// for its key needs none.
    async fn acquire(&self, name: &Name, wait: Duration, turn: Turn) -> Result<Guard, Error> {
        let acquire = self.settings.acquire(name);
        if wait.is_zero() {
            let guard = acquire.wait(wait).acquire().await;
            drop(turn);
            return guard;
        }
        let (stats, turn, waited) = (self.stats.clone(), Mutex::new(Some(turn)), AtomicBool::new(false));
        let observer = move |event: Waiting<'_>| {
            drop(turn.lock().unwrap_or_else(PoisonError::into_inner).take());
            if matches!(event, Waiting::Busy(_)) && !waited.swap(true, Ordering::Relaxed) {
                stats.count(Event::Waited);
            }
        };
        acquire.wait(wait).on_wait(observer).acquire().await
    }

    fn refused(&self, name: &Name, error: &Error, cause: Cause) -> Entry {
        let (event, problem) = match error.kind() {
            ErrorKind::TimedOut => (Event::Refused, self.taken(error.holder())),
            ErrorKind::Invalid => (Event::Invalid, Problem::BadKey("The key cannot be used.")),
            _ if error.is_transient() && cause == Cause::Overload => {
                if let Some(requests) = self.overloaded.add() {
                    let prefix = &*self.settings.prefix;
                    tracing::warn!(prefix, requests, %error, "requests were refused, because this process has more than the store answers");
                }
                (Event::Overloaded, Problem::Overloaded)
            }
            _ if error.is_transient() && self.settings.on_outage == OnOutage::FailOpen => {
                self.stats.count(Event::FailedOpen);
                if let Some(requests) = self.unlocked.add() {
                    let prefix = &*self.settings.prefix;
                    tracing::warn!(prefix, requests, %error, "requests were served without a lock, because the store is gone");
                }
                return Entry::Unlocked;
            }
            _ => {
                let is_outage = error.is_transient();
                if let Some(requests) = self.refused.add() {
                    tracing::warn!(?name, requests, %error, "requests were refused, because their locks cannot be taken");
                }
                (Event::FailedClosed, if is_outage { Problem::StoreUnavailable } else { Problem::StoreRefused })
            }
        };
        self.stats.count(event);
        Entry::Refused(problem)
    }

    fn taken(&self, holder: Option<&Holder>) -> Problem {
        let with = self.settings.refuse_with;
        match holder {
            Some(holder) if holder.owner.lingers_after().is_some() => Problem::CoolDown(with, holder.ttl),
            Some(holder) => {
                let left = holder.age.map(|age| self.settings.cool_down.saturating_sub(age));
                Problem::InProgress(with, left.filter(|left| !left.is_zero()))
            }
            None => Problem::InProgress(with, None),
        }
    }

    /// Releases the lease of a request that was served.
    ///
    /// # Cancel safety
    /// A dropped future leaves the release to the background.
    pub(crate) async fn release(&self, guard: Guard) {
        let name = guard.name().clone();
        match guard.release().await {
            Ok(ReleaseOutcome::WasLost) => {
                let error = Error::new(ErrorKind::Lost, "the lease had ended before it was released");
                self.note_lost(&name, &error);
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(?name, %error, "a lock was not released; it is free after its ttl"),
        }
    }

    pub(crate) fn note_lost(&self, name: &Name, error: &Error) {
        self.stats.count(Event::Lost);
        if let Some(requests) = self.lost.add() {
            tracing::warn!(?name, requests, %error, "locks were lost while their requests were served");
        }
    }

    /// Warns of the requests after the last warning of an outage that is over.
    fn warn_of_the_rest(&self) {
        let prefix = &*self.settings.prefix;
        if let Some(requests) = self.unlocked.rest() {
            tracing::warn!(prefix, requests, "more requests were served without a lock; the store answers again");
        }
        if let Some(requests) = self.refused.rest() {
            tracing::warn!(prefix, requests, "more requests were refused; the store answers again");
        }
        if let Some(requests) = self.overloaded.rest() {
            tracing::warn!(prefix, requests, "more requests were refused, because this process had more than the store answers");
        }
        if let Some(requests) = self.lost.rest() {
            tracing::warn!(prefix, requests, "more locks were lost; the store answers again");
        }
    }
}

impl Warnings {
    /// Counts a request. Returns how many a warning is to name, if one is due.
    fn add(&self) -> Option<u64> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.due()
    }

    /// Returns how many requests no warning has named, if one is due.
    fn rest(&self) -> Option<u64> {
        if self.requests.load(Ordering::Relaxed) == 0 { None } else { self.due() }
    }

    fn due(&self) -> Option<u64> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let now = millis(BootTime::now().since_boot());
        let quiet_until = self.quiet_until.load(Ordering::Relaxed);
        let next = now.saturating_add(millis(BETWEEN_WARNINGS));
        let ours = now >= quiet_until
            && self.quiet_until.compare_exchange(quiet_until, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        ours.then(|| self.requests.swap(0, Ordering::Relaxed)).filter(|requests| *requests > 0)
    }
}
