//! Acquisition of one name.

use std::time::Duration;

use crate::store::{AcquireReply, Request};
use crate::wait::{Attempt, Guard, Settings, Wait};
use crate::{Error, ErrorKind, Lease, Name};

/// Gives a builder the settings of an acquisition, which it keeps in the named field.
macro_rules! settings {
    ($builder:ident, $($settings:ident).+) => {
        impl $builder {
            /// Takes `weight` permits of a [semaphore](crate::Locker::semaphore) instead of one. A
            /// mutex has one permit.
            pub fn permits(mut self, weight: u32) -> Self {
                let settings = &mut self.$($settings).+;
                settings.share = settings.share.clone().and_then(|share| $crate::Share::permits(weight, share.capacity()));
                self
            }

            /// Time to live of the lease at the store, counted from each renewal.
            pub fn ttl(mut self, ttl: Duration) -> Self {
                self.$($settings).+.terms.ttl = ttl;
                self
            }

            /// Timeout of the wait; zero tries once. Without it, [`acquire`](Self::acquire) waits
            /// for ever. A store that does not answer may prolong the wait by one operation
            /// timeout.
            pub fn wait(mut self, wait: Duration) -> Self {
                self.$($settings).+.wait = Some(wait);
                self
            }

            /// Turns renewal off: the lease ends after its ttl unless
            /// [`Guard::extend`](crate::Guard::extend) prolongs it.
            pub fn fixed_lease(mut self) -> Self {
                self.$($settings).+.terms.renews = false;
                self
            }

            /// Ends the lease after this long, even if its renewals succeed.
            pub fn max_hold(mut self, max: Duration) -> Self {
                self.$($settings).+.terms.max_hold = Some(max);
                self
            }

            /// Keeps the name taken for at least this long, counted from the request. The first ttl
            /// is at least that long, so it holds after a crash. An earlier release leaves the name
            /// taken by nobody until then.
            pub fn min_hold(mut self, min: Duration) -> Self {
                self.$($settings).+.terms.min_hold = min;
                self
            }

            /// Keeps the name taken by nobody for this long after its release: a pause before the
            /// next holder.
            pub fn linger(mut self, linger: Duration) -> Self {
                self.$($settings).+.terms.linger = linger;
                self
            }

            /// Time between two polls of the store while no notice arrives, instead of the store's
            /// own. Jitter is added.
            pub fn poll_interval(mut self, every: Duration) -> Self {
                self.$($settings).+.poll_interval = Some(every);
                self
            }

            /// Label by which operators recognise this holder, instead of the locker's.
            pub fn label(mut self, label: impl Into<String>) -> Self {
                self.$($settings).+.label = label.into().into();
                self
            }

            /// Uses a supplied owner token instead of a generated one.
            ///
            /// Another client may have been supplied with the same token, so less is safe:
            /// - A lease in place with this token counts as busy.
            /// - An acquisition or release without an answer is reported. It is neither repeated
            ///   nor cleaned up.
            /// - A lease that may have ended is not released, and none is adopted.
            ///
            /// A token in the form of a generated one is taken to be of one acquisition alone.
            pub fn token(mut self, token: $crate::Owner) -> Self {
                self.$($settings).+.token = Some(token);
                self
            }

            /// Safety margin of this lock, instead of the locker's; see
            /// [`LockerBuilder::safety_margin`](crate::LockerBuilder::safety_margin).
            pub fn safety_margin(mut self, guard: Duration) -> Self {
                self.$($settings).+.safety_margin = Some(guard);
                self
            }

            /// Reports to `observer` what happens during the wait.
            pub fn on_wait(mut self, observer: impl Fn($crate::Waiting<'_>) + Send + Sync + 'static) -> Self {
                self.$($settings).+.observer = Some(Box::new(observer));
                self
            }
        }
    };
}

pub(super) use settings;

/// An acquisition to be made. Nothing happens before [`acquire`](Acquire::acquire) or
/// [`try_acquire`](Acquire::try_acquire).
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
    /// [`Invalid`](ErrorKind::Invalid) or [`Unsupported`](ErrorKind::Unsupported), as the
    /// acquisition would return.
    pub fn check(&self) -> Result<(), Error> {
        self.settings.check([self.name.as_ref().map_err(Error::clone)?])
    }

    /// Takes the lock if it is free, and returns `None` if another client holds it.
    ///
    /// # Errors
    /// The store's, or [`Invalid`](ErrorKind::Invalid) for settings that cannot work.
    ///
    /// # Cancel safety
    /// A dropped future leaves nothing behind: the watchdog releases what it may have taken.
    pub async fn try_acquire(mut self) -> Result<Option<Guard>, Error> {
        self.settings.wait = Some(Duration::ZERO);
        unless_busy(self.acquire().await)
    }

    /// Takes the lock, and waits for it as long as [`wait`](Acquire::wait) says.
    ///
    /// After the store's first answer the wait rides out its outages. A store that never answered
    /// is given up after 5 s.
    ///
    /// # Errors
    /// [`TimedOut`](ErrorKind::TimedOut) if another client held the lock all the while. The store's
    /// own error if the wait ended in an outage, or the store refused.
    /// [`Invalid`](ErrorKind::Invalid) for settings that cannot work.
    ///
    /// # Cancel safety
    /// A dropped future leaves nothing behind: the watchdog releases what it may have taken.
    pub async fn acquire(self) -> Result<Guard, Error> {
        self.check()?;
        let Self { name, settings } = self;
        settings.core.session.watchdog.ensure_running();
        Wait::new(&settings, name?, settings.key()?).guard().await
    }

    /// Takes over `lease`, in one attempt.
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

/// Turns the error of a busy name into `None`.
pub(crate) fn unless_busy<T>(tried: Result<T, Error>) -> Result<Option<T>, Error> {
    match tried {
        Err(error) if error.kind() == ErrorKind::TimedOut => Ok(None),
        tried => tried.map(Some),
    }
}
