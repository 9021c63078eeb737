//! Locks in a cluster: each name lives in one slot, and each slot at one node.
//!
//! All keys of a name are in its slot, and so is its grant counter: one for each slot, where a single
//! server has one for all. While a slot is moved from node to node, some of its keys are there
//! already. Then no script reaches all keys of a name, and mutexes are acquired and released in
//! steps that need one key each.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::BoxStream;
use redis::Value;
use tenure::store::{AcquireReply, Busy, Enqueue, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{Entry, Error, ErrorKind, Fence, Lease, Name, Owner, Share};
use tokio::time::Instant;

use crate::native::cluster::{Cluster, gathered};
use crate::native::renew::At;
use crate::native::reply::{counter, fence};
use crate::native::store::RedisStore;
use crate::schemes::set_nx::SetNxStore;
use crate::scripts;
use crate::transport::commands::{Commands, Digits};
use crate::transport::connection::{Exchange, Repeat};
use crate::transport::contact::now_ms;
use crate::transport::failure::{is_moving, translate, unexpected};
use crate::transport::form::Form;
use crate::transport::link::Link;
use crate::transport::reply::only;

/// Locks in a Redis or Valkey cluster. Clones share the connections, one to each node.
///
/// # Round trips
/// Acquire 1; renew 1 for each 1,000 leases at a node, all nodes at once; release 1; inspect 1 for a
/// name, and 1 more if there are shares. Each 1 more if the slot of a name has moved. Acquire 5 and release 3 while it moves.
#[derive(Clone)]
pub struct ClusterStore {
    cluster: Cluster,
}

impl ClusterStore {
    pub(crate) const fn new(cluster: Cluster) -> Self {
        Self { cluster }
    }

    /// Acquires a mutex while its slot moves. There is no queue: the first client that asks is
    /// granted.
    async fn acquire_in_steps(&self, request: &Request, end: Instant) -> Result<AcquireReply, Error> {
        let redis = self.cluster.serving(&request.name)?;
        let busy = |holder| AcquireReply::Busy(Busy::new(redis.poll_interval(false, None, None)).with_holder(holder));
        if request.enqueue != Enqueue::No {
            // It has no place in these steps, and one that is left would be served for nobody.
            dequeue(&redis, &request.name, &request.owner, end).await?;
        }
        if request.enqueue == Enqueue::Heartbeat {
            // The release of its owner may have been sent, so it takes nothing.
            let kept = redis.renew_all(&[request.lease()], At::Name, end).await;
            if !matches!(kept[..], [Ok(RenewReply::Renewed)]) {
                return kept.into_iter().find_map(Result::err).map_or(Ok(busy(None)), Err);
            }
        } else {
            let plain = SetNxStore::new(redis.clone(), false);
            match plain.acquire(&request.clone().with_enqueue(Enqueue::No)).await {
                Ok(AcquireReply::Granted(_)) => {}
                // Others may have shares of it, which only a script can tell.
                Err(error) if error.kind() == ErrorKind::Mismatch => return Ok(busy(None)),
                other => return other,
            }
        }
        let fence = count(&redis, &request.name, end).await.map_err(Error::maybe_applied)?;
        // It was held when the grant was counted: only then is the fence above those before.
        let keys = redis.layout.of(&request.name);
        // The number of an earlier try is shown no more: others take the one that is shown for the holder's.
        let shown = [b"@", request.owner.as_bytes()].concat();
        let get = |_: &Link| {
            let mut commands = Commands::of_key(&keys.name(), b"GET", &[]);
            commands.about(&keys.shares(), b"HDEL", &[&shown]);
            commands
        };
        let holds = redis.connection.exchange(end, Repeat::Freely, get).await.map_err(Error::maybe_applied)?;
        match only(holds.answers)?.map_err(|error| translate(&error).maybe_applied())? {
            Value::BulkString(value) if value == request.owner.as_bytes() => {
                Ok(AcquireReply::Granted(Grant::new(Some(fence), request.ttl)))
            }
            _ => Ok(busy(None)),
        }
    }

    /// Releases a mutex, or drops a queue entry, while the slot moves. Waiters find out by polling.
    async fn release_in_steps(&self, lease: &Lease, linger: Duration, end: Instant) -> Result<ReleaseReply, Error> {
        let redis = self.cluster.serving(&lease.name)?;
        if SetNxStore::new(redis.clone(), false).release(lease, linger).await? == ReleaseReply::Released {
            return Ok(ReleaseReply::Released);
        }
        let was_queued = dequeue(&redis, &lease.name, &lease.owner, end).await?;
        Ok(if was_queued { ReleaseReply::Released } else { ReleaseReply::NotHeld })
    }
}

/// Counts a grant of `name`.
async fn count(redis: &RedisStore, name: &Name, end: Instant) -> Result<Fence, Error> {
    let (keys, seen) = (redis.layout.of(name), Digits::of(redis.counter.largest()));
    let raise_and_count = |_: &Link| {
        let mut commands = scripts::call(&scripts::RAISE_COUNTER, Form::Text, &[keys.grants()], &[seen.as_bytes()]);
        commands.about(&keys.grants(), b"INCR", &[]);
        commands
    };
    // Numbers may be left out.
    let Exchange { answers, .. } = redis.connection.exchange(end, Repeat::Freely, raise_and_count).await?;
    let answers = answers.into_iter().map(|answer| counter(&answer.map_err(|error| translate(&error))?));
    let [floor, number] = answers.collect::<Result<Vec<_>, _>>()?[..] else { return Err(unexpected("too few replies")) };
    if number <= floor {
        return Err(Error::unavailable(format!("the grant counter fell from {floor} to {number}")));
    }
    redis.counter.saw(number, now_ms());
    fence(number)
}

/// Drops a queue entry. Returns whether there was one.
async fn dequeue(redis: &RedisStore, name: &Name, owner: &Owner, end: Instant) -> Result<bool, Error> {
    let (keys, owner) = (redis.layout.of(name), owner.as_bytes());
    let dequeue = |_: &Link| {
        let mut commands = Commands::of_key(&keys.queue(), b"ZREM", &[owner]);
        commands.about(&keys.entries(), b"HDEL", &[owner]);
        commands
    };
    let Exchange { answers, .. } = redis.connection.exchange(end, Repeat::Freely, dequeue).await?;
    Ok(only(answers)?.map_err(|error| translate(&error))? == Value::Int(1))
}

#[async_trait]
impl Store for ClusterStore {
    fn features(&self) -> Features {
        self.cluster.features().with_push(false)
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        self.cluster.redis.layout.check_request(request)?;
        let end = self.cluster.redis.end(request.ttl);
        match self.cluster.at_node(&request.name, end, |redis| async move { redis.acquire(request).await }).await {
            // With a supplied token in place, nobody knows whether an earlier try has put it there.
            Err(moving) if moving.may_have_been_applied() && !request.generated => Err(moving),
            Err(moving) if is_moving(&moving) && request.share == Share::MUTEX => {
                let answer = self.acquire_in_steps(request, end).await;
                if moving.may_have_been_applied() { answer.map_err(Error::maybe_applied) } else { answer }
            }
            answer => answer,
        }
    }

    async fn acquire_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        let Some(Request { name, ttl, .. }) = requests.first() else { return Ok(Some(Vec::new())) };
        requests.iter().try_for_each(|request| self.cluster.redis.layout.check(&request.name))?;
        let slot = |name: &Name| self.cluster.redis.layout.slot(name);
        if requests.iter().any(|request| slot(&request.name) != slot(name)) {
            return Ok(None);
        }
        match self
            .cluster
            .at_node(name, self.cluster.redis.end(*ttl), |redis| async move { redis.acquire_all(requests).await })
            .await
        {
            Err(moving) if is_moving(&moving) && !moving.may_have_been_applied() => Ok(None),
            answer => answer,
        }
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        self.cluster.renew_all(leases, At::Name).await
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        let end = self.cluster.redis.end(lease.ttl);
        let release = |redis: RedisStore| async move { redis.release(lease, linger).await };
        if lease.share != Share::MUTEX {
            return self.cluster.at_one_node(&lease.name, end, release).await;
        }
        let moving = match self.cluster.at_node(&lease.name, end, release).await {
            Err(error) if is_moving(&error) => error,
            answer => return answer,
        };
        match self.release_in_steps(lease, linger, end).await {
            // The first may have released it.
            Ok(ReleaseReply::NotHeld) if moving.may_have_been_applied() => Err(moving),
            Err(error) if moving.may_have_been_applied() => Err(error.maybe_applied()),
            released => released,
        }
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        // A push may be forged, and the counters of so many slots are not known here: the poll says
        // whether it was handed on.
        Ok(self.cluster.nodes.pushes().register(request.owner.clone()).map(|_| Notice::Changed).boxed())
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        if let Some(name) = name {
            let end = self.cluster.redis.end(Duration::MAX);
            return self.cluster.at_node(name, end, |redis| async move { redis.inspect(Some(name)).await }).await;
        }
        let inspect = |redis: RedisStore| async move { redis.inspect_all().await };
        gathered(join_all(self.cluster.at_each().map(inspect)).await)
    }
}

impl fmt::Display for ClusterStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cluster.redis.fmt(f)
    }
}

impl fmt::Debug for ClusterStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterStore({self})")
    }
}
