//! The store as one simulated process has it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tenure::store::{AcquireReply, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{Entry, Error, Lease, Name};
use tokio::sync::mpsc;

use super::clock::SimClock;
use super::network::{Op, Reply, Watcher};
use super::world::World;

pub(super) struct SimStore {
    pub(super) world: Arc<World>,
    pub(super) process: usize,
    pub(super) clock: SimClock,
}

/// Each kind of command has its kind of reply.
macro_rules! ask {
    ($store:ident, $op:expr, $kind:ident) => {
        match $store.call($op).await? {
            Reply::$kind(reply) => Ok(reply),
            _ => unreachable!("it answers what it is asked"),
        }
    };
}

impl SimStore {
    async fn call(&self, op: Op) -> Result<Reply, Error> {
        self.clock.pass().await;
        match &op {
            Op::Acquire(request) => {
                let now = self.world.now();
                self.world.state().asks(now, self.process, &request.owner, request.generated);
            }
            Op::Release(lease, _) => self.world.state().gives_up(&lease.owner),
            _ => {}
        }
        let answer = self.world.send(self.process, op).answer().await;
        self.clock.pass().await;
        // A process that was stopped hears of it only now.
        self.world.state().news |= matches!(answer, Ok(Reply::Renewed(_)) | Err(_));
        answer
    }
}

#[async_trait]
impl Store for SimStore {
    fn features(&self) -> Features {
        Features::basic()
            .with_fence(true)
            .with_shares(true)
            .with_queue(self.world.mix.queue)
            .with_cohort(self.world.mix.cohort)
            .with_push(self.world.mix.push)
            .with_server_clock(true)
            .with_late_commands(self.world.mix.late)
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        let reply = ask!(self, Op::Acquire(request.clone()), Acquired);
        if let (Ok(AcquireReply::Granted(_)), Some(token)) = (&reply, self.world.state().tokens.get_mut(&request.owner)) {
            token.answered = true;
        }
        reply
    }

    async fn acquire_all(&self, _: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        // Each name is asked for on its own: what is explored is one name.
        Ok(None)
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        match self.call(Op::Renew(leases.to_vec())).await {
            Ok(Reply::Renewed(answers)) => answers,
            Ok(_) => unreachable!("it answers what it is asked"),
            Err(error) => leases.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        ask!(self, Op::Release(lease.clone(), linger), Released)
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        if !self.world.mix.push {
            return Ok(stream::pending().boxed());
        }
        let (sender, notices) = mpsc::unbounded_channel();
        let watcher = Watcher { name: request.name.clone(), owner: request.owner.clone(), notices: sender };
        self.call(Op::Watch(watcher)).await?;
        let next =
            |mut notices: mpsc::UnboundedReceiver<Notice>| async move { notices.recv().await.map(|notice| (notice, notices)) };
        Ok(stream::unfold(notices, next).boxed())
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        ask!(self, Op::Inspect(name.cloned()), Entries)
    }
}

impl fmt::Display for SimStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("simulated:")
    }
}

impl fmt::Debug for SimStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimStore")
    }
}
