//! Taking a lock: the settings of one acquisition.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::attempt::Attempt;
use crate::locker::Core;
use crate::room::Shape;
use crate::tenure::Terms;
use crate::wait::Wait;
use crate::{Acquired, Error, ErrorKind, Guard, Holder, Lease, Name, Owner, Place, Request, Share, format_duration};

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
    pub(crate) core: Arc<Core>,
    pub(crate) name: Result<Name, Error>,
    share: Result<Share, Error>,
    terms: Terms,
    guard: Option<Duration>,
    pub(crate) wait: Option<Duration>,
    pub(crate) recheck: Option<Duration>,
    label: Arc<str>,
    pub(crate) token: Option<Owner>,
    observer: Option<Observer>,
}

impl Acquire {
    pub(crate) fn new(core: Arc<Core>, name: Result<Name, Error>, share: Result<Share, Error>) -> Self {
        let terms = Terms {
            ttl: core.ttl,
            drift: core.drift,
            guard: Duration::ZERO,
            renews: true,
            max_hold: None,
            min_hold: Duration::ZERO,
            linger: Duration::ZERO,
        };
        let (guard, label) = (core.guard, Arc::clone(&core.label));
        Self { core, name, share, terms, guard, wait: None, recheck: None, label, token: None, observer: None }
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

    /// Keeps the name taken by nobody for this long after its release: a pause before anyone else begins.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.terms.linger = linger;
        self
    }

    /// How often to look again while nothing is heard from the store, instead of the store's own choice. Jitter is added.
    pub fn recheck(mut self, every: Duration) -> Self {
        self.recheck = Some(every);
        self
    }

    /// The label that operators see of this holder, instead of the locker's.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into().into();
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
        self.check_name(self.name.as_ref().map_err(Error::copy)?)?;
        let (share, features) = (*self.share.as_ref().map_err(Error::copy)?, self.core.store.features());
        if share != Share::MUTEX && !features.shares {
            let what = format!("{} keeps no shares, and {} needs them", self.core.store, share.kind());
            return Err(Error::new(ErrorKind::Unsupported, what).fix("use a mutex, or another store"));
        }
        crate::owner::check_label(&self.label)?;
        check_terms(&self.core, &self.terms())
    }

    /// Refuses a name that the store cannot keep.
    pub(crate) fn check_name(&self, name: &Name) -> Result<(), Error> {
        let (length, most) = (name.as_str().len(), self.core.store.features().max_name);
        if length > most {
            let what = format!("the lock name has {length} bytes, more than the {most} this store can keep");
            return Err(Error::invalid(what).fix("use a shorter name, or a digest of it"));
        }
        Ok(())
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
        Wait::new(&self, name, self.shape()?).guard().await
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
        let (name, owner, share) = (lease.name.clone(), self.owner()?, lease.share);
        let from = Some(lease.owner.clone());
        let request = Request { name, owner, share, ttl: lease.ttl, place: Place::None, repeatable: true, from };
        let mut attempt = Attempt::new(&self.core, request);
        let sent_at = self.core.clock.now();
        let lost = || crate::watchdog::gone().context(format_args!("{:?}", lease.name));
        match attempt.send().await? {
            Acquired::Granted(grant) => attempt.won(self.terms(), &self.label, sent_at, &grant).ok_or_else(lost),
            Acquired::Busy(_) => Err(lost()),
            Acquired::Refused { why, .. } => Err(Error::unavailable(why)),
        }
    }

    pub(crate) fn shape(&self) -> Result<Shape, Error> {
        let share = *self.share.as_ref().map_err(Error::copy)?;
        Ok(Shape { share, terms: self.terms(), label: Arc::clone(&self.label), token: self.token.clone() })
    }

    pub(crate) fn terms(&self) -> Terms {
        let ttl = self.terms.ttl;
        Terms { guard: self.guard.unwrap_or(ttl / 10), ..self.terms }
    }

    /// The time to stop work was asked for. Else it is our choice, and may be shorter until a lease that was handed over is renewed.
    pub(crate) fn asks_time(&self) -> bool {
        self.guard.is_some()
    }

    pub(crate) fn owner(&self) -> Result<Owner, Error> {
        match &self.token {
            Some(token) => Ok(token.clone()),
            None => Owner::mint(&self.label),
        }
    }

    pub(crate) fn observe(&self, what: Waiting<'_>) {
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
        let [ttl, min] = [ttl, min].map(format_duration);
        return Err(
            Error::invalid(format!("a ttl of {ttl} is shorter than the {min} this store can keep")).fix("use a longer ttl")
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
    check_span("linger", terms.linger)?;
    // A renewal must have had time to fail once before work has to stop.
    let timeout = core.operation_timeout(ttl);
    let needed = if terms.renews { ttl / 3 + timeout } else { timeout };
    let belief = terms.belief(ttl);
    if belief <= needed {
        let [ttl, belief, guard, timeout, needed] = [ttl, belief, guard, timeout, needed].map(format_duration);
        let what = format!(
            "a ttl of {ttl} is too short: it is valid for {belief} (less clock drift and {guard} to stop work), \
             and a renewal with its timeout of {timeout} needs {needed}"
        );
        return Err(Error::invalid(what).fix("use a longer ttl, a shorter operation timeout or less time to stop work"));
    }
    match terms.max_hold {
        Some(max) if max.is_zero() => {
            Err(Error::invalid("a longest hold of zero allows no work").fix("leave max-hold out or raise it"))
        }
        Some(max) if max < terms.min_hold => {
            let [max, min] = [max, terms.min_hold].map(format_duration);
            let what = format!("the longest hold of {max} is shorter than the shortest of {min}");
            Err(Error::invalid(what).fix("raise max-hold or lower min-hold"))
        }
        _ => Ok(()),
    }
}
