//! A file that any number of processes of one machine share, without a server.

mod calls;
mod failure;
mod file;
mod machine;
mod nodes;
mod options;
mod patience;
mod rows;
mod schema;
mod share;
mod statements;
mod thread;
mod wake;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tenure::store::record::Listeners;
use tenure::store::{AcquireReply, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{Entry, Error, Lease, Name};

pub use self::options::{Options, connect, open};
use self::thread::Worker;

/// Poll interval of a waiter that has no queue entry or cannot be notified. A poll is a read of some
/// microseconds.
const POLL_INTERVAL: Duration = Duration::from_millis(15);

/// Locks in an SQLite file. Clones share one connection, on a thread of its own that ends with the
/// last of them.
///
/// Leases end by the boot-time clock, so neither a changed wall clock nor a suspended machine moves
/// them. A restart of the machine ends all leases. A process may be killed at any moment: what it
/// had not committed never was.
#[derive(Clone)]
pub struct SqliteStore {
    path: Arc<Path>,
    worker: Worker,
    listeners: Listeners,
    operation_timeout: Option<Duration>,
    poll_interval: Duration,
    /// The process that opened it.
    process: u32,
}

impl SqliteStore {
    fn new(path: PathBuf, listeners: Listeners, worker: Worker) -> Self {
        let process = std::process::id();
        Self { path: path.into(), worker, listeners, operation_timeout: None, poll_interval: POLL_INTERVAL, process }
    }

    /// Returns the absolute path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets the timeout of one call, the wait for other processes included. Default:
    /// [`tenure::store::operation_timeout`] of the ttl.
    #[must_use]
    pub fn with_operation_timeout(mut self, limit: Duration) -> Self {
        self.operation_timeout = Some(limit);
        self
    }

    /// Sets the poll interval of waiters that have no queue entry or cannot be notified. Default:
    /// 15 ms.
    #[must_use]
    pub fn with_poll_interval(mut self, every: Duration) -> Self {
        self.poll_interval = every;
        self
    }

    fn limit(&self, ttl: Duration) -> Duration {
        self.features().limit(ttl)
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn features(&self) -> Features {
        Features::basic()
            .with_fence(true)
            .with_shares(true)
            .with_queue(true)
            .with_cohort(true)
            .with_push(true)
            .with_server_clock(true)
            .with_min_ttl(Duration::from_millis(10))
            .with_operation_timeout(self.operation_timeout)
            .with_opened_by(self.process)
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        let (request, poll_interval) = (request.clone(), self.poll_interval);
        self.worker.call(self.limit(request.ttl), true, move |file| file.acquire(&request, poll_interval)).await
    }

    async fn acquire_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        let Some(ttl) = requests.iter().map(|request| request.ttl).min() else { return Ok(Some(Vec::new())) };
        let requests = requests.to_vec();
        self.worker.call(self.limit(ttl), true, move |file| file.acquire_all(&requests)).await
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        let Some(shortest) = leases.iter().map(|lease| lease.ttl).min() else { return Vec::new() };
        let batch = leases.to_vec();
        match self.worker.call(self.limit(shortest), false, move |file| file.renew(&batch)).await {
            Ok(answers) => answers.into_iter().map(Ok).collect(),
            Err(error) => leases.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        let lease = lease.clone();
        self.worker.call(self.limit(lease.ttl), false, move |file| file.release(&lease, linger)).await
    }

    /// Reports hand-overs to this process by any process of the machine, and what this process has
    /// taken and freed.
    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        let notices = self.listeners.listen(request);
        let arm = |file: &mut file::LockFile| {
            file.wake.listen();
            Ok(())
        };
        self.worker.call(self.limit(request.ttl), true, arm).await.map(|()| notices)
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        let name = name.cloned();
        self.worker.call(self.limit(Duration::MAX), true, move |file| file.inspect(name.as_ref())).await
    }
}

impl fmt::Display for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sqlite:{}", self.path.display())
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.path).finish_non_exhaustive()
    }
}
