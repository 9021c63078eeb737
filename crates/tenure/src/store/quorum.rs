//! A quorum: a store over several that fail independently.

mod absence;
mod admission;
mod node;
mod planting;
mod round;
mod verdict;
mod votes;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use futures_util::stream::{BoxStream, StreamExt, select_all};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use self::absence::COUNTS;
use self::admission::Admission;
use self::node::Nodes;
pub use self::node::{Clock, Confirmed, Memory, Node, Plain, Vote};
use self::planting::{Planting, Want, Wanted, begin};
use self::round::{Round, Until};
use self::verdict::Verdict;
use self::votes::Votes;
use super::features::opened_by;
use super::{AcquireReply, Busy, Enqueue, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store, too_few};
use crate::{Entry, Error, ErrorKind, Fence, Holder, Lease, Name, Share};

/// Default poll interval of a name that is held.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Longest time until the next try at nodes that do not vote: somebody may admit them.
const RETRY: Duration = Duration::from_secs(2);

/// Time for an answer that is in most cases on its way.
const MOMENT: Duration = Duration::from_millis(20);

/// Headroom of the first round: the nodes are asked to take up a fence that is so far above the largest
/// counter at most. Of several fences at the same moment, the nodes all take up the largest. Each
/// further round has four times the headroom. So the client that has tried longest comes first.
const HEADROOM: u64 = 64;
const HEADROOM_LIMIT: u64 = 1 << 10;

