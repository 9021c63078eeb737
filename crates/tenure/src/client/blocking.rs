//! The same locks for programs without an async runtime.
//!
//! A [`Locker`] has a runtime on one background thread, which renews what is held. Every call
//! blocks the calling thread. The drop of a guard does not: the background thread releases its
//! lease. The drop of the last handle waits up to a second for such releases. Inside an async
//! runtime use [`crate::Locker`]: blocking there panics.
//!
//! The child of a `fork` has no such thread. Each call there fails at once with
//! [`Invalid`](crate::ErrorKind::Invalid), and the drops of guards and lockers do nothing: the leases
//! are the parent's. The child may connect anew.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::acquire::settings;
use crate::{EndReason, Entry, Error, Fence, Lease, Name, Owner, ReleaseOutcome, Share, State};

/// Takes locks in one store, blocking the calling thread.
///
/// ```
/// let locks = tenure::blocking::Locker::connect(async { Ok(tenure::Locker::new(tenure::MemoryStore::new())) })?;
/// let guard = locks.mutex("invoice/42").wait(std::time::Duration::from_secs(5)).acquire()?;
/// assert_eq!(guard.state(), tenure::State::Held);
/// guard.release()?;
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone)]
pub struct Locker {
    locks: crate::Locker,
    runtime: Arc<Background>,
}

/// Background thread, with the locker that it serves.
struct Background {
    runtime: Handle,
    locks: Option<crate::Locker>,
    /// The thread ends when this is dropped.
    lives: Option<oneshot::Sender<()>>,
    /// The process that has the thread.
    process: u32,
}

impl Background {
    /// Whether the thread is there. The child of a fork has none, and would wait for ever.
    fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    fn block_on<T>(&self, future: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        if self.is_ours() { self.runtime.block_on(future) } else { Err(Error::after_fork()) }
    }

    /// Starts a thread that drives a runtime. A runtime that starts threads itself panics if the
    /// system has none left.
    fn start() -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (lives, ended) = oneshot::channel();
        let process = std::process::id();
        let background = Self { runtime: runtime.handle().clone(), locks: None, lives: Some(lives), process };
        std::thread::Builder::new().name("tenure".into()).spawn(move || {
            let _ = runtime.block_on(ended);
            runtime.shutdown_background();
        })?;
        Ok(background)
    }
}

/// Waits for pending releases if that is quick: the last handle is gone, and the program may be
/// about to end.
impl Drop for Background {
    fn drop(&mut self) {
        if !self.is_ours() {
            // Whatever they would wake is in the parent.
            std::mem::forget((self.locks.take(), self.lives.take()));
            return;
        }
        // Inside another runtime nothing may block.
        if let Some(locks) = self.locks.take()
            && Handle::try_current().is_err()
        {
            let _ = self.runtime.block_on(async { tokio::time::timeout(LAST_RELEASES, locks.flush_releases()).await });
        }
    }
}

/// Timeout of the last handle's wait for releases.
const LAST_RELEASES: Duration = Duration::from_secs(1);

impl Locker {
    /// Connects within a runtime of its own, e.g. `Locker::connect(tenure_redis::connect(url))`.
    ///
    /// # Errors
    /// Those of the connection, and [`Unavailable`](crate::ErrorKind::Unavailable) if the thread
    /// cannot be started.
    pub fn connect(connecting: impl Future<Output = Result<crate::Locker, Error>>) -> Result<Self, Error> {
        let no_thread = |e| Error::unavailable("the thread that renews locks could not be started").with_source(e);
        let mut runtime = Background::start().map_err(no_thread)?;
        let locks = runtime.block_on(connecting)?;
        runtime.locks = Some(locks.clone());
        Ok(Self { locks, runtime: Arc::new(runtime) })
    }

    /// See [`Locker::mutex`](crate::Locker::mutex).
    pub fn mutex(&self, name: impl AsRef<str>) -> Acquire {
        self.begin(self.locks.mutex(name))
    }

    /// See [`Locker::read`](crate::Locker::read).
    pub fn read(&self, name: impl AsRef<str>) -> Acquire {
        self.begin(self.locks.read(name))
    }

    /// See [`Locker::write`](crate::Locker::write).
    pub fn write(&self, name: impl AsRef<str>) -> Acquire {
        self.begin(self.locks.write(name))
    }

    /// See [`Locker::semaphore`](crate::Locker::semaphore).
    pub fn semaphore(&self, name: impl AsRef<str>, capacity: u32) -> Acquire {
        self.begin(self.locks.semaphore(name, capacity))
    }

