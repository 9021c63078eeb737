//! Settings of an acquisition: what to ask the store for, and how to wait.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::locker::Core;
use crate::room::Shape;
use crate::tenure::Terms;
use crate::{Error, ErrorKind, Holder, Name, Owner, Share, format_duration};

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

/// How to acquire, whatever the name.
pub(crate) struct Settings {
    pub(crate) core: Arc<Core>,
    pub(crate) share: Result<Share, Error>,
    pub(crate) terms: Terms,
    pub(crate) safety_margin: Option<Duration>,
    pub(crate) wait: Option<Duration>,
    pub(crate) poll_interval: Option<Duration>,
    pub(crate) label: Arc<str>,
    pub(crate) token: Option<Owner>,
    pub(crate) observer: Option<Observer>,
}

impl Settings {
    pub(crate) fn new(core: Arc<Core>, share: Result<Share, Error>) -> Self {
        let terms = Terms {
            ttl: core.ttl,
            drift: core.drift,
            safety_margin: Duration::ZERO,
            renews: true,
            max_hold: None,
            min_hold: Duration::ZERO,
            linger: Duration::ZERO,
        };
        let (safety_margin, label) = (core.safety_margin, Arc::clone(&core.label));
        Self { core, share, terms, safety_margin, wait: None, poll_interval: None, label, token: None, observer: None }
    }

    /// Refuses settings, and names, that cannot work with the store.
    pub(crate) fn check<'a>(&self, names: impl IntoIterator<Item = &'a Name>) -> Result<(), Error> {
        let (store, features) = (&self.core.store, self.core.store.features());
        for name in names {
            let (length, most) = (name.as_str().len(), features.max_name);
            if length > most {
                let what = format!("the lock name has {length} bytes, more than the {most} this store can keep");
                return Err(Error::invalid(what).with_hint("use a shorter name, or a digest of it"));
            }
        }
        let share = self.share.clone()?;
        if share != Share::MUTEX && !features.shares {
            let what = format!("{store} keeps no shares, and {} needs them", share.kind());
            return Err(Error::new(ErrorKind::Unsupported, what).with_hint("use a mutex, or another store"));
        }
        crate::owner::check_label(&self.label)?;
        check_terms(&self.core, &self.terms())
    }

    pub(crate) fn shape(&self) -> Result<Shape, Error> {
        let share = self.share.clone()?;
        Ok(Shape { share, terms: self.terms(), label: Arc::clone(&self.label), token: self.token.clone() })
    }

    pub(crate) fn terms(&self) -> Terms {
        let ttl = self.terms.ttl;
        Terms { safety_margin: self.safety_margin.unwrap_or(ttl / 10), ..self.terms }
    }

    /// The time to stop work was asked for. Else it is our choice, and may be shorter until a lease that was handed over is renewed.
    pub(crate) fn asks_margin(&self) -> bool {
        self.safety_margin.is_some()
    }

    pub(crate) fn owner(&self) -> Result<Owner, Error> {
        match &self.token {
            Some(token) => Ok(token.clone()),
            None => Owner::generate(&self.label),
        }
    }

    pub(crate) fn observe(&self, what: Waiting<'_>) {
        if let Some(observer) = &self.observer {
            observer(what);
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("terms", &self.terms).field("wait", &self.wait).finish_non_exhaustive()
    }
}