/// Rounds without a pause. Before each further one a client pauses for a random time.
const ROUNDS: u32 = 4;

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
    wanted: Wanted,
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
        let admission = Arc::new(Admission::new(Arc::clone(&nodes)));
        Ok(Self {
            nodes,
            admission,
            features,
            node_timeout: None,
            poll_interval: POLL_INTERVAL,
            second_rounds: Arc::default(),
            wanted: Wanted::default(),
        })
    }

    /// Sets the timeout of a call, `None` for the largest of the nodes' own, or the
    /// [default](super::operation_timeout).
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
    /// two-hundredth of the ttl, 5 ms to 50 ms. If the majority took longer, it is that long.
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

    /// Has a majority agree on a fence. They have granted, and do not agree yet. A mutex needs one round. For other
    /// shares somebody else may be granted in between.
    async fn confirm(&self, request: &Request, votes: &mut Votes, need: usize, until: Until) -> Option<Fence> {
        self.second_rounds.fetch_add(1, Ordering::Relaxed);
        let lease = Arc::new(request.lease());
        let mut headroom = HEADROOM;
        for tries in 0.. {
            if tries > ROUNDS {
                let most = Duration::from_millis(1 << (tries - ROUNDS).min(5));
                let _ = timeout_at(until.end, sleep(most.mul_f64(fastrand::f64()))).await;
            }
            let largest = votes.largest()?;
            let above = if request.share == Share::MUTEX { 0 } else { fastrand::u64(1..=headroom) };
            let fence = Fence::from_counter(largest.counter() + above).unwrap_or(largest);
            let ask: Vec<_> = (0..self.nodes.len()).filter(|at| votes.may_hold(*at) && !votes.has(*at, fence)).collect();
            let mut round = Round::new(until);
            for at in &ask {
                let (node, lease) = (Arc::clone(&self.nodes[*at]), Arc::clone(&lease));
                round.ask(*at, async move { node.confirm(&lease, fence).await });
            }
            // A node that has not granted yet may be silent. Where another number is to be tried, it is not waited for.
            let mut open: Vec<usize> = ask.into_iter().filter(|at| votes.holds(*at)).collect();
            while let Some((at, answer)) = round.next().await {
                votes.confirmed(at, fence, &answer);
                open.retain(|other| *other != at);
                if votes.agree(fence, need) {
                    round.finish(until.end, |_, _| ());
                    return Some(fence);
                }
                if votes.largest() > Some(fence) && votes.having(fence) + open.len() < need {
                    break;
                }
            }
            if votes.largest() <= Some(fence) {
                return None;
            }
            headroom = (4 * headroom).min(HEADROOM_LIMIT);
        }
        None
    }

    /// Releases what an attempt may have left at nodes where it was not refused. Whether nothing of
    /// it is left, or will be.
    async fn clear_up(&self, request: &Request, votes: &Votes, end: Instant) -> bool {
        let lease = Arc::new(request.lease());
        let release = |(at, node): (usize, &Arc<dyn Node>)| {
            let (node, lease) = (Arc::clone(node), Arc::clone(&lease));
            let there = if request.generated { votes.may_hold(at) } else { votes.holds(at) };
            there.then_some(async move { node.withdraw(&lease).await.is_ok() })
        };
        let releases: Vec<_> = self.nodes.iter().enumerate().filter_map(release).collect();
        if releases.is_empty() {
            return request.generated || self.is_nowhere_else(votes);
        }
        let done = join_all(releases);
        if request.generated {
            // The token is used up, so a silent node is not waited for. But the process may end with the answer.
            let done = tokio::spawn(timeout(self.limit(request.ttl), done));
            let _ = timeout(self.node_timeout(request.ttl), done).await;
            return true;
        }
        let all = timeout_at(end, done).await.is_ok_and(|done| done.into_iter().all(|released| released));
        all && self.is_nowhere_else(votes)
    }

    /// Whether no node may hold it but those that have granted it.
    fn is_nowhere_else(&self, votes: &Votes) -> bool {
        (0..self.nodes.len()).all(|at| votes.holds(at) || !votes.may_hold(at))
    }

    /// The answer when a majority cannot be had. Its answers took `took`.
    fn refusal(&self, request: &Request, votes: &Votes, need: usize, took: Duration) -> Result<AcquireReply, Error> {
        let short = took.max(Duration::from_millis(2)).mul_f64(0.5 + 3.0 * fastrand::f64()).min(self.poll_interval);
        let is_busy = match votes.last_verdict(need) {
            // Enough have granted, but no number could be agreed on in time: others were granted shares in every
            // round, or nodes have failed meanwhile.
            Verdict::Granted => request.share != Share::MUTEX || votes.busy() > 0,
            verdict => verdict == Verdict::Busy,
        };
        if is_busy {
            let (holder, at) = votes.holder().map_or((None, 0), |(holder, at)| (Some(holder), at));
            // Clients that divide the nodes among them must not come back together.
            let split = holder.is_none() || at < need;
            let poll_interval = if split { short } else { self.poll_interval };
            return Ok(AcquireReply::Busy(Busy::new(poll_interval).with_holder(holder)));
        }
        if votes.last_verdict(need) == Verdict::NotVoting
            && let Some((until, why)) = votes.refused()
        {
            // A node that failed may be back sooner than one that does not vote.
            let most = if votes.has_failed() { self.poll_interval } else { RETRY };
            return Ok(AcquireReply::Refused { until: until.min(most), why });
        }
        Err(votes.error(&request.name, need))
    }

    /// Asks the nodes once more that were busy when a majority granted the lease. In most cases the last holder's release
    /// reached them late. Until they have the lease, the majority may lose no node.
    fn complete(&self, asked: &Request, want: Option<Arc<Want>>, votes: &Votes, round: Round<AcquireReply>, end: Instant) {
        let busy: Vec<usize> = (0..self.nodes.len()).filter(|at| want.is_some() && votes.is_busy(*at)).collect();
        if busy.is_empty() && round.pending() == 0 {
            return;
        }
        let planting = self.planting(asked.lease().into(), want);
        tokio::spawn(async move {
            for at in busy {
                planting.plant(at);
            }
            let look = |at, answer| {
                if matches!(answer, Ok(AcquireReply::Busy(_))) {
                    planting.plant(at);
                }
                let planting = planting.clone();
                begin(async move { planting.look(at, answer).await });
            };
            round.rest(end, look).await;
        });
    }

    fn planting(&self, lease: Arc<Lease>, want: Option<Arc<Want>>) -> Planting {
        let (nodes, admission, limit) = (Arc::clone(&self.nodes), Arc::clone(&self.admission), self.limit(lease.ttl));
        Planting { nodes, admission, lease, want, limit }
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
        let need = self.need(request.share)?;
        let (began, until) = (Instant::now(), self.until(request.ttl));
        let end = until.end;
        let _from = request.from.as_ref().map(|from| self.wanted.end_without_release(from));
        let want = request.generated.then(|| self.wanted.by(&request.owner));
        // Nodes have no queues: five of them would serve five waiters.
        let keeps = request.enqueue == Enqueue::Heartbeat;
        let asked = Arc::new(request.clone().with_enqueue(if keeps { Enqueue::Heartbeat } else { Enqueue::No }));
        let mut votes = Votes::new(self.nodes.len());
        let votes_with = |answer: &AcquireReply| !matches!(answer, AcquireReply::Refused { .. });
        let mut round = Round::new(until).hurrying_after(need, self.node_timeout(request.ttl)).counting(votes_with);
        for (at, node) in self.nodes.iter().enumerate() {
            let (node, asked) = (Arc::clone(node), Arc::clone(&asked));
            round.ask(at, async move { node.acquire(&asked).await });
        }
        let (mut verdict, mut admissions) = (Verdict::Open, Vec::new());
        while verdict == Verdict::Open
            && let Some((at, answer)) = round.next().await
        {
            if matches!(answer, Ok(AcquireReply::Refused { .. })) {
                admissions.extend(self.admission.begin(at));
            }
            votes.answered(at, answer);
            verdict = votes.verdict(need);
        }
        let granted = match (verdict, self.features.fence) {
            (Verdict::Granted, false) => Some(None),
            (Verdict::Granted, true) => match votes.agreed(need) {
                Some(fence) => Some(Some(fence)),
                None => self.confirm(&asked, &mut votes, need, until).await.map(Some),
            },
            _ => None,
        };
        if let Some(fence) = granted {
            self.complete(&asked, want, &votes, round, end);
            return Ok(AcquireReply::Granted(Grant::new(fence, votes.ttl(request.ttl))));
        }
        if !request.generated {
            // A supplied token is released only where it was granted: elsewhere it may be another client's.
            while let Some((at, answer)) = round.next().await {
                votes.answered(at, answer);
            }
        }
        let took = began.elapsed();
        // An acquisition that was not sent yet must not follow its release.
        drop(round);
        let is_clear = keeps || self.clear_up(&asked, &votes, end).await;
        let refusal = self.refusal(request, &votes, need, took);
        // The process may end with the answer, and nobody else may ask.
        let most = if matches!(refusal, Ok(AcquireReply::Refused { .. })) { end } else { Instant::now() + MOMENT };
        let _ = timeout_at(most.min(end), join_all(admissions)).await;
        // A supplied token that is left at fewer nodes than it needs holds nothing.
        let may_hold = (0..self.nodes.len()).filter(|at| votes.may_hold(*at)).count();
        if is_clear || (refusal.is_ok() && may_hold < need) {
            return refusal;
        }
        Err(votes.error(&request.name, need).maybe_applied())
    }

    async fn acquire_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        // A majority of one name need not be that of another.
        requests.iter().try_for_each(|request| self.need(request.share).map(drop))?;
        Ok(None)
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        let Some(ttl) = leases.iter().map(|lease| lease.ttl).min() else { return Vec::new() };
        let until = self.until(ttl);
        let end = until.end;
        let asked: Arc<[Lease]> = leases.into();
        let wants: Vec<_> = leases.iter().map(|lease| self.want(lease)).collect();
        let mut round = Round::new(until);
        for (at, node) in self.nodes.iter().enumerate() {
            let (node, asked) = (Arc::clone(node), Arc::clone(&asked));
            round.ask(at, async move { Ok(node.renew(&asked).await) });
        }
        let needs: Vec<_> = leases.iter().map(|lease| self.need(lease.share)).collect();
        let mut tallies = vec![Tally::default(); leases.len()];
        while let Some((at, answers)) = round.next().await {
            for (tally, answer) in tallies.iter_mut().zip(answers.into_iter().flatten()) {
                match answer {
                    Ok(RenewReply::Renewed) => tally.yes += 1,
                    Ok(RenewReply::Gone) => tally.no.push(at),
                    Err(error) => tally.failures.push(error),
                }
            }
            let open = |(tally, need): (&Tally, &Result<usize, Error>)| {
                need.as_ref().is_ok_and(|need| !tally.is_decided(*need, self.nodes.len()))
            };
            if !tallies.iter().zip(&needs).any(open) {
                break;
            }
        }
        let renewed: Vec<bool> =
            tallies.iter().zip(&needs).map(|(tally, need)| need.as_ref().is_ok_and(|need| tally.yes >= *need)).collect();
        let plant = {
            let quorum = self.clone();
            move |lease: usize, at| quorum.planting(asked[lease].clone().into(), wants[lease].clone()).plant(at)
        };
        for (lease, tally) in tallies.iter().enumerate().filter(|(lease, _)| renewed[*lease]) {
            for at in &tally.no {
                plant(lease, *at);
            }
        }
        let answer = |((lease, tally), need): ((&Lease, Tally), Result<usize, Error>)| {
            let need = need?;
            if tally.yes >= need {
                return Ok(RenewReply::Renewed);
            }
            if self.nodes.len() - tally.no.len() < need {
                // The others keep it: its holder needs time to stop.
                return Ok(RenewReply::Gone);
            }
            Err(tally.error(&lease.name, need, self.nodes.len(), "renewed"))
        };
        let answers = leases.iter().zip(tallies).zip(needs).map(answer).collect();
        // The slowest node takes a lease again as well.
        round.finish(end, move |at, answers| {
            for (lease, answer) in answers.into_iter().flatten().enumerate() {
                if renewed[lease] && matches!(answer, Ok(RenewReply::Gone)) {
                    plant(lease, at);
                }
            }
        });
        answers
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        let need = self.need(lease.share)?;
        let until = self.until(lease.ttl);
        let want = self.wanted.end(&lease.owner);
        let asked = Arc::new(lease.clone());
        let mut round = Round::new(until);
        for (at, node) in self.nodes.iter().enumerate() {
            let (node, asked) = (Arc::clone(node), Arc::clone(&asked));
            round.ask(at, async move { node.release(&asked, linger).await });
        }
        let releasing = self.planting(asked, Some(want));
        let mut tally = Tally::default();
        while let Some((at, answer)) = round.next().await {
            releasing.released(at, &answer);
            match answer {
                Ok(ReleaseReply::Released) => tally.yes += 1,
                Ok(ReleaseReply::NotHeld) => tally.no.push(at),
                Err(error) => tally.failures.push(error),
            }
            if tally.is_decided(need, self.nodes.len()) {
                break;
            }
        }
        round.finish(until.end, move |at, answer| releasing.released(at, &answer));
        if tally.yes >= need {
            return Ok(ReleaseReply::Released);
        }
        if tally.no.len() > self.nodes.len() - need {
            return Ok(ReleaseReply::NotHeld);
        }
        Err(tally.error(&lease.name, need, self.nodes.len(), "released"))
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

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        let mut round =
            Round::new(Until::after(self.limit(Duration::MAX))).hurrying_after(self.majority(), self.node_timeout(Duration::MAX));
        for (at, node) in self.nodes.iter().enumerate() {
            let (node, name) = (Arc::clone(node), name.cloned());
            round.ask(at, async move { node.inspect(name.as_ref()).await });
        }
        let (mut answered, mut failures) = (0, Vec::new());
        let mut names: HashMap<Name, Vec<Holder>> = HashMap::new();
        while let Some((_, answer)) = round.next().await {
            match answer {
                Ok(entries) => {
                    answered += 1;
                    for entry in entries {
                        names.entry(entry.name).or_default().extend(entry.holders);
                    }
                }
                Err(failed) => failures.push(failed),
            }
        }
        let nodes = self.nodes.len();
        if answered < self.majority() {
            let what = format!("{answered} of {nodes} nodes could be looked at");
            return Err(too_few(what, nodes - self.majority(), nodes - answered - failures.len(), failures));
        }
        let mut entries: Vec<Entry> =
            names.into_iter().map(|(name, holders)| Entry::new(name, self.by_majority(holders, answered), Vec::new())).collect();
        entries.retain(Entry::is_in_use);
        Ok(entries)
    }
}

