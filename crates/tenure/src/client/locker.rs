//! Where users begin: a store with the settings for its locks.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::acquire::Acquire;
use crate::lease::{ReleaseOutcome, Session, Terms, check_span, check_ttl};
use crate::owner::check_label;
use crate::store::{ReleaseReply, RenewReply, Store};
use crate::wait::{Core, Guard, Settings};
use crate::{BootClock, BootTime, Clock, Entry, Error, Lease, Name, Share};

/// Takes locks in one store. Cheap to clone; clones share one watchdog.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// use std::time::Duration;
/// let locks = tenure::Locker::new(tenure::MemoryStore::new());
/// let guard = locks.mutex("invoice/42").wait(Duration::from_secs(5)).acquire().await?;
/// guard.run(async { /* charge the customer, with guard.fence() */ }).await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Locker {
    core: Arc<Core>,
    terms: Terms,
    safety_margin: Option<Duration>,
    label: Arc<str>,
}

impl Locker {
    /// A locker over `store` with the defaults of [`Locker::builder`].
    pub fn new(store: impl Store) -> Self {
        Self::builder(store).build_unchecked()
    }

    /// A locker with settings of its own.
    pub fn builder(store: impl Store) -> LockerBuilder {
        LockerBuilder {
            store: Arc::new(store),
            clock: Arc::new(BootClock),
            label: default_label(),
            ttl: Duration::from_secs(30),
            safety_margin: None,
            drift: 0.01,
        }
    }

    /// Begins to take the mutex `name`. Nothing happens before [`acquire`](Acquire::acquire) or
    /// [`try_acquire`](Acquire::try_acquire); a bad name is told there.
    pub fn mutex(&self, name: impl AsRef<str>) -> Acquire {
        self.lock(name, Share::MUTEX)
    }

    /// Begins to read under the read/write lock `name`: any number of readers hold it together.
    ///
    /// Readers do not pass a writer who waits. The [fence](Guard::fence) of a reader orders it among the grants of the name; a
    /// guarded resource compares it with the largest fence of a *writer* and does not remember it, else it refuses live readers.
    pub fn read(&self, name: impl AsRef<str>) -> Acquire {
        self.lock(name, Share::READ)
    }

    /// Begins to write under the read/write lock `name`, alone. [`Guard::downgrade`] makes the writer a reader.
    pub fn write(&self, name: impl AsRef<str>) -> Acquire {
        self.lock(name, Share::WRITE)
    }

    /// Begins to take one of the `capacity` permits of the semaphore `name`, or more of them: [`Acquire::permits`].
    ///
    /// Permits are leases: those of a holder that crashed come back when their ttl has passed. Their fences order grants and
    /// exclude nobody, as those of [readers](Locker::read). All who use the name say the same capacity.
    pub fn semaphore(&self, name: impl AsRef<str>, capacity: u32) -> Acquire {
        self.begin(name, Share::permits(1, capacity))
    }

    /// Begins to take a share of `name`, for programs that learn the kind of lock when they run.
    pub fn lock(&self, name: impl AsRef<str>, share: Share) -> Acquire {
        self.begin(name, Ok(share))
    }

    fn begin(&self, name: impl AsRef<str>, share: Result<Share, Error>) -> Acquire {
        let (core, label, safety_margin) = (Arc::clone(&self.core), Arc::clone(&self.label), self.safety_margin);
        let settings = Settings { safety_margin, ..Settings::new(core, share, self.terms, label) };
        Acquire { name: Name::new(name), settings }
    }

