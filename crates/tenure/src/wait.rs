//! The wait for a lock: one token on its way to the store, and what to do between looks.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};

use crate::acquire::{Acquire, Waiting};
use crate::book::Orphan;
use crate::locker::{Core, FIRST_CONTACT};
use crate::tenure::Terms;
use crate::{Acquired, BootTime, Busy, Error, ErrorKind, Grant, Guard, Holder, Lease, Name, Notice, Place, Request, Share};

/// One owner token on its way to the store. What it may have left there is cleared up when it is dropped unfinished.
pub(crate) struct Attempt<'a> {
    core: &'a Arc<Core>,
    pub(crate) request: Request,
    /// The token may be in place at the store, or may still get there.
    dirty: bool,
    /// A try had no answer. Where the store has late commands, it may still run after all that is sent later.
    unheard: bool,
}

impl<'a> Attempt<'a> {
    fn new(core: &'a Arc<Core>, request: Request) -> Self {
        Self { core, request, dirty: false, unheard: false }
    }

    pub(crate) async fn send(&mut self) -> Result<Acquired, Error> {
        let was_unheard = std::mem::replace(&mut self.unheard, true);
        let was_dirty = std::mem::replace(&mut self.dirty, true);
        let answer = self.core.attempt(&self.request).await;
        self.unheard = was_unheard || matches!(&answer, Err(error) if error.may_have_been_applied());
        self.dirty = match &answer {
            Ok(Acquired::Granted(_)) => true,
            // Busy says that the token is not there, unless an unheard try may still come.
            Ok(_) => self.unheard && self.core.store.features().late_commands,
            Err(error) => was_dirty || error.may_have_been_applied(),
        };
        answer
    }

    pub(crate) fn won(&mut self, terms: Terms, sent_at: BootTime, grant: &Grant) -> Option<Guard> {
        let guard = self.core.granted(&self.request, self.unheard, terms, sent_at, grant)?;
        self.dirty = false;
        Some(guard)
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let Request { name, owner, share, ttl, .. } = &self.request;
        // A given value may be another's claim: only what carries our own random bits is ours to clear up.
        if self.dirty && self.request.repeatable {
            let lease = Lease { name: name.clone(), owner: owner.clone(), share: *share, ttl: *ttl, fence: None };
            let now = self.core.clock.now();
            self.core.watchdog.clear(Orphan { lease, lingers_until: now, until: now + *ttl, late: self.unheard, once: false });
        }
    }
}

pub(crate) enum Look {
    Won(Guard),
    Again(Duration),
}

/// How often a waiter looks, whatever it was told: not so often that it starves others, nor so seldom that it has left.
const RECHECK: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(3_600);

/// The state of one waiting acquisition.
pub(crate) struct Wait<'a> {
    settings: &'a Acquire,
    core: &'a Arc<Core>,
    pub(crate) attempt: Attempt<'a>,
    terms: Terms,
    started: BootTime,
    notices: Option<BoxStream<'static, Notice>>,
    holder: Option<Holder>,
    /// Since when this holder has been seen.
    seen: BootTime,
    outage: bool,
}

impl<'a> Wait<'a> {
    pub(crate) fn new(settings: &'a Acquire, name: Name) -> Result<Self, Error> {
        let core = &settings.core;
        let terms = settings.terms();
        // The first lease covers the shortest hold even if the holder crashes at once.
        let ttl = terms.ttl.max(terms.min_hold);
        let (owner, repeatable) = (settings.owner()?, settings.token.is_none());
        let request = Request { name, owner, share: Share::MUTEX, ttl, place: Place::None, repeatable, from: None };
        let attempt = Attempt::new(core, request);
        let started = core.clock.now();
        Ok(Self { settings, core, attempt, terms, started, notices: None, holder: None, seen: started, outage: false })
    }

    /// One attempt, and what to do next.
    pub(crate) async fn look(&mut self) -> Result<Look, Error> {
        let sent_at = self.core.clock.now();
        match self.attempt.send().await {
            Ok(Acquired::Granted(grant)) => {
                self.recovered();
                match self.attempt.won(self.terms, sent_at, &grant) {
                    Some(guard) => Ok(Look::Won(guard)),
                    None => self.start_over(),
                }
            }
            Ok(Acquired::Busy(busy)) => {
                self.recovered();
                self.busy(busy).await
            }
            Ok(Acquired::Refused { until, why }) => self.again(until, || Error::unavailable(why)),
            Err(error) if error.is_transient() => self.outage(error),
            Err(error) => Err(error),
        }
    }

