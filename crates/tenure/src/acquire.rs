//! Taking a lock: the settings of one acquisition, and the wait for it.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};

use crate::book::Orphan;
use crate::locker::{Core, FIRST_CONTACT};
use crate::tenure::Terms;
use crate::{
    Acquired, BootTime, Busy, Error, ErrorKind, Grant, Guard, Holder, Lease, Name, Notice, Owner, Place, Request, Share,
};

/// What a waiting acquisition meets; see [`Acquire::on_wait`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Waiting<'a> {
    /// Another holds the name. Told at first and whenever the holder changes.
    Busy(Option<&'a Holder>),
    /// The store gives no answer. Told once for each outage.
    Outage(&'a Error),
    /// The store answers again.
    Recovered,
}

type Observer = Box<dyn Fn(Waiting<'_>) + Send + Sync>;

/// One acquisition to be made. Nothing happens before [`acquire`](Acquire::acquire) or [`try_acquire`](Acquire::try_acquire).
#[must_use = "nothing is acquired before acquire() or try_acquire() is awaited"]
pub struct Acquire {
    core: Arc<Core>,
    name: Result<Name, Error>,
    terms: Terms,
    guard: Option<Duration>,
    wait: Option<Duration>,
    recheck: Option<Duration>,
    label: Option<String>,
    token: Option<Owner>,
    observer: Option<Observer>,
}

impl Acquire {
    pub(crate) fn new(core: Arc<Core>, name: Result<Name, Error>) -> Self {
        let terms = Terms {
            ttl: core.ttl,
            drift: core.drift,
            guard: Duration::ZERO,
            renews: true,
            max_hold: None,
            min_hold: Duration::ZERO,
        };
        let guard = core.guard;
        Self { core, name, terms, guard, wait: None, recheck: None, label: None, token: None, observer: None }
    }

    /// How long the lease lasts from each renewal, at the store.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.terms.ttl = ttl;
        self
    }

    /// Gives up after this long; zero tries once. Without it, [`acquire`](Acquire::acquire) waits for ever. A store that gives no
    /// answer may make it longer by one operation timeout.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// No renewal: the tenure ends with the first lease unless [`Guard::extend`] prolongs it.
    pub fn fixed_lease(mut self) -> Self {
        self.terms.renews = false;
        self
    }

    /// Ends the tenure after this long, however well renewals go.
    pub fn max_hold(mut self, max: Duration) -> Self {
        self.terms.max_hold = Some(max);
        self
    }

    /// Keeps the name taken for at least this long from the request, though the work is done or the holder has crashed: the first
    /// ttl is at least that long, and an earlier release leaves the name taken by nobody until then.
    pub fn min_hold(mut self, min: Duration) -> Self {
        self.terms.min_hold = min;
        self
    }

    /// How often to look again while nothing is heard from the store, instead of the store's own choice. Jitter is added.
    pub fn recheck(mut self, every: Duration) -> Self {
        self.recheck = Some(every);
        self
    }

    /// The label that operators see of this holder, instead of the locker's.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Uses a value that was given as the owner, instead of random bits of our own.
    ///
    /// Others may have been given the same value, so less is safe: finding it in place is busy; an acquisition or release without
    /// an answer is reported and neither repeated nor cleared up; a tenure that may have ended is not released, and none is adopted.
    /// A value of the shape of our own tokens is taken to have been made for one claim.
    pub fn token(mut self, token: Owner) -> Self {
        self.token = Some(token);
        self
    }

    /// The guard time of this lock, instead of the locker's.
    pub fn guard(mut self, guard: Duration) -> Self {
        self.guard = Some(guard);
        self
    }

    /// Has `observer` told what the wait meets.
    pub fn on_wait(mut self, observer: impl Fn(Waiting<'_>) + Send + Sync + 'static) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// Checks the settings without taking anything.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) or [`Unsupported`](ErrorKind::Unsupported), as the acquisition would answer.
    pub fn check(&self) -> Result<(), Error> {
        let name = self.name.as_ref().map_err(Error::copy)?;
        let features = self.core.store.features();
        if name.as_str().len() > features.max_name {
            let what = format!(
                "the lock name has {} bytes, more than the {} this store can keep",
                name.as_str().len(),
                features.max_name
            );
            return Err(Error::invalid(what).fix("use a shorter name, or a digest of it"));
        }
        if let Some(label) = &self.label {
            crate::owner::check_label(label)?;
        }
        check_terms(&self.core, &self.terms())
    }

    /// Takes the lock if nobody has it.
    ///
    /// # Errors
    /// The store's, or [`Invalid`](ErrorKind::Invalid) for settings that cannot work. That another holds it is `Ok(None)`.
    ///
    /// # Cancel safety
    /// A dropped future leaves nothing behind: what it may have taken is released in the background.
    pub async fn try_acquire(mut self) -> Result<Option<Guard>, Error> {
        self.wait = Some(Duration::ZERO);
        match self.acquire().await {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if error.kind() == ErrorKind::TimedOut => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes the lock, waiting for it as long as [`wait`](Acquire::wait) says.
    ///
    /// Once the store has answered, waiting rides out its outages; a store that never answered is given up after 5 s.
    ///
    /// # Errors
    /// [`TimedOut`](ErrorKind::TimedOut) when another held it all the while, the store's own error when the wait ended in an
    /// outage or the store refused, [`Invalid`](ErrorKind::Invalid) for settings that cannot work.
    ///
    /// # Cancel safety
    /// A dropped future leaves nothing behind: what it may have taken is released in the background.
    pub async fn acquire(self) -> Result<Guard, Error> {
        self.check()?;
        self.core.watchdog.tend();
        let name = self.name.as_ref().map_err(Error::copy)?.clone();
        let mut wait = Wait::new(&self, name)?;
        loop {
            match wait.look().await? {
                Look::Won(guard) => return Ok(guard),
                Look::Again(pause) => wait.pause(pause).await,
            }
        }
    }

    /// Takes over `lease`, once.
    pub(crate) async fn adopt(self, lease: &Lease) -> Result<Guard, Error> {
        self.check()?;
        if !lease.owner.is_ours() {
            let what =
                format!("the lease of {:?} has an owner that was given, and another may hold by the same value", lease.name);
            return Err(Error::invalid(what).fix("release it where it was taken, and take it again"));
        }
        self.core.watchdog.tend();
        let mut wait = Wait::new(&self, lease.name.clone())?;
        wait.attempt.request.from = Some(lease.owner.clone());
        wait.attempt.request.share = lease.share;
        let sent_at = self.core.clock.now();
        let lost = || crate::watchdog::gone().context(format_args!("{:?}", lease.name));
        match wait.attempt.send().await? {
            Acquired::Granted(grant) => wait.attempt.won(self.terms(), sent_at, &grant).ok_or_else(lost),
            Acquired::Busy(_) => Err(lost()),
            Acquired::Refused { why, .. } => Err(Error::unavailable(why)),
        }
    }

    fn terms(&self) -> Terms {
        let ttl = self.terms.ttl;
        Terms { guard: self.guard.unwrap_or(ttl / 10), ..self.terms }
    }

    fn owner(&self) -> Result<Owner, Error> {
        match &self.token {
            Some(token) => Ok(token.clone()),
            None => Owner::mint(self.label.as_deref().unwrap_or(&self.core.label)),
        }
    }

    fn observe(&self, what: Waiting<'_>) {
        if let Some(observer) = &self.observer {
            observer(what);
        }
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("name", &self.name)
            .field("terms", &self.terms)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

/// Longer spans overflow one store's arithmetic or another's.
const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Refuses a ttl that the store cannot keep.
pub(crate) fn check_ttl(core: &Core, ttl: Duration) -> Result<(), Error> {
    let min = core.store.features().min_ttl;
    if ttl < min {
        return Err(
            Error::invalid(format!("a ttl of {ttl:?} is shorter than the {min:?} this store can keep")).fix("use a longer ttl")
        );
    }
    check_span("ttl", ttl)
}

fn check_span(what: &str, span: Duration) -> Result<(), Error> {
    if span > CENTURY {
        let fix = "use a shorter one: renewal keeps the lock for as long as the holder lives";
        return Err(Error::invalid(format!("a {what} of {span:?} is longer than a century")).fix(fix));
    }
    Ok(())
}

/// Refuses settings under which no lease could be kept.
pub(crate) fn check_terms(core: &Core, terms: &Terms) -> Result<(), Error> {
    let Terms { ttl, guard, .. } = *terms;
    check_ttl(core, ttl)?;
    check_span("shortest hold", terms.min_hold)?;
    // A renewal must have had time to fail once before work has to stop.
    let timeout = core.operation_timeout(ttl);
    let needed = if terms.renews { ttl / 3 + timeout } else { timeout };
    let belief = terms.belief(ttl);
    if belief <= needed {
        let what = format!(
            "a ttl of {ttl:?} is too short: of it {belief:?} can be believed (less clock drift and {guard:?} to stop work), \
             and a renewal with its timeout of {timeout:?} needs {needed:?}"
        );
        return Err(Error::invalid(what).fix("use a longer ttl, a shorter operation timeout or less time to stop work"));
    }
    match terms.max_hold {
        Some(max) if max.is_zero() => {
            Err(Error::invalid("a longest hold of zero allows no work").fix("leave max-hold out or raise it"))
        }
        Some(max) if max < terms.min_hold => {
            let what = format!("the longest hold of {max:?} is shorter than the shortest of {:?}", terms.min_hold);
            Err(Error::invalid(what).fix("raise max-hold or lower min-hold"))
        }
        _ => Ok(()),
    }
}

/// One owner token on its way to the store. What it may have left there is cleared up when it is dropped unfinished.
struct Attempt<'a> {
    core: &'a Arc<Core>,
    request: Request,
    /// The token may be in place at the store, or may still get there.
    dirty: bool,
    /// A try had no answer. Where the store has late commands, it may still run after all that is sent later.
    unheard: bool,
}

impl<'a> Attempt<'a> {
    fn new(core: &'a Arc<Core>, request: Request) -> Self {
        Self { core, request, dirty: false, unheard: false }
    }

    async fn send(&mut self) -> Result<Acquired, Error> {
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

    fn won(&mut self, terms: Terms, sent_at: BootTime, grant: &Grant) -> Option<Guard> {
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

enum Look {
    Won(Guard),
    Again(Duration),
}

/// How often a waiter looks, whatever it was told: not so often that it starves others, nor so seldom that it has left.
const RECHECK: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(3_600);

/// The state of one waiting acquisition.
struct Wait<'a> {
    settings: &'a Acquire,
    core: &'a Arc<Core>,
    attempt: Attempt<'a>,
    terms: Terms,
    started: BootTime,
    notices: Option<BoxStream<'static, Notice>>,
    holder: Option<Holder>,
    /// Since when this holder has been seen.
    seen: BootTime,
    outage: bool,
}

impl<'a> Wait<'a> {
    fn new(settings: &'a Acquire, name: Name) -> Result<Self, Error> {
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
    async fn look(&mut self) -> Result<Look, Error> {
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
    async fn pause(&mut self, pause: Duration) {
        if pause.is_zero() {
            return;
        }
        let until = self.core.clock.now() + pause;
        let sleep = self.core.clock.sleep_until(until);
        let Some(notices) = &mut self.notices else { return sleep.await };
        tokio::select! {
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
