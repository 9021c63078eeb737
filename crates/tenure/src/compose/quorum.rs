//! A quorum: a store over several that fail independently.

mod absence;
mod admission;
mod keep;
mod look;
mod node;
mod planting;
mod round;
mod seen;
mod take;
mod verdict;
mod votes;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use futures_util::stream::{BoxStream, StreamExt, select_all};
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use self::absence::COUNTS;
pub use self::absence::Clock;
use self::admission::Admission;
use self::node::Nodes;
pub use self::node::{Confirmed, Memory, Node, Plain, Vote};
use self::planting::{Planting, Want, Wanted};
use self::round::{Paces, Round, Until};
use crate::store::features::opened_by;
use crate::store::{AcquireReply, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use crate::{Entry, Error, ErrorKind, Lease, Name, Share};

/// Default poll interval of a name that is held.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How long a program that ends waits for the slowest nodes.
const SETTLES: Duration = Duration::from_millis(250);

/// Names held at a majority of several stores, as Redlock does. Clones share their nodes.
///
/// A name is held by the owner that holds it at a majority of the nodes. So any minority of them
/// may be lost. The nodes know nothing of one another.
///
/// - Grants have fences if every node [counts the grants of each name](Node::counts_names).
/// - A share of a semaphore of C permits needs more than `n C / (C + 1)` of the n nodes. Where that
///   is all of them, no node could be lost, and the request is refused.
/// - It has no queue: several queues would hand a name to several waiters. Waiters poll at random
///   times, and as soon as a node with pushes says that something has changed.
///
/// # Round trips
/// All nodes are asked at the same moment, and the answer is there with the majority's. Acquire 1,
/// and 1 more if the nodes disagree about the fence; renew 1; release 1; inspect 1.
#[derive(Clone)]
pub struct Quorum {
    nodes: Nodes,
    admission: Arc<Admission>,
    /// Promises of all nodes, but for that of late commands, which is about the moment.
    features: Features,
    node_timeout: Option<Duration>,
    poll_interval: Duration,
    second_rounds: Arc<AtomicU64>,
    paces: Arc<Paces>,
    wanted: Wanted,
    /// Calls that go on after the answer of a majority.
    under_way: TaskTracker,
}

impl Quorum {
    /// Makes a quorum of `nodes`, an odd number of them.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for fewer than three nodes or an even number: one more than
    /// an odd number makes the majority larger, and no further node may be lost.
    pub fn new(nodes: Vec<Arc<dyn Node>>) -> Result<Self, Error> {
        if nodes.len() < 3 || nodes.len().is_multiple_of(2) {
            let what = format!("a quorum of {} nodes", nodes.len());
            return Err(Error::invalid(what).with_hint("give an odd number of nodes, 3 at least"));
        }
        let fenced = nodes.iter().all(|node| node.counts_names());
        let features = common(&nodes, fenced);
        let nodes: Nodes = nodes.into();
        let paces = Arc::new(Paces::new(nodes.len()));
        let under_way = TaskTracker::new();
        // Only a program that is about to end waits for it, while others may still add to it.
        under_way.close();
        let admission = Arc::new(Admission::new(Arc::clone(&nodes)));
        Ok(Self {
            nodes,
            admission,
            features,
            node_timeout: None,
            poll_interval: POLL_INTERVAL,
            second_rounds: Arc::default(),
            paces,
            wanted: Wanted::default(),
            under_way,
        })
    }

    /// Sets the timeout of a call, `None` for the largest of the nodes' own, or the
    /// [default](crate::store::operation_timeout).
    ///
    /// Whatever it is, an answer about a lease counts for 2.5 s. A node that answers later may have lost its data, and others
    /// may have been granted the name.
    #[must_use]
    pub fn with_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        let of_nodes = || self.nodes.iter().filter_map(|node| node.features().operation_timeout).max();
        self.features.operation_timeout = timeout.into().or_else(of_nodes);
        self
    }

    /// Sets the time that a slow node has after a majority has answered. The default is a
    /// two-hundredth of the ttl, 5 ms to 50 ms. If the majority took longer, it is that long. A node whose answer decides about an
    /// acquisition has twice the time that it took the last time.
    #[must_use]
    pub fn with_node_timeout(mut self, node_timeout: impl Into<Option<Duration>>) -> Self {
        self.node_timeout = node_timeout.into();
        self
    }

    /// Sets the poll interval of a name that another owner holds.
    #[must_use]
    pub fn with_poll_interval(mut self, poll_interval: Duration) -> Self {
        self.poll_interval = poll_interval;
        self
    }

    /// Lets nodes vote at once that have lost their data, or are new.
    ///
    /// The caller knows that no lease from before can stand: the quorum is new, or all its clients
    /// were stopped for longer than their ttl. Else a name may have two holders. Without this, a quorum of
    /// new nodes votes after half a minute. One of which a majority has lost its data waits for an hour.
    ///
    /// # Errors
    /// The first error of a node. The others vote.
    pub async fn admit(&self) -> Result<(), Error> {
        self.admission.now().await
    }

    /// Asks each node whether it votes, in the order of the nodes. None of them is waited for longer than for one call.
    ///
    /// # Errors
    /// In place of the answer of a node, why it has none.
    ///
    /// # Cancel safety
    /// Dropping the future is safe.
    ///
    /// # Round trips
    /// 1 to each node, and 1 more where it is first used.
    pub async fn memories(&self) -> Vec<(Arc<dyn Node>, Result<Memory, Error>)> {
        let limit = self.limit(Duration::MAX);
        let ask = async |node: &Arc<dyn Node>| {
            let silent = |_| Err(Error::unreachable(format!("no answer within {limit:?}")));
            (Arc::clone(node), timeout(limit, node.memory()).await.unwrap_or_else(silent))
        };
        join_all(self.nodes.iter().map(ask)).await
    }

    /// Returns how many acquisitions have needed a second round so far, because the nodes disagreed about the fence. Clones
    /// count together.
    pub fn second_rounds(&self) -> u64 {
        self.second_rounds.load(Ordering::Relaxed)
    }

    fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    /// Number of nodes at which an owner has to hold this share.
    ///
    /// Of `n` nodes with `C` permits each, `q` may be granted to each of `C + 1` permits' holders
    /// only if `q (C + 1) <= n C`.
    fn need(&self, share: Share) -> Result<usize, Error> {
        let nodes = self.nodes.len();
        if share.capacity() == Share::READ.capacity() {
            return Ok(self.majority());
        }
        let capacity = usize::try_from(share.capacity()).unwrap_or(usize::MAX);
        let need = (nodes.saturating_mul(capacity) / capacity.saturating_add(1) + 1).max(self.majority());
        if need >= nodes {
            let what = format!("a semaphore of {capacity} permits in a quorum of {nodes} nodes could lose no node");
            let fix =
                format!("a quorum of {nodes} keeps semaphores of up to {} permits; use more nodes, or one server", most(nodes));
            return Err(Error::new(ErrorKind::Unsupported, what).with_hint(fix));
        }
        Ok(need)
    }

    fn limit(&self, ttl: Duration) -> Duration {
        self.features.limit(ttl)
    }

    /// Until when the answers about a lease of `ttl` count.
    fn until(&self, ttl: Duration) -> Until {
        Until::after(self.limit(ttl).min(COUNTS))
    }

    /// Time that slow nodes have after a majority has answered about a lease of `ttl`.
    fn node_timeout(&self, ttl: Duration) -> Duration {
        self.node_timeout.unwrap_or_else(|| (ttl / 200).clamp(Duration::from_millis(5), Duration::from_millis(50)))
    }

    fn planting(&self, lease: Arc<Lease>, want: Option<Arc<Want>>) -> Planting {
        let (nodes, admission, limit) = (Arc::clone(&self.nodes), Arc::clone(&self.admission), self.limit(lease.ttl));
        let need = self.need(lease.share).unwrap_or_else(|_| self.majority());
        let (began, under_way) = (Instant::now(), Some(self.under_way.token()));
        Planting { nodes, admission, lease, began, from: None, want, limit, need, under_way }
    }

    /// Who wants a lease to which nodes may be asked in the background. None for a supplied token: another client may use it.
    fn want(&self, lease: &Lease) -> Option<Arc<Want>> {
        lease.owner.is_generated().then(|| self.wanted.by(&lease.owner))
    }
}