    /// The store below.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.core.session.store
    }

    /// Takes over a lease that another guard gave up with [`Guard::into_lease`], in this process or another.
    ///
    /// One checked step at the store swaps in a new owner and a new fence: the lease that was passed on is finished, and of two
    /// processes that adopt the same one, one gets it. Renewal goes on with the lease's ttl; other settings of the guard, such as
    /// its shortest and longest hold, do not pass on.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost) when the lease no longer stands. After an unknown outcome the step is not repeated: the
    /// old owner may be gone already. [`Invalid`](crate::ErrorKind::Invalid) for a lease of a value that was
    /// [given](Acquire::token): another may hold by the same value.
    ///
    /// # Cancel safety
    /// A dropped future may have taken the lease over; the new owner is then released.
    pub async fn adopt(&self, lease: &Lease) -> Result<Guard, Error> {
        self.lock(&lease.name, lease.share).ttl(lease.ttl).adopt(lease).await
    }

    /// Renews a lease of whoever holds its token, once, so that it lasts at least its ttl from now. Nothing is believed or renewed
    /// afterwards; for that, see [`adopt`](Locker::adopt).
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost) when it no longer stands, [`Invalid`](crate::ErrorKind::Invalid) for an impossible ttl.
    ///
    /// # Cancel safety
    /// After a dropped future the lease may have been renewed or not; it may be called again.
    pub async fn renew(&self, lease: &Lease) -> Result<(), Error> {
        check_ttl(&self.core.session.store.features(), lease.ttl)?;
        let leases = std::slice::from_ref(lease);
        let mut answers = self.core.session.call(lease.ttl, async { Ok(self.core.session.store.renew(leases).await) }).await?;
        match answers.pop() {
            Some(Ok(RenewReply::Renewed)) => Ok(()),
            Some(Ok(RenewReply::Gone)) => Err(Error::lost().context(format_args!("{:?}", lease.name))),
            Some(Err(error)) => Err(error),
            None => Err(Error::unavailable("the store gave no answer for the lease").maybe_applied()),
        }
    }

    /// Gives up a lease of whoever holds its token.
    ///
    /// # Errors
    /// [`Unreachable`](crate::ErrorKind::Unreachable) when nobody knows whether it was given up; it may be called again.
    ///
    /// # Cancel safety
    /// After a dropped future the lease may have been given up or not; it may be called again. Nothing is done in the background.
    pub async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome, Error> {
        self.release_lingering(lease, Duration::ZERO).await
    }

    /// Gives up a lease as [`release`](Locker::release) does, and keeps the name taken by nobody for `linger`.
    ///
    /// # Errors
    /// As [`release`](Locker::release); [`Invalid`](crate::ErrorKind::Invalid) for an impossible `linger`.
    ///
    /// # Cancel safety
    /// As [`release`](Locker::release).
    pub async fn release_lingering(&self, lease: &Lease, linger: Duration) -> Result<ReleaseOutcome, Error> {
        check_span("linger", linger)?;
        match self.core.session.call(lease.ttl, self.core.session.store.release(lease, linger)).await? {
            ReleaseReply::Released => Ok(ReleaseOutcome::Released),
            ReleaseReply::NotHeld => Ok(ReleaseOutcome::WasLost),
        }
    }

    /// Who holds `name`; `None` when it is free. What it says may be over when it arrives.
    ///
    /// # Cancel safety
    /// Changes nothing, dropped or not.
    pub async fn inspect(&self, name: impl AsRef<str> + Send) -> Result<Option<Entry>, Error> {
        let name = Name::new(name)?;
        let entries = self.core.session.call_without_lease(self.core.session.store.inspect(Some(&name))).await?;
        Ok(entries.into_iter().find(|entry| entry.name == name))
    }

    /// Every name that is held, as far as the store can tell. Reads the whole store.
    ///
    /// # Cancel safety
    /// Changes nothing, dropped or not.
    pub async fn list(&self) -> Result<Vec<Entry>, Error> {
        // A scan of a large store takes as long as it takes: no limit of one operation applies.
        self.core.session.store.inspect(None).await
    }

    /// Gives up everything that this locker holds and says how each release went.
    ///
    /// The guards that are left learn it: they are lost, by [`EndReason::Released`](crate::EndReason::Released).
    ///
    /// # Cancel safety
    /// A dropped future leaves the releases to the background.
    pub async fn release_all(&self) -> Vec<(Name, Result<ReleaseOutcome, Error>)> {
        let all = self.core.session.watchdog.end_all();
        let given_up = all.into_iter().filter(|held| held.claim_release());
        let releases = given_up.map(|held| {
            let (name, release) = (held.name.clone(), self.core.session.release(held));
            async { (name, release.await) }
        });
        join_all(releases).await
    }

    /// Waits until what dropped guards and cancelled waits left behind has been released.
    ///
    /// A program that drops guards and then ends its runtime calls this in between, else those names stay taken for their ttl.
    ///
    /// # Cancel safety
    /// A dropped future only stops waiting: the releases go on.
    pub async fn flush_releases(&self) {
        self.core.session.watchdog.flushed().await;
    }
}

/// Settings for a [`Locker`]; see [`Locker::builder`].
#[derive(Clone, Debug)]
#[must_use = "nothing is made before build()"]
pub struct LockerBuilder {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    label: String,
    ttl: Duration,
    safety_margin: Option<Duration>,
    drift: f64,
}

impl LockerBuilder {
    /// The ttl of locks that set none: 30 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long before the lease ends at the store the holder stops believing it, so that work can stop before anyone else
    /// starts: a tenth of the ttl.
    pub fn safety_margin(mut self, guard: Duration) -> Self {
        self.safety_margin = Some(guard);
        self
    }

    /// The part of every second by which this machine's clock and the store's may run apart, in addition to 2 ms: 0.01.
    pub fn drift(mut self, drift: f64) -> Self {
        self.drift = drift;
        self
    }

    /// What operators see of the holder: `host.pid`. Empty for none.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Another clock, for simulations.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Checks the settings and makes the locker.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for a bad label, a drift outside 0 to 0.5, or a ttl too short for its timeouts;
    /// [`Unavailable`](crate::ErrorKind::Unavailable) where the system refuses the boot-time clock.
    pub fn build(self) -> Result<Locker, Error> {
        BootTime::check()?;
        check_label(&self.label)?;
        if !(0.0..=0.5).contains(&self.drift) {
            return Err(Error::invalid(format!("a clock drift of {} is not between 0 and 0.5", self.drift))
                .with_hint("0.01 is one percent"));
        }
        let locker = self.build_unchecked();
        locker.mutex("settings").check()?;
        Ok(locker)
    }

    fn build_unchecked(self) -> Locker {
        let Self { store, clock, label, ttl, safety_margin, drift } = self;
        let core = Arc::new(Core::new(Session::new(store, clock)));
        Locker { core, terms: Terms::new(ttl, drift), safety_margin, label: label.into() }
    }
}

/// Label of a [`Locker`] that sets none: the host's name and the process id.
pub fn default_label() -> String {
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    let host: String = host.chars().filter(|c| !c.is_control()).take(64).collect();
    format!("{host}.{}", std::process::id())
}
