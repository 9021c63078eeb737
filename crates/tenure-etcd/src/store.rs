//! The store: its calls, and what it can do.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use futures_util::stream::BoxStream;
use tenure::store::{AcquireReply, Enqueue, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{Entry, Error, Lease, Name};
use tokio::time::Instant;
use tonic::Code;

use crate::connection::Connection;
use crate::failure::{Failed, unexpected};
use crate::grpc::FIRST_CONTACT;
use crate::keys::Layout;
use crate::proto::{RANGE, RangeRequest, RangeResponse};
use crate::shared::Shared;

/// Names that one transaction takes, at most: etcd allows 128 comparisons.
const AT_ONCE: usize = 60;

/// Locks in etcd. [`Options`](crate::Options) opens it.
pub struct EtcdStore {
    pub(crate) shared: Arc<Shared>,
    timeout: Option<Duration>,
    pub(crate) poll_interval: Duration,
    /// The process that opened it.
    process: u32,
}

impl EtcdStore {
    pub(crate) async fn open(
        connection: Arc<Connection>,
        layout: Layout,
        timeout: Option<Duration>,
        poll_interval: Duration,
    ) -> Result<Self, Error> {
        let shared = Shared::new(connection, layout);
        // Whether a member answers, and takes the login. The range has no key.
        let probe = RangeRequest { limit: 1, ..RangeRequest::of_one(shared.layout.key_of_nobody().as_bytes()) };
        let answer: Result<RangeResponse, Failed> = shared.connection.first(RANGE, probe, Instant::now() + FIRST_CONTACT).await;
        match answer {
            Ok(answer) => shared.saw(answer.header.as_ref()),
            // It has taken the login. Its roles are those of the names that will be asked for.
            Err(failed) if failed.heard && failed.code == Code::PermissionDenied => {}
            // Nothing was asked to be changed.
            Err(Failed { error, .. }) if error.may_have_been_applied() => {
                return Err(Error::new(error.kind(), error.to_string()));
            }
            Err(failed) => return Err(failed.into()),
        }
        Ok(Self { shared: Arc::new(shared), timeout, poll_interval, process: std::process::id() })
    }

    pub(crate) fn end(&self, ttl: Duration) -> Instant {
        Instant::now() + self.features().limit(ttl)
    }
}

#[async_trait]
impl Store for EtcdStore {
    fn features(&self) -> Features {
        Features::basic()
            .with_fence(true)
            .with_shares(true)
            .with_queue(true)
            .with_cohort(true)
            .with_push(true)
            .with_server_clock(true)
            .with_timed_calls(true)
            .with_min_ttl(Duration::from_secs(1))
            .with_late_end(self.shared.late_end())
            .with_late_commands(self.shared.unanswered.has_any())
            .with_operation_timeout(self.timeout)
            .with_opened_by(self.process)
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        let end = self.end(request.ttl);
        if request.from.is_some() {
            let queue = self.shared.queue(&request.name, end).await?;
            queue.check(request)?;
            return self.settle(request, queue, end).await;
        }
        match request.enqueue {
            Enqueue::Heartbeat if request.generated => self.heartbeat(request, end).await,
            Enqueue::Join { entry_ttl, handoff_ttl } if request.generated => {
                self.join(request, (entry_ttl, handoff_ttl), end).await
            }
            _ => match self.take(&[request], end).await? {
                Ok(grants) => grants.into_iter().next().map(AcquireReply::Granted).ok_or_else(|| unexpected("it grants nothing")),
                Err(queues) => {
                    let queue = queues.first().ok_or_else(|| unexpected("it has no range"))?;
                    let mut busy = self.busy(queue, &request.owner, end).await;
                    busy.position = busy.position.filter(|_| request.generated);
                    Ok(AcquireReply::Busy(busy))
                }
            },
        }
    }

    async fn acquire_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        let Some(shortest) = requests.iter().map(|request| request.ttl).min() else { return Ok(Some(Vec::new())) };
        if requests.len() > AT_ONCE {
            return Ok(None);
        }
        let requests: Vec<&Request> = requests.iter().collect();
        Ok(self.take(&requests, self.end(shortest)).await?.ok())
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        let Some(shortest) = leases.iter().map(|lease| lease.ttl).min() else { return Vec::new() };
        let end = self.end(shortest);
        let chunks = leases.chunks(crate::renew::AT_ONCE).map(|leases| crate::renew::all(&self.shared, leases, end));
        join_all(chunks).await.into_iter().flatten().collect()
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        let (end, id) = (self.end(lease.ttl), (lease.name.clone(), lease.owner.clone()));
        let reply = self.give_up(&id, linger, end).await?;
        self.shared.unanswered.end(&self.shared.connection, &id, end).await.map_err(Error::maybe_applied)?;
        Ok(reply)
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        crate::watch::notices(&self.shared, request, self.end(request.ttl)).await
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        let end = self.end(Duration::MAX);
        let Some(name) = name else { return self.list(end).await };
        let entry = self.entry(name.clone(), end).await?;
        Ok(Some(entry).filter(Entry::is_in_use).into_iter().collect())
    }
}

impl fmt::Display for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.connection.fmt(f)
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdStore({self})")
    }
}