    /// The grant came when nothing of it could be believed any more. Its token goes to the clean-up and is never used again.
    fn start_over(&mut self) -> Result<Look, Error> {
        let request = Request { owner: self.settings.owner()?, ..self.attempt.request.clone() };
        if !request.repeatable {
            return Err(Error::unreachable("the grant arrived too late to be believed").maybe_applied());
        }
        self.attempt = Attempt::new(self.core, request);
        self.again(Duration::ZERO, || Error::unreachable("the grant arrived too late to be believed"))
    }

    async fn busy(&mut self, busy: Busy) -> Result<Look, Error> {
        let changed = self.holder.as_ref().map(|h| &h.owner) != busy.holder.as_ref().map(|h| &h.owner);
        if changed || self.notices.is_none() {
            self.settings.observe(Waiting::Busy(busy.holder.as_ref()));
        }
        let now = self.core.clock.now();
        if changed {
            self.seen = now;
        }
        self.holder = busy.holder.map(|holder| Holder { age: holder.age.or(Some(now.since(self.seen))), ..holder });
        if self.left().is_some_and(|left| left.is_zero()) {
            return Err(self.timed_out());
        }
        if self.notices.is_none() {
            // Between the look that found it busy and the arming of the watch the name may have become free.
            self.notices = Some(armed(self.core, &self.attempt.request).await);
            return Ok(Look::Again(Duration::ZERO));
        }
        let every = self
            .settings
            .recheck
            .unwrap_or(busy.recheck)
            .clamp(*RECHECK.start(), *RECHECK.end())
            .mul_f64(0.8 + fastrand::f64() * 0.4);
        // A lease that nobody renews ends at a known time: be there, not a whole interval later.
        let ends = self.holder.as_ref().and_then(|h| h.ttl).map_or(every, |ttl| ttl + Duration::from_millis(1));
        self.again(every.min(ends), || self.timed_out())
    }

    fn outage(&mut self, error: Error) -> Result<Look, Error> {
        if !self.attempt.request.repeatable && error.may_have_been_applied() {
            return Err(error.fix("the value was given, so another may hold it too: look at the store before trying again"));
        }
        let waited = self.core.clock.now().since(self.started);
        let never_answered = !self.core.answered.load(Ordering::Relaxed);
        if (never_answered && waited >= FIRST_CONTACT) || self.left().is_some_and(|left| left.is_zero()) {
            return Err(error);
        }
        if !self.outage {
            self.outage = true;
            self.settings.observe(Waiting::Outage(&error));
        }
        let pause = (self.core.operation_timeout(self.terms.ttl) / 4).min(Duration::from_millis(250));
        self.again(pause.mul_f64(0.75 + fastrand::f64() / 2.0), || error)
    }

    fn recovered(&mut self) {
        if std::mem::take(&mut self.outage) {
            self.settings.observe(Waiting::Recovered);
        }
    }

    /// Another look after `pause`, the last one at the end of the wait; `error` if that has come.
    fn again(&self, pause: Duration, error: impl FnOnce() -> Error) -> Result<Look, Error> {
        match self.left() {
            Some(left) if left.is_zero() => Err(error()),
            Some(left) => Ok(Look::Again(pause.min(left))),
            None => Ok(Look::Again(pause)),
        }
    }

    /// Sleeps, unless a notice says that it is worth a look before.
    pub(crate) async fn pause(&mut self, pause: Duration) {
        if pause.is_zero() {
            return;
        }
        let until = self.core.clock.now() + pause;
        let sleep = self.core.clock.sleep_until(until);
        let Some(notices) = &mut self.notices else { return sleep.await };
        tokio::select! {
            biased;
            () = sleep => {}
            notice = notices.next() => {
                // A stream that has ended says nothing any more; the re-check goes on.
                if notice.is_none() {
                    self.notices = Some(stream::pending().boxed());
                }
            }
        }
    }

    fn left(&self) -> Option<Duration> {
        self.settings.wait.map(|wait| (self.started + wait).since(self.core.clock.now()))
    }

    fn timed_out(&self) -> Error {
        let name = &self.attempt.request.name;
        let by = self.holder.as_ref().map_or_else(String::new, |holder| format!(" by {holder}"));
        let waited = self.settings.wait.unwrap_or_default();
        let what = if waited.is_zero() {
            format!("{name:?} is held{by}")
        } else {
            format!("{name:?} was still held{by} after {waited:?}")
        };
        Error::new(ErrorKind::TimedOut, what).held_by(self.holder.clone())
    }
}

/// The store's hints for a request, or silence where it cannot give any: a wait without hints is slower, not wrong.
async fn armed(core: &Core, request: &Request) -> BoxStream<'static, Notice> {
    core.limited(request.ttl, core.store.watch(request)).await.unwrap_or_else(|_| stream::pending().boxed())
}