/// Promises that all nodes make.
fn common(nodes: &[Arc<dyn Node>], fenced: bool) -> Features {
    let all: Vec<Features> = nodes.iter().map(Store::features).collect();
    let each = |has: fn(&Features) -> bool| all.iter().all(has);
    Features::basic()
        .with_fence(fenced)
        .with_shares(each(|node| node.shares))
        .with_cohort(fenced && each(|node| node.cohort))
        .with_push(all.iter().any(|node| node.push))
        .with_server_clock(each(|node| node.server_clock))
        .with_token_per_try(true)
        .with_process_bound(all.iter().any(|node| node.process_bound))
        .with_min_ttl(all.iter().map(|node| node.min_ttl).max().unwrap_or_default())
        .with_late_end(all.iter().map(|node| node.late_end).max().unwrap_or_default())
        .with_max_name(all.iter().map(|node| node.max_name).min().unwrap_or_default())
        .with_operation_timeout(all.iter().filter_map(|node| node.operation_timeout).max())
        .with_timed_calls(true)
        .with_opened_by(opened_by(&all))
}

/// Largest capacity of a semaphore that may lose a node.
const fn most(nodes: usize) -> usize {
    nodes - 2
}

#[async_trait]
impl Store for Quorum {
    fn features(&self) -> Features {
        let late_commands = self.nodes.iter().any(|node| node.features().late_commands);
        self.features.clone().with_late_commands(late_commands)
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        self.take(request).await
    }

    async fn acquire_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        // A majority of one name need not be that of another.
        requests.iter().try_for_each(|request| self.need(request.share).map(drop))?;
        Ok(None)
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        self.keep(leases).await
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        self.give_up(lease, linger).await
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        let mut round =
            Round::new(Until::after(self.limit(request.ttl))).hurrying_after(self.majority(), self.node_timeout(request.ttl));
        for (at, node) in self.nodes.iter().enumerate() {
            let (node, request) = (Arc::clone(node), request.clone());
            round.ask(at, async move { node.watch(&request).await });
        }
        let mut notices = Vec::with_capacity(self.nodes.len());
        while let Some((_, answer)) = round.next().await {
            notices.extend(answer.ok());
        }
        // A handoff by one node is none by a majority. What several have sent meanwhile is one notice.
        Ok(select_all(notices).ready_chunks(self.nodes.len()).map(|_| Notice::Changed).boxed())
    }

    async fn settled(&self) {
        let _ = timeout(SETTLES, self.under_way.wait()).await;
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        self.look(name).await
    }
}

impl fmt::Display for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quorum of ")?;
        for (at, node) in self.nodes.iter().enumerate() {
            if at > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{node}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quorum").field("nodes", &self.nodes).field("fenced", &self.features.fence).finish_non_exhaustive()
    }
}
