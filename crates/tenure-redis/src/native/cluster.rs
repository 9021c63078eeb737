//! The nodes of a cluster as one: a call about a name goes to the node that serves its slot.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tenure::store::{Features, RenewReply, Store};
use tenure::{Entry, Error, Lease, Name};
use tokio::time::{Instant, sleep};

use crate::native::advice::Listener;
use crate::native::keys::Layout;
use crate::native::renew::At;
use crate::native::store::RedisStore;
use crate::transport::connection::Connection;
use crate::transport::failure::{is_moving, unexpected};
use crate::transport::nodes::Nodes;

/// Pause between two tries at a name whose keys are in two places. Nobody tells when they are not.
const MOVING: Duration = Duration::from_millis(20);

/// The nodes of a cluster, and the store at each of them. Clones share the connections.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) nodes: Arc<Nodes>,
    /// The store at one of the nodes; the others differ in their connection.
    pub(crate) redis: RedisStore,
    /// If somebody wants to hear of settings that endanger locks.
    advice: Option<Listener>,
}

impl Cluster {
    pub(crate) fn new(
        nodes: Arc<Nodes>,
        prefix: &str,
        shown: &str,
        timeout: Option<Duration>,
        poll_interval: Duration,
        advice: Option<Listener>,
    ) -> Result<Self, Error> {
        let any = nodes.masters().into_iter().next().ok_or_else(|| unexpected("a map without nodes"))?;
        let redis = RedisStore::over(any, Layout::by_slot(prefix)?, shown, timeout, poll_interval);
        Ok(Self { nodes, redis, advice })
    }

    pub(crate) fn features(&self) -> Features {
        self.redis.features().with_late_commands(self.nodes.have_late_commands())
    }

    /// The store at the node that serves the slot of `name`, as far as is known.
    pub(crate) fn serving(&self, name: &Name) -> Result<RedisStore, Error> {
        Ok(self.redis.through(self.nodes.of_slot(self.redis.layout.slot(name))?))
    }

    /// The stores at all nodes that serve slots.
    pub(crate) fn at_each(&self) -> impl Iterator<Item = RedisStore> {
        self.nodes.masters().into_iter().map(|node| self.redis.through(node))
    }

    /// Makes a call at the node that serves the slot of `name`, or at the one that has taken over
    /// from it.
    pub(crate) async fn at_node<T, F>(&self, name: &Name, end: Instant, call: impl Fn(RedisStore) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let slot = self.redis.layout.slot(name);
        let node = match self.nodes.of_slot(slot) {
            Ok(node) => node,
            // The map may be of a time when the cluster was not complete.
            Err(error) => self.nodes.instead(slot, None, end).await.ok_or(error)?,
        };
        // Each master when it is first used: a process may use few of them.
        if let Some(listener) = self.advice.as_ref().filter(|_| node.is_unadvised()) {
            listener.ask(&node, &node.shown(), false);
        }
        let error = match call(self.redis.through(Arc::clone(&node))).await {
            Err(error) if error.is_transient() && !is_moving(&error) => error,
            answer => return answer,
        };
        match self.nodes.instead(slot, Some(&node), end).await {
            Some(other) if !error.may_have_been_applied() => call(self.redis.through(other)).await,
            _ => Err(node.told(error)),
        }
    }

    /// As [`at_node`](Self::at_node), and again while the keys of the name are in two places.
    pub(crate) async fn at_one_node<T, F>(
        &self,
        name: &Name,
        end: Instant,
        call: impl Fn(RedisStore) -> F + Sync,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        loop {
            match self.at_node(name, end, &call).await {
                Err(moving) if is_moving(&moving) && !moving.may_have_been_applied() && Instant::now() + MOVING < end => {
                    sleep(MOVING).await;
                }
                answer => return answer,
            }
        }
    }

    /// Renews leases whose owners stand `at` their names. All nodes at once: one that is silent holds up
    /// no lease of another.
    pub(crate) async fn renew_all(&self, leases: &[Lease], at: At) -> Vec<Result<RenewReply, Error>> {
        let end = self.redis.renewals_end(leases);
        let mut answers: Vec<Option<Result<RenewReply, Error>>> = vec![None; leases.len()];
        let mut groups: Vec<(u16, Arc<Connection>, Vec<usize>)> = Vec::new();
        let mut unserved = None;
        for (index, lease) in leases.iter().enumerate() {
            let slot = self.redis.layout.slot(&lease.name);
            match self.nodes.of_slot(slot) {
                Ok(node) => match groups.iter_mut().find(|(_, known, _)| Arc::ptr_eq(known, &node)) {
                    Some((_, _, which)) => which.push(index),
                    None => groups.push((slot, node, vec![index])),
                },
                Err(error) => {
                    unserved = Some(slot);
                    answers[index] = Some(Err(error));
                }
            }
        }
        if let Some(slot) = unserved {
            // The map is of all slots.
            drop(self.nodes.look_again(slot, None));
        }
        let renew = |(slot, node, which): (u16, Arc<Connection>, Vec<usize>)| async move {
            let group: Vec<Lease> = which.iter().map(|index| leases[*index].clone()).collect();
            let renewed = self.redis.through(Arc::clone(&node)).renew_all(&group, at, end).await;
            if renewed.iter().any(|answer| answer.as_ref().is_err_and(|error| error.is_transient() && !is_moving(error))) {
                // Nobody waits for it: the next renewal goes where the lease is then.
                drop(self.nodes.look_again(slot, Some(&node)));
            }
            which.into_iter().zip(renewed).collect::<Vec<_>>()
        };
        for (index, answer) in join_all(groups.into_iter().map(renew)).await.into_iter().flatten() {
            answers[index] = Some(answer);
        }
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(unexpected("no answer")))).collect()
    }
}

/// The entries of all nodes. One that was moved meanwhile may be found twice.
pub(crate) fn gathered(found: Vec<Result<Vec<Entry>, Error>>) -> Result<Vec<Entry>, Error> {
    let mut entries: Vec<Entry> = found.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    entries.dedup_by(|one, other| one.name == other.name);
    Ok(entries)
}