impl Quorum {
    /// The holders that enough of the nodes know, with the ttl that enough of them keep. A node that has not answered may
    /// know them as well: a name that may be held is not shown as free.
    fn by_majority(&self, found: Vec<Holder>, answered: usize) -> Vec<Holder> {
        let mut holders: Vec<Vec<Holder>> = Vec::new();
        for holder in found {
            match holders.iter_mut().find(|same| same[0].owner == holder.owner) {
                Some(same) => same.push(holder),
                None => holders.push(vec![holder]),
            }
        }
        let held = |mut same: Vec<Holder>| {
            let need = self.need(same[0].share).unwrap_or_else(|_| self.majority());
            same.sort_by_key(|holder| std::cmp::Reverse(holder.ttl.unwrap_or(Duration::MAX)));
            // A node may have noted a number of its own, before the others agreed.
            let agreed = |fence: &Fence| same.iter().filter(|holder| holder.fence == Some(*fence)).count() >= need;
            let fence = same.iter().filter_map(|holder| holder.fence).find(|fence| self.features.fence && agreed(fence));
            let silent = self.nodes.len() - answered;
            (same.len() + silent >= need).then(|| same.swap_remove(need.min(same.len()) - 1).with_fence(fence))
        };
        holders.into_iter().filter_map(held).collect()
    }
}

/// The answers about one lease.
#[derive(Clone, Debug, Default)]
struct Tally {
    yes: usize,
    /// The nodes that said no.
    no: Vec<usize>,
    failures: Vec<Error>,
}

impl Tally {
    fn is_decided(&self, need: usize, nodes: usize) -> bool {
        self.yes >= need || self.no.len() > nodes - need
    }

    fn error(self, name: &Name, need: usize, nodes: usize, what: &str) -> Error {
        let Self { yes, no, failures } = self;
        let what = format!("{name:?} was {what} at {yes} of {nodes} nodes, and {need} are needed");
        let silent = nodes - yes - no.len() - failures.len();
        too_few(what, nodes - need - no.len(), silent, failures).maybe_applied()
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
