//! Taking a lock: one acquisition of one name.

use std::time::Duration;

use crate::store::{AcquireReply, Request};
use crate::wait::{Attempt, Guard, Settings, Wait};
use crate::{Error, ErrorKind, Lease, Name};

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

pub(super) use settings;

/// One acquisition to be made. Nothing happens before [`acquire`](Acquire::acquire) or [`try_acquire`](Acquire::try_acquire).
#[derive(Debug)]
#[must_use = "nothing is acquired before acquire() or try_acquire() is awaited"]
pub struct Acquire {
    pub(crate) name: Result<Name, Error>,
    pub(crate) settings: Settings,
}

settings!(Acquire, settings);

impl Acquire {
    /// Checks the settings without taking anything.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) or [`Unsupported`](ErrorKind::Unsupported), as the acquisition would answer.
    pub fn check(&self) -> Result<(), Error> {
        self.settings.check([self.name.as_ref().map_err(Error::clone)?])
    }

    /// Takes the lock if nobody has it.
    ///
    /// # Errors
    /// The store's, or [`Invalid`](ErrorKind::Invalid) for settings that cannot work. That another holds it is `Ok(None)`.
    ///
    /// # Cancel safety
    /// A dropped future leaves nothing behind: what it may have taken is released in the background.
    pub async fn try_acquire(mut self) -> Result<Option<Guard>, Error> {
        self.settings.wait = Some(Duration::ZERO);
        unless_busy(self.acquire().await)
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
        let Self { name, settings } = self;
        settings.core.session.watchdog.ensure_running();
        Wait::new(&settings, name?, settings.key()?).guard().await
    }

    /// Takes over `lease`, once.
    pub(crate) async fn adopt(self, lease: &Lease) -> Result<Guard, Error> {
        self.check()?;
        if !lease.owner.is_generated() {
            let what = format!(
                "the lease of {:?} has a supplied owner token, and another client may hold with the same one",
                lease.name
            );
            return Err(Error::invalid(what).with_hint("release it where it was taken, and take it again"));
        }
        let Self { settings, .. } = self;
        let Settings { core, .. } = &settings;
        let session = &core.session;
        session.watchdog.ensure_running();
        let (name, from) = (&lease.name, lease.owner.clone());
        let mut attempt =
            Attempt::new(session, Request::new(name.clone(), settings.owner()?, lease.share, lease.ttl).with_from(from));
        let sent_at = session.clock.now();
        let lost = || Error::lost().context(format_args!("{name:?}"));
        match attempt.send().await? {
            AcquireReply::Granted(grant) => attempt
                .granted(settings.terms(), &settings.label, sent_at, &grant)
                .map(|held| Guard::new(core, held))
                .ok_or_else(lost),
            AcquireReply::Busy(_) => Err(lost()),
            AcquireReply::Refused { why, .. } => Err(Error::unavailable(why)),
        }
    }
}

/// A try that found the name busy is no error.
pub(crate) fn unless_busy<T>(tried: Result<T, Error>) -> Result<Option<T>, Error> {
    match tried {
        Err(error) if error.kind() == ErrorKind::TimedOut => Ok(None),
        tried => tried.map(Some),
    }
}