    /// See [`Locker::lock`](crate::Locker::lock).
    pub fn lock(&self, name: impl AsRef<str>, share: Share) -> Acquire {
        self.begin(self.locks.lock(name, share))
    }

    fn begin(&self, inner: crate::Acquire) -> Acquire {
        Acquire { inner, runtime: Arc::clone(&self.runtime) }
    }

    /// See [`Locker::adopt`](crate::Locker::adopt).
    pub fn adopt(&self, lease: &Lease) -> Result<Guard, Error> {
        self.runtime.block_on(self.locks.adopt(lease)).map(|guard| Guard::new(guard, &self.runtime))
    }

    /// See [`Locker::renew`](crate::Locker::renew).
    pub fn renew(&self, lease: &Lease) -> Result<(), Error> {
        self.runtime.block_on(self.locks.renew(lease))
    }

    /// See [`Locker::release`](crate::Locker::release).
    pub fn release(&self, lease: &Lease) -> Result<ReleaseOutcome, Error> {
        self.runtime.block_on(self.locks.release(lease))
    }

    /// See [`Locker::inspect`](crate::Locker::inspect).
    pub fn inspect(&self, name: impl AsRef<str> + Send) -> Result<Option<Entry>, Error> {
        self.runtime.block_on(self.locks.inspect(name))
    }

    /// See [`Locker::list`](crate::Locker::list).
    pub fn list(&self) -> Result<Vec<Entry>, Error> {
        self.runtime.block_on(self.locks.list())
    }

    /// See [`Locker::release_all`](crate::Locker::release_all).
    pub fn release_all(&self) -> Vec<(Name, Result<ReleaseOutcome, Error>)> {
        if self.runtime.is_ours() { self.runtime.runtime.block_on(self.locks.release_all()) } else { Vec::new() }
    }

    /// See [`Locker::flush_releases`](crate::Locker::flush_releases).
    pub fn flush_releases(&self) {
        if self.runtime.is_ours() {
            self.runtime.runtime.block_on(self.locks.flush_releases());
        }
    }
}

impl fmt::Debug for Locker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.locks.fmt(f)
    }
}

/// One acquisition to be made; see [`crate::Acquire`].
#[must_use = "nothing is acquired before acquire() or try_acquire() is called"]
pub struct Acquire {
    inner: crate::Acquire,
    runtime: Arc<Background>,
}

settings!(Acquire, inner.settings);

impl Acquire {
    /// See [`Acquire::and`](crate::Acquire::and).
    pub fn and(self, name: impl AsRef<str>) -> AcquireAll {
        AcquireAll { inner: self.inner.and(name), runtime: self.runtime }
    }

    /// See [`Acquire::check`](crate::Acquire::check).
    pub fn check(&self) -> Result<(), Error> {
        self.inner.check()
    }

    /// See [`Acquire::acquire`](crate::Acquire::acquire).
    pub fn acquire(self) -> Result<Guard, Error> {
        self.runtime.block_on(self.inner.acquire()).map(|guard| Guard::new(guard, &self.runtime))
    }

