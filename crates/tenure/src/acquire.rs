//! Taking a lock: one acquisition of one name.

use std::time::Duration;

use crate::attempt::Attempt;
use crate::settings::{Settings, settings};
use crate::store::{AcquireReply, Request};
use crate::wait::Wait;
use crate::{Error, ErrorKind, Guard, Lease, Name};

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
        settings.core.watchdog.tend();
        Wait::new(&settings, name?, settings.shape()?).guard().await
    }

    /// Takes over `lease`, once.
    pub(crate) async fn adopt(self, lease: &Lease) -> Result<Guard, Error> {
        self.check()?;
        if !lease.owner.is_generated() {
            let what =
                format!("the lease of {:?} has an owner that was given, and another may hold by the same value", lease.name);
            return Err(Error::invalid(what).with_hint("release it where it was taken, and take it again"));
        }
        let Self { settings, .. } = self;
        let Settings { core, .. } = &settings;
        core.watchdog.tend();
        let (name, from) = (&lease.name, lease.owner.clone());
        let mut attempt =
            Attempt::new(core, Request::new(name.clone(), settings.owner()?, lease.share, lease.ttl).with_from(from));
        let sent_at = core.clock.now();
        let lost = || crate::watchdog::gone().context(format_args!("{name:?}"));
        match attempt.send().await? {
            AcquireReply::Granted(grant) => attempt.won(settings.terms(), &settings.label, sent_at, &grant).ok_or_else(lost),
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
