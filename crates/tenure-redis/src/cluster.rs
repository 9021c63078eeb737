//! Locks in a cluster: each name lives in one slot, and each slot at one node.
//!
//! All keys of a name are in its slot, and so is its grant counter: one for each slot, where a single
//! server has one for all. While a slot is moved from node to node, some of its keys are there
//! already. Then no script reaches all keys of a name, and mutexes are acquired and released in
//! steps that need one key each.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::BoxStream;
use redis::Value;
use tenure::store::{AcquireReply, Busy, Enqueue, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{Entry, Error, ErrorKind, Fence, Lease, Name, Owner, Share};
use tokio::time::{Instant, sleep};

use crate::native::keys::Layout;
use crate::native::renew::At;
use crate::native::reply::{counter, fence};
use crate::native::store::RedisStore;
use crate::schemes::set_nx::SetNxStore;
use crate::scripts;
use crate::transport::commands::{Commands, Digits};
use crate::transport::connection::{Connection, Exchange, Repeat};
use crate::transport::contact::now_ms;
use crate::transport::failure::{is_moving, translate, unexpected};
use crate::transport::form::Form;
use crate::transport::link::Link;
use crate::transport::nodes::Nodes;
use crate::transport::reply::only;

/// Pause between two tries at a name whose keys are in two places. Nobody tells when they are not.
const MOVING: Duration = Duration::from_millis(20);

/// Locks in a Redis or Valkey cluster. Clones share the connections, one to each node.
///
/// # Round trips
/// Acquire 1; renew 1 for each 1,000 leases at a node, all nodes at once; release 1; inspect 1 for a
/// name. Each 1 more if the slot of a name has moved. Acquire 5 and release 3 while it moves.
#[derive(Clone)]
pub struct ClusterStore {
    nodes: Arc<Nodes>,
    /// The store at one of the nodes; the others differ in their connection.
    redis: RedisStore,
}

impl ClusterStore {
    pub(crate) fn new(
        nodes: Arc<Nodes>,
        prefix: &str,
        shown: &str,
        timeout: Option<Duration>,
        poll_interval: Duration,
    ) -> Result<Self, Error> {
        let any = nodes.masters().into_iter().next().ok_or_else(|| unexpected("a map without nodes"))?;
        Ok(Self { redis: RedisStore::over(any, Layout::by_slot(prefix)?, shown, timeout, poll_interval), nodes })
    }

    fn serving(&self, name: &Name) -> Result<Arc<Connection>, Error> {
        self.nodes.of_slot(self.redis.layout.slot(name))
    }

    /// Makes a call at the node that serves the slot of `name`, or at the one that has taken over
    /// from it.
    async fn at_node<T, F>(&self, name: &Name, end: Instant, call: impl Fn(RedisStore) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let slot = self.redis.layout.slot(name);
        let node = match self.nodes.of_slot(slot) {
            Ok(node) => node,
            // The map may be of a time when the cluster was not complete.
            Err(error) => self.nodes.instead(slot, None, end).await.ok_or(error)?,
        };
        let error = match call(self.redis.through(Arc::clone(&node))).await {
            Err(error) if error.is_transient() && !is_moving(&error) => error,
            answer => return answer,
        };
        match self.nodes.instead(slot, Some(&node), end).await {
            Some(other) if !error.may_have_been_applied() => call(self.redis.through(other)).await,
            _ => Err(node.told(error)),
        }
    }

    /// Acquires a mutex while its slot moves. There is no queue: the first client that asks is
    /// granted.
    async fn acquire_in_steps(&self, request: &Request, end: Instant) -> Result<AcquireReply, Error> {
        let redis = self.redis.through(self.serving(&request.name)?);
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
        let get = |_: &Link| Commands::of_key(&keys.name(), b"GET", &[]);
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
        let redis = self.redis.through(self.serving(&lease.name)?);
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
        self.redis.features().with_push(false).with_late_commands(self.nodes.have_late_commands())
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        self.redis.layout.check_request(request)?;
        let end = self.redis.end(request.ttl);
        match self.at_node(&request.name, end, |redis| async move { redis.acquire(request).await }).await {
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
        requests.iter().try_for_each(|request| self.redis.layout.check(&request.name))?;
        let slot = |name: &Name| self.redis.layout.slot(name);
        if requests.iter().any(|request| slot(&request.name) != slot(name)) {
            return Ok(None);
        }
        match self.at_node(name, self.redis.end(*ttl), |redis| async move { redis.acquire_all(requests).await }).await {
            Err(moving) if is_moving(&moving) && !moving.may_have_been_applied() => Ok(None),
            answer => answer,
        }
    }

    /// All nodes at once: one that is silent holds up no lease of another.
    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        let end = self.redis.renewals_end(leases);
        let mut answers: Vec<Option<Result<RenewReply, Error>>> = vec![None; leases.len()];
        let mut groups: Vec<(u16, Arc<Connection>, Vec<usize>)> = Vec::new();
        let mut unserved = None;
        for (at, lease) in leases.iter().enumerate() {
            let slot = self.redis.layout.slot(&lease.name);
            match self.nodes.of_slot(slot) {
                Ok(node) => match groups.iter_mut().find(|(_, known, _)| Arc::ptr_eq(known, &node)) {
                    Some((_, _, which)) => which.push(at),
                    None => groups.push((slot, node, vec![at])),
                },
                Err(error) => {
                    unserved = Some(slot);
                    answers[at] = Some(Err(error));
                }
            }
        }
        if let Some(slot) = unserved {
            // The map is of all slots.
            drop(self.nodes.look_again(slot, None));
        }
        let renew = |(slot, node, which): (u16, Arc<Connection>, Vec<usize>)| async move {
            let group: Vec<Lease> = which.iter().map(|at| leases[*at].clone()).collect();
            let renewed = self.redis.through(Arc::clone(&node)).renew_all(&group, At::Name, end).await;
            if renewed.iter().any(|answer| answer.as_ref().is_err_and(|error| error.is_transient() && !is_moving(error))) {
                // Nobody waits for it: the next renewal goes where the lease is then.
                drop(self.nodes.look_again(slot, Some(&node)));
            }
            which.into_iter().zip(renewed).collect::<Vec<_>>()
        };
        for (at, answer) in join_all(groups.into_iter().map(renew)).await.into_iter().flatten() {
            answers[at] = Some(answer);
        }
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(unexpected("no answer")))).collect()
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        let end = self.redis.end(lease.ttl);
        loop {
            let released = self.at_node(&lease.name, end, |redis| async move { redis.release(lease, linger).await }).await;
            let moving = match released {
                Err(error) if is_moving(&error) => error,
                answer => return answer,
            };
            if lease.share == Share::MUTEX {
                let released = self.release_in_steps(lease, linger, end).await;
                return match released {
                    // The first may have released it.
                    Ok(ReleaseReply::NotHeld) if moving.may_have_been_applied() => Err(moving),
                    Err(error) if moving.may_have_been_applied() => Err(error.maybe_applied()),
                    released => released,
                };
            }
            if Instant::now() + MOVING >= end || moving.may_have_been_applied() {
                return Err(moving);
            }
            sleep(MOVING).await;
        }
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        // A push may be forged, and the counters of so many slots are not known here: the poll says
        // whether it was handed on.
        Ok(self.nodes.pushes().register(request.owner.clone()).map(|_| Notice::Changed).boxed())
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        if let Some(name) = name {
            let end = self.redis.end(Duration::MAX);
            return self.at_node(name, end, |redis| async move { redis.inspect(Some(name)).await }).await;
        }
        let inspect = |node| {
            let redis = self.redis.through(node);
            async move { redis.inspect_all().await }
        };
        let mut entries: Vec<Entry> = Vec::new();
        for found in join_all(self.nodes.masters().into_iter().map(inspect)).await {
            entries.extend(found?);
        }
        // One that was moved meanwhile may be found twice.
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        entries.dedup_by(|one, other| one.name == other.name);
        Ok(entries)
    }
}

impl fmt::Display for ClusterStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.redis.fmt(f)
    }
}

impl fmt::Debug for ClusterStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterStore({self})")
    }
}
