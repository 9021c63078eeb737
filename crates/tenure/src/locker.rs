//! Where users begin: a store with the settings for its locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;

use crate::acquire::Acquire;
use crate::book::Orphan;
use crate::guard::ReleaseOutcome;
use crate::owner::check_label;
use crate::room::Rooms;
use crate::settings::{Settings, check_span, check_ttl};
use crate::store::{AcquireReply, Grant, ReleaseReply, RenewReply, Request, Store};
use crate::tenure::Tenure;
use crate::watchdog::{Watchdog, gone, no_answer};
use crate::{BootClock, BootTime, Clock, EndReason, Entry, Error, ErrorKind, Guard, Lease, Name, Share};

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
    pub(crate) core: Arc<Core>,
}

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) watchdog: Watchdog,
    pub(crate) rooms: Rooms,
    pub(crate) label: Arc<str>,
    pub(crate) ttl: Duration,
    pub(crate) safety_margin: Option<Duration>,
    pub(crate) drift: f64,
    /// The store has answered once: from then on an outage is something to wait out.
    pub(crate) answered: AtomicBool,
}

/// How long a store that never answered is tried before an acquisition gives up, whatever its wait.
pub(crate) const FIRST_CONTACT: Duration = Duration::from_secs(5);

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
        Acquire { name: Name::new(name), settings: Settings::new(Arc::clone(&self.core), share) }
    }

    /// The store below.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.core.store
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
        check_ttl(&self.core, lease.ttl)?;
        let leases = std::slice::from_ref(lease);
        let mut answers = self.core.limited(lease.ttl, async { Ok(self.core.store.renew(leases).await) }).await?;
        match answers.pop() {
            Some(Ok(RenewReply::Renewed)) => Ok(()),
            Some(Ok(RenewReply::Gone)) => Err(gone().context(format_args!("{:?}", lease.name))),
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
        match self.core.limited(lease.ttl, self.core.store.release(lease, linger)).await? {
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
        let entries = self.core.looked(self.core.store.inspect(Some(&name))).await?;
        Ok(entries.into_iter().find(|entry| entry.name == name))
    }

    /// Every name that is held, as far as the store can tell. Reads the whole store.
    ///
    /// # Cancel safety
    /// Changes nothing, dropped or not.
    pub async fn list(&self) -> Result<Vec<Entry>, Error> {
        // A scan of a large store takes as long as it takes: no limit of one operation applies.
        self.core.store.inspect(None).await
    }

    /// Gives up everything that this locker holds and says how each release went.
    ///
    /// The guards that are left learn it: they are lost, by [`EndReason::Released`](EndReason::Released).
    ///
    /// # Cancel safety
    /// A dropped future leaves the releases to the background.
    pub async fn release_all(&self) -> Vec<(Name, Result<ReleaseOutcome, Error>)> {
        let all = self.core.watchdog.give_up_all();
        let given_up = all.into_iter().filter(|tenure| tenure.give_up());
        let releases = given_up.map(|tenure| {
            let (name, release) = (tenure.name.clone(), self.core.release(tenure));
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
        self.core.watchdog.cleared().await;
    }
}

impl Core {
    /// The time one call may take for a lease of `ttl`.
    pub(crate) fn operation_timeout(&self, ttl: Duration) -> Duration {
        self.store.features().limit(ttl)
    }

    /// Runs one call to the store within the operation timeout, and notes that the store has answered.
    pub(crate) async fn limited<T>(&self, ttl: Duration, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let limit = self.operation_timeout(ttl);
        let answer = tokio::time::timeout(limit, call).await.unwrap_or_else(|_| Err(no_answer(limit)));
        if !matches!(&answer, Err(error) if error.kind() == ErrorKind::Unreachable) {
            self.answered.store(true, Ordering::Relaxed);
        }
        answer
    }

    /// Releases a tenure that has left the watchdog's book.
    ///
    /// # Cancel safety
    /// A dropped future, also one that was never polled, and an outcome that stays unknown leave the release to the background.
    pub(crate) fn release(&self, tenure: Arc<Tenure>) -> impl Future<Output = Result<ReleaseOutcome, Error>> + Send {
        let releasing = Releasing { core: self, tenure, settled: false };
        releasing.run()
    }

    /// Has the watchdog release a tenure in the background.
    pub(crate) fn clear(&self, tenure: &Tenure) {
        let (now, lease) = (self.clock.now(), tenure.lease());
        if !tenure.may_be_anothers(now, self.operation_timeout(lease.ttl)) {
            let (lingers_until, until) = (now + tenure.linger(now), self.forgotten_at(tenure));
            self.watchdog.clear(Orphan { lease, lingers_until, until, late: tenure.late, once: !tenure.minted });
        }
    }

    /// When the store has forgotten the lease even if a renewal sent just now is executed last of all.
    fn forgotten_at(&self, tenure: &Tenure) -> BootTime {
        tenure.store_until().max(self.clock.now() + tenure.lease().ttl)
    }

    /// Runs one look at the store, which hangs on no lease.
    pub(crate) async fn looked<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.limited(Duration::MAX, call).await
    }

    /// One attempt at the store.
    pub(crate) async fn attempt(&self, request: &Request) -> Result<AcquireReply, Error> {
        self.limited(request.ttl, self.store.acquire(request)).await
    }

    /// One attempt at several names.
    pub(crate) async fn attempt_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        let ttl = requests.iter().map(|request| request.ttl).min().unwrap_or_default();
        self.limited(ttl, self.store.acquire_all(requests)).await
    }
}