/// Gives a builder the settings of an acquisition, which it keeps in the field named.
macro_rules! settings {
    ($builder:ident, $($settings:ident).+) => {
        impl $builder {
            /// Takes `weight` of the permits of a [semaphore](crate::Locker::semaphore) instead of one. A mutex has one permit.
            pub fn permits(mut self, weight: u32) -> Self {
                let settings = &mut self.$($settings).+;
                settings.share = settings.share.clone().and_then(|share| $crate::Share::permits(weight, share.capacity()));
                self
            }

            /// How long the lease lasts from each renewal, at the store.
            pub fn ttl(mut self, ttl: Duration) -> Self {
                self.$($settings).+.terms.ttl = ttl;
                self
            }

            /// Gives up after this long; zero tries once. Without it, [`acquire`](Self::acquire) waits for ever. A store that gives no
            /// answer may make it longer by one operation timeout.
            pub fn wait(mut self, wait: Duration) -> Self {
                self.$($settings).+.wait = Some(wait);
                self
            }

            /// No renewal: the tenure ends with the first lease unless [`Guard::extend`](crate::Guard::extend) prolongs it.
            pub fn fixed_lease(mut self) -> Self {
                self.$($settings).+.terms.renews = false;
                self
            }

            /// Ends the tenure after this long, however well renewals go.
            pub fn max_hold(mut self, max: Duration) -> Self {
                self.$($settings).+.terms.max_hold = Some(max);
                self
            }

            /// Keeps the name taken for at least this long from the request, though the work is done or the holder has crashed: the first
            /// ttl is at least that long, and an earlier release leaves the name taken by nobody until then.
            pub fn min_hold(mut self, min: Duration) -> Self {
                self.$($settings).+.terms.min_hold = min;
                self
            }

            /// Keeps the name taken by nobody for this long after its release: a pause before anyone else begins.
            pub fn linger(mut self, linger: Duration) -> Self {
                self.$($settings).+.terms.linger = linger;
                self
            }

            /// How often to look again while nothing is heard from the store, instead of the store's own choice. Jitter is added.
            pub fn poll_interval(mut self, every: Duration) -> Self {
                self.$($settings).+.poll_interval = Some(every);
                self
            }

            /// The label that operators see of this holder, instead of the locker's.
            pub fn label(mut self, label: impl Into<String>) -> Self {
                self.$($settings).+.label = label.into().into();
                self
            }

            /// Uses a value that was given as the owner, instead of random bits of our own.
            ///
            /// Others may have been given the same value, so less is safe: finding it in place is busy; an acquisition or release without
            /// an answer is reported and neither repeated nor cleared up; a tenure that may have ended is not released, and none is adopted.
            /// A value of the shape of our own tokens is taken to have been made for one claim.
            pub fn token(mut self, token: $crate::Owner) -> Self {
                self.$($settings).+.token = Some(token);
                self
            }

            /// The guard time of this lock, instead of the locker's.
            pub fn safety_margin(mut self, guard: Duration) -> Self {
                self.$($settings).+.safety_margin = Some(guard);
                self
            }

            /// Has `observer` told what the wait meets.
            pub fn on_wait(mut self, observer: impl Fn($crate::Waiting<'_>) + Send + Sync + 'static) -> Self {
                self.$($settings).+.observer = Some(Box::new(observer));
                self
            }
        }
    };
}

pub(crate) use settings;

/// Longer spans overflow one store's arithmetic or another's.
const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Refuses a ttl that the store cannot keep.
pub(crate) fn check_ttl(core: &Core, ttl: Duration) -> Result<(), Error> {
    let min = core.store.features().min_ttl;
    if ttl < min {
        let [ttl, min] = [ttl, min].map(format_duration);
        return Err(
            Error::invalid(format!("a ttl of {ttl} is shorter than the {min} this store can keep")).with_hint("use a longer ttl")
        );
    }
    check_span("ttl", ttl)
}

pub(crate) fn check_span(what: &str, span: Duration) -> Result<(), Error> {
    if span > CENTURY {
        let fix = "use a shorter one: renewal keeps the lock for as long as the holder lives";
        return Err(Error::invalid(format!("a {what} of {span:?} is longer than a century")).with_hint(fix));
    }
    Ok(())
}

/// Refuses settings under which no lease could be kept.
pub(crate) fn check_terms(core: &Core, terms: &Terms) -> Result<(), Error> {
    let Terms { ttl, safety_margin: guard, .. } = *terms;
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
        return Err(Error::invalid(what).with_hint("use a longer ttl, a shorter operation timeout or less time to stop work"));
    }
    match terms.max_hold {
        Some(max) if max.is_zero() => {
            Err(Error::invalid("a longest hold of zero allows no work").with_hint("leave max-hold out or raise it"))
        }
        Some(max) if max < terms.min_hold => {
            let [max, min] = [max, terms.min_hold].map(format_duration);
            let what = format!("the longest hold of {max} is shorter than the shortest of {min}");
            Err(Error::invalid(what).with_hint("raise max-hold or lower min-hold"))
        }
        _ => Ok(()),
    }
}
