//! Entry point for users: a store with the settings for its locks.

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
/// The child of a `fork` opens a store of its own. In it each call of a locker or a guard of the parent
/// fails at once with [`Invalid`](crate::ErrorKind::Invalid), and their drops do nothing. So it is for a
/// store that was opened before the fork.
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
    /// Makes a locker over `store` with the defaults of [`Locker::builder`].
    pub fn new(store: impl Store) -> Self {
        Self::builder(store).build_unchecked()
    }

    /// Starts the settings of a locker over `store`.
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
    /// [`try_acquire`](Acquire::try_acquire), which also report a bad name.
    pub fn mutex(&self, name: impl AsRef<str>) -> Acquire {
        self.lock(name, Share::MUTEX)
    }

    /// Begins to read under the read/write lock `name`. Any number of readers hold it together.
    ///
    /// A reader does not overtake a waiting writer. The [fence](Guard::fence) of a reader orders it
    /// among the grants of the name. The guarded resource compares it with the largest fence of a
    /// *writer*, and does not store it: else it would refuse live readers.
    pub fn read(&self, name: impl AsRef<str>) -> Acquire {
        self.lock(name, Share::READ)
    }

    /// Begins to write under the read/write lock `name`, alone. [`Guard::downgrade`] makes the
    /// writer a reader.
    pub fn write(&self, name: impl AsRef<str>) -> Acquire {
        self.lock(name, Share::WRITE)
    }

    /// Begins to take one of the `capacity` permits of the semaphore `name`. [`Acquire::permits`]
    /// takes more of them.
    ///
    /// Permits are leases: those of a crashed holder come back after their ttl. Their fences order
    /// grants and exclude nobody, as those of [readers](Locker::read). All clients must name the
    /// same capacity.
    pub fn semaphore(&self, name: impl AsRef<str>, capacity: u32) -> Acquire {
        self.begin(name, Share::permits(1, capacity))
    }

    /// Begins to take a share of `name`, for programs that learn the kind of lock at run time.
    pub fn lock(&self, name: impl AsRef<str>, share: Share) -> Acquire {
        self.begin(name, Ok(share))
    }

    fn begin(&self, name: impl AsRef<str>, share: Result<Share, Error>) -> Acquire {
        let (core, label, safety_margin) = (Arc::clone(&self.core), Arc::clone(&self.label), self.safety_margin);
        let settings = Settings { safety_margin, ..Settings::new(core, share, self.terms, label) };
        Acquire { name: Name::new(name), settings }
    }

    /// Returns the store of this locker.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.core.session.store
    }

    /// When the store last answered an acquisition, busy or granted, or a release of this locker. Renewals do not count, and
    /// neither does a quorum that does not vote. `None` before the first answer.
    pub fn last_served(&self) -> Option<BootTime> {
        self.core.session.last_served()
    }

    pub(super) fn session(&self) -> &Arc<Session> {
        &self.core.session
    }

    /// Takes over a lease that a guard handed out with [`Guard::into_lease`], in this process or
    /// another.
    ///
    /// One checked step at the store swaps in a new owner token and a new fence. The old token is
    /// finished: of two processes that adopt the same lease, one gets it. Renewal goes on with the
    /// lease's ttl. Other settings of the old guard, such as its shortest and longest hold, are not
    /// carried over.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost) if the lease has ended. After an unknown outcome the step
    /// is not repeated, because the old owner may be gone already: the watchdog releases the new
    /// owner. Before that, a quorum or an [`AllOf`](crate::compose::AllOf) hands the lease back to
    /// the old owner, unless it has ended.
    /// [`Invalid`](crate::ErrorKind::Invalid) for a lease with a [supplied](Acquire::token) owner
    /// token: another client may hold with the same one.
    ///
    /// # Cancel safety
    /// A dropped future may have taken the lease over. The watchdog then releases the new owner.
    pub async fn adopt(&self, lease: &Lease) -> Result<Guard, Error> {
        self.lock(&lease.name, lease.share).ttl(lease.ttl).adopt(lease).await
    }

    /// Renews a lease once, so that it lasts at least its ttl from now. Nothing renews it
    /// afterwards; for that, see [`adopt`](Locker::adopt).
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost) if the lease has ended,
    /// [`Invalid`](crate::ErrorKind::Invalid) for an impossible ttl.
    ///
    /// # Cancel safety
    /// After a dropped future the lease may have been renewed or not. The call may be repeated.
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

    /// Releases a lease. Returns [`Released`](ReleaseOutcome::Released) or
    /// [`WasLost`](ReleaseOutcome::WasLost).
    ///
    /// # Errors
    /// [`Unreachable`](crate::ErrorKind::Unreachable) if the outcome is unknown. The call may be
    /// repeated.
    ///
    /// # Cancel safety
    /// After a dropped future the lease may have been released or not. The call may be repeated;
    /// nothing goes on in the background.
    pub async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome, Error> {
        self.release_lingering(lease, Duration::ZERO).await
    }

    /// Releases a lease as [`release`](Locker::release) does, and keeps the name taken by nobody
    /// for `linger`.
    ///
    /// # Errors
    /// As [`release`](Locker::release); [`Invalid`](crate::ErrorKind::Invalid) for an impossible
    /// `linger`.
    ///
    /// # Cancel safety
    /// As [`release`](Locker::release).
    pub async fn release_lingering(&self, lease: &Lease, linger: Duration) -> Result<ReleaseOutcome, Error> {
        check_span("linger", linger)?;
        match self.core.session.ask_release(lease, linger).await? {
            ReleaseReply::Released => Ok(ReleaseOutcome::Released),
            ReleaseReply::NotHeld => Ok(ReleaseOutcome::WasLost),
        }
    }

    /// Returns the holders of `name`, and `None` if it is free. The answer may be out of date on
    /// arrival.
    ///
    /// # Cancel safety
    /// Changes nothing, dropped or not.
    pub async fn inspect(&self, name: impl AsRef<str> + Send) -> Result<Option<Entry>, Error> {
        let name = Name::new(name)?;
        let entries = self.core.session.call_without_lease(self.core.session.store.inspect(Some(&name))).await?;
        Ok(entries.into_iter().find(|entry| entry.name == name))
    }

    /// Returns every held name, as far as the store can tell. Reads the whole store.
    ///
    /// # Cancel safety
    /// Changes nothing, dropped or not.
    pub async fn list(&self) -> Result<Vec<Entry>, Error> {
        self.core.session.check_process()?;
        // Without the limit of one operation: a scan of a large store takes long.
        self.core.session.store.inspect(None).await
    }

    /// Releases everything that this locker holds, and returns how each release went.
    ///
    /// The remaining guards are lost, by [`EndReason::Released`](crate::EndReason::Released).
    ///
    /// # Cancel safety
    /// A dropped future leaves the releases to the background.
    pub async fn release_all(&self) -> Vec<(Name, Result<ReleaseOutcome, Error>)> {
        if !self.core.session.is_ours() {
            return Vec::new();
        }
        let all = self.core.session.watchdog.end_all();
        let given_up = all.into_iter().filter(|held| held.claim_release());
        let releases = given_up.map(|held| {
            let (name, release) = (held.name.clone(), self.core.session.release(held));
            async { (name, release.await) }
        });
        join_all(releases).await
    }

    /// Waits until the leases of dropped guards and cancelled waits have been released, and for a quarter of a second at most until
    /// grants and releases have reached the slowest servers of a quorum.
    ///
    /// Call it between the drop of the guards and the end of the runtime. Else those names stay
    /// taken for their ttl.
    ///
    /// # Cancel safety
    /// A dropped future only stops waiting: the releases go on.
    pub async fn flush_releases(&self) {
        if !self.core.session.is_ours() {
            return;
        }
        self.core.session.watchdog.flushed().await;
        self.core.session.store.settled().await;
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
    /// Ttl of locks that set none: 30 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Safety margin: the time between the moment the holder stops and the end of the lease at the
    /// store. Work can stop in it before the next holder starts. A tenth of the ttl by default.
    pub fn safety_margin(mut self, guard: Duration) -> Self {
        self.safety_margin = Some(guard);
        self
    }

    /// Clock drift: the part of every second by which the clocks of this machine and of the store
    /// may run apart, besides 2 ms. 0.01 by default.
    pub fn drift(mut self, drift: f64) -> Self {
        self.drift = drift;
        self
    }

    /// Label by which operators recognise the holder: `host.pid` by default. May be empty.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Uses another clock, for simulations.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Checks the settings and makes the locker.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for a bad label, a drift outside 0 to 0.5, or a ttl
    /// too short for its timeouts. [`Unavailable`](crate::ErrorKind::Unavailable) if the system
    /// refuses the boot-time clock.
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