/// A release on its way. Dropped before it is settled, it goes to the background.
struct Releasing<'a> {
    core: &'a Core,
    tenure: Arc<Tenure>,
    settled: bool,
}

impl Releasing<'_> {
    async fn run(mut self) -> Result<ReleaseOutcome, Error> {
        let (core, tenure) = (self.core, &*self.tenure);
        let lease = tenure.lease();
        let lost = matches!(tenure.loss(core.clock.now()), Some(loss) if loss != EndReason::Released);
        if tenure.may_be_anothers(core.clock.now(), core.operation_timeout(lease.ttl)) {
            self.settled = true;
            return Ok(ReleaseOutcome::WasLost);
        }
        // A value that was given may be another's once this has run unheard: it is not sent again.
        self.settled = !tenure.minted;
        let linger = tenure.linger(core.clock.now());
        let answer = core.limited(lease.ttl, core.store.release(&lease, linger)).await;
        self.settled |= match &answer {
            // An acquire of this token may still run, and nobody would know of it.
            Ok(_) => !(tenure.late && core.store.features().late_commands),
            Err(error) => !error.is_transient(),
        };
        match answer {
            Ok(ReleaseReply::Released) if !lost => Ok(ReleaseOutcome::Released),
            Ok(_) => Ok(ReleaseOutcome::WasLost),
            Err(error) if error.is_transient() => {
                Ok(ReleaseOutcome::Unknown { until: core.forgotten_at(tenure).since(core.clock.now()), error })
            }
            Err(error) => Err(error),
        }
    }
}

impl Drop for Releasing<'_> {
    fn drop(&mut self) {
        if !self.settled {
            self.core.clear(&self.tenure);
        }
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
        let Self { store, clock, label, ttl, safety_margin: guard, drift } = self;
        let watchdog = Watchdog::new(Arc::clone(&store), Arc::clone(&clock));
        let (rooms, label, answered) = (Rooms::default(), label.into(), AtomicBool::new(false));
        Locker { core: Arc::new(Core { store, clock, watchdog, rooms, label, ttl, safety_margin: guard, drift, answered }) }
    }
}

/// Label of a [`Locker`] that sets none: the host's name and the process id.
pub fn default_label() -> String {
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    let host: String = host.chars().filter(|c| !c.is_control()).take(64).collect();
    format!("{host}.{}", std::process::id())
}