    /// See [`Acquire::try_acquire`](crate::Acquire::try_acquire).
    pub fn try_acquire(self) -> Result<Option<Guard>, Error> {
        Ok(self.runtime.block_on(self.inner.try_acquire())?.map(|guard| Guard::new(guard, &self.runtime)))
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// An acquisition of several names, all or nothing; see [`crate::AcquireAll`].
#[must_use = "nothing is acquired before acquire() or try_acquire() is called"]
pub struct AcquireAll {
    inner: crate::AcquireAll,
    runtime: Arc<Background>,
}

settings!(AcquireAll, inner.settings);

impl AcquireAll {
    /// See [`AcquireAll::and`](crate::AcquireAll::and).
    pub fn and(self, name: impl AsRef<str>) -> Self {
        Self { inner: self.inner.and(name), ..self }
    }

    /// See [`AcquireAll::check`](crate::AcquireAll::check).
    pub fn check(&self) -> Result<(), Error> {
        self.inner.check()
    }

    /// See [`AcquireAll::acquire`](crate::AcquireAll::acquire).
    pub fn acquire(self) -> Result<Guards, Error> {
        Ok(Guards { guards: self.runtime.block_on(self.inner.acquire())?, runtime: self.runtime })
    }

    /// See [`AcquireAll::try_acquire`](crate::AcquireAll::try_acquire).
    pub fn try_acquire(self) -> Result<Option<Guards>, Error> {
        let guards = self.runtime.block_on(self.inner.try_acquire())?;
        Ok(guards.map(|guards| Guards { guards, runtime: self.runtime }))
    }
}

impl fmt::Debug for AcquireAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// See [`crate::Guard`]. Keeps the background thread alive.
#[must_use = "a guard that is dropped at once gives the lock up at once"]
pub struct Guard {
    guard: crate::Guard,
    runtime: Arc<Background>,
}

impl Guard {
    fn new(guard: crate::Guard, runtime: &Arc<Background>) -> Self {
        Self { guard, runtime: Arc::clone(runtime) }
    }

    /// See [`Guard::reenter`](crate::Guard::reenter).
    pub fn reenter(&self) -> Self {
        Self::new(self.guard.reenter(), &self.runtime)
    }

    /// See [`Guard::holds`](crate::Guard::holds).
    pub fn holds(&self) -> usize {
        self.guard.holds()
    }

    /// See [`Guard::name`](crate::Guard::name).
    pub fn name(&self) -> &Name {
        self.guard.name()
    }

    /// See [`Guard::share`](crate::Guard::share).
    pub fn share(&self) -> Share {
        self.guard.share()
    }

    /// See [`Guard::fence`](crate::Guard::fence).
    pub fn fence(&self) -> Option<Fence> {
        self.guard.fence()
    }

    /// See [`Guard::token`](crate::Guard::token).
    pub fn token(&self) -> &Owner {
        self.guard.token()
    }

    /// See [`Guard::remaining`](crate::Guard::remaining).
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// See [`Guard::lease_remaining`](crate::Guard::lease_remaining).
    pub fn lease_remaining(&self) -> Duration {
        self.guard.lease_remaining()
    }

    /// See [`Guard::state`](crate::Guard::state). Read it between the steps of the work.
    pub fn state(&self) -> State {
        self.guard.state()
    }

    /// See [`Guard::end_reason`](crate::Guard::end_reason).
    pub fn end_reason(&self) -> Option<EndReason> {
        self.guard.end_reason()
    }

    /// See [`Guard::verify`](crate::Guard::verify).
    pub fn verify(&self) -> Result<(), Error> {
        self.runtime.block_on(self.guard.verify())
    }

    /// See [`Guard::extend`](crate::Guard::extend).
    pub fn extend(&self, ttl: Duration) -> Result<(), Error> {
        self.runtime.block_on(self.guard.extend(ttl))
    }

    /// See [`Guard::downgrade`](crate::Guard::downgrade).
    pub fn downgrade(&self, share: Share) -> Result<(), Error> {
        self.runtime.block_on(self.guard.downgrade(share))
    }

    /// See [`Guard::release`](crate::Guard::release).
    pub fn release(self) -> Result<ReleaseOutcome, Error> {
        self.runtime.block_on(self.guard.release())
    }

    /// See [`Guard::into_lease`](crate::Guard::into_lease).
    #[must_use = "the lease is all that can renew or release the name from now on"]
    pub fn into_lease(self) -> Lease {
        self.guard.into_lease()
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

/// See [`crate::Guards`]. Keeps the background thread alive.
#[must_use = "guards that are dropped at once give the locks up at once"]
pub struct Guards {
    guards: crate::Guards,
    runtime: Arc<Background>,
}

impl Guards {
    /// See [`Guards::fences`](crate::Guards::fences).
    pub fn fences(&self) -> impl Iterator<Item = (&Name, Option<Fence>)> {
        self.guards.fences()
    }

    /// See [`Guards::remaining`](crate::Guards::remaining).
    pub fn remaining(&self) -> Duration {
        self.guards.remaining()
    }

    /// See [`Guards::state`](crate::Guards::state): look at it between the steps of the work.
    pub fn state(&self) -> State {
        self.guards.state()
    }

    /// See [`Guards::release`](crate::Guards::release).
    pub fn release(self) -> Vec<(Name, Result<ReleaseOutcome, Error>)> {
        if !self.runtime.is_ours() {
            return self.guards.fences().map(|(name, _)| (name.clone(), Err(Error::after_fork()))).collect();
        }
        self.runtime.runtime.block_on(self.guards.release())
    }
}

impl IntoIterator for Guards {
    type Item = Guard;
    type IntoIter = std::vec::IntoIter<Guard>;

    /// Returns the guards, sorted by name.
    fn into_iter(self) -> Self::IntoIter {
        let guards: Vec<_> = self.guards.into_iter().map(|guard| Guard::new(guard, &self.runtime)).collect();
        guards.into_iter()
    }
}

impl fmt::Debug for Guards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guards.fmt(f)
    }
}
