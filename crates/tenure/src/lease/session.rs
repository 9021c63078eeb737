//! A store as this process uses it: with a clock, and with the watchdog of the leases held there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::watchdog::Watchdog;
use crate::store::call::within;
use crate::store::{AcquireReply, Grant, ReleaseReply, Request, Store};
use crate::{BootTime, Clock, Error, ErrorKind, Lease};

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) watchdog: Watchdog,
    /// The store has answered once. From then on a wait rides out its outages.
    answered: AtomicBool,
    /// When an acquisition or a release was last served, in nanoseconds since boot; 0 before the first one.
    served: AtomicU64,
    /// The only process that can use it: the one that opened the store, or else made this.
    process: u32,
}

impl Session {
    pub(crate) fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        let watchdog = Watchdog::new(Arc::clone(&store), Arc::clone(&clock));
        let process = store.features().opened_by.unwrap_or_else(std::process::id);
        Self { store, clock, watchdog, answered: AtomicBool::new(false), served: AtomicU64::new(0), process }
    }

    /// Whether this process opened the store. The child of a fork has neither its threads nor its
    /// connections.
    pub(crate) fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Refuses every call in the child of a fork.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if self.is_ours() { Ok(()) } else { Err(Error::after_fork()) }
    }

    pub(crate) fn has_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    fn note_served(&self) {
        let nanos = u64::try_from(self.clock.now().since_boot().as_nanos()).unwrap_or(u64::MAX);
        self.served.fetch_max(nanos, Ordering::Relaxed);
    }

    /// When the store last served an acquisition or a release: it granted, was busy, or released.
    pub(crate) fn last_served(&self) -> Option<BootTime> {
        let nanos = self.served.load(Ordering::Relaxed);
        (nanos > 0).then(|| BootTime::from_boot(Duration::from_nanos(nanos)))
    }

    /// Timeout of one call about a lease of `ttl`.
    pub(crate) fn operation_timeout(&self, ttl: Duration) -> Duration {
        self.store.features().limit(ttl)
    }

    /// Runs one call within the operation timeout, and notes whether the store answered.
    pub(crate) async fn call<T>(&self, ttl: Duration, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.check_process()?;
        let features = self.store.features();
        let answer = if features.timed_calls { call.await } else { within(features.limit(ttl), call).await };
        if !matches!(&answer, Err(error) if error.kind() == ErrorKind::Unreachable) {
            self.answered.store(true, Ordering::Relaxed);
        }
        answer
    }

    /// Runs one call that concerns no lease.
    pub(crate) async fn call_without_lease<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.call(Duration::MAX, call).await
    }

    /// Sends one request.
    pub(crate) async fn attempt(&self, request: &Request) -> Result<AcquireReply, Error> {
        let answer = self.call(request.ttl, self.store.acquire(request)).await?;
        // A quorum that does not vote serves nobody.
        if !matches!(answer, AcquireReply::Refused { .. }) {
            self.note_served();
        }
        Ok(answer)
    }

    /// Sends requests for several names, all or nothing.
    pub(crate) async fn attempt_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        let ttl = requests.iter().map(|request| request.ttl).min().unwrap_or_default();
        let granted = self.call(ttl, self.store.acquire_all(requests)).await?;
        // Without a grant, nobody may have been asked.
        if granted.is_some() {
            self.note_served();
        }
        Ok(granted)
    }

    /// Asks for a release.
    pub(crate) async fn ask_release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        self.call(lease.ttl, self.store.release(lease, linger)).await.inspect(|_| self.note_served())
    }
}

/// The child of a fork leaves the store alone: what its drop waits for is in the parent.
impl Drop for Session {
    fn drop(&mut self) {
        if !self.is_ours() {
            std::mem::forget(Arc::clone(&self.store));
        }
    }
}
