//! Acquisition at a majority.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::planting::{Planting, Want, begin};
use super::round::{MOMENT, Round, Until};
use super::verdict::Verdict;
use super::votes::Votes;
use super::{Node, Quorum};
use crate::store::{AcquireReply, Busy, Enqueue, Grant, Request};
use crate::{Error, Fence, Share};

/// Longest time until the next try at nodes that do not vote: somebody may admit them.
const RETRY: Duration = Duration::from_secs(2);

/// Headroom of the first round: the nodes are asked to take up a fence that is so far above the largest
/// counter at most. Of several fences at the same moment, the nodes all take up the largest. Each
/// further round has four times the headroom. So the client that has tried longest comes first.
const HEADROOM: u64 = 64;
const HEADROOM_LIMIT: u64 = 1 << 10;

/// How often the nodes are asked for a lease that somebody else takes over at the same moment.
const ADOPTIONS: u32 = 7;

/// Rounds without a pause. Before each further one a client pauses for a random time.
const ROUNDS: u32 = 4;

impl Quorum {
    /// Takes the name at a majority. If several callers take over one lease at the same moment, each may find it at too few nodes,
    /// and hands it back there. Each then tries again after a random pause, whose limit doubles. The last try begins in the first
    /// half of the time.
    pub(super) async fn take(&self, request: &Request) -> Result<AcquireReply, Error> {
        let (need, until, mut tries) = (self.need(request.share)?, self.until(request.ttl), 1);
        let half = until.end - until.end.saturating_duration_since(Instant::now()) / 2;
        loop {
            let began = Instant::now();
            let is_last = request.from.is_none() || tries == ADOPTIONS || began >= half;
            let (answer, is_open) = self.take_once(request, need, until, is_last).await;
            if is_last || !is_open {
                return answer;
            }
            let pause = began.elapsed().mul_f64(fastrand::f64()) * 2_u32.pow(tries);
            sleep_until(half.min(Instant::now() + pause)).await;
            tries += 1;
        }
    }

    /// Tries it once. Returns whether the lease may still be taken over later. A caller that `gives_up` does not hand back a
    /// lease that others have.
    async fn take_once(
        &self,
        request: &Request,
        need: usize,
        until: Until,
        gives_up: bool,
    ) -> (Result<AcquireReply, Error>, bool) {
        let (began, end) = (Instant::now(), until.end);
        let _from = request.from.as_ref().map(|from| self.wanted.end_without_release(from));
        let want = request.generated.then(|| self.wanted.by(&request.owner));
        // Nodes have no queues: five of them would serve five waiters.
        let keeps = request.enqueue == Enqueue::Heartbeat;
        let asked = Arc::new(request.clone().with_enqueue(if keeps { Enqueue::Heartbeat } else { Enqueue::No }));
        let mut votes = Votes::new(self.nodes.len(), keeps || request.from.is_some());
        let votes_with = |answer: &AcquireReply| !matches!(answer, AcquireReply::Refused { .. });
        let mut round =
            Round::new(until).hurrying_after(need, self.node_timeout(request.ttl)).at_their(&self.paces).counting(votes_with);
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
            return (Ok(AcquireReply::Granted(Grant::new(fence, votes.ttl(request.ttl)))), false);
        }
        // They may be nodes that do not vote, which say so later than the others.
        round.open().iter().for_each(|at| self.admission.plan(*at));
        if !request.generated {
            // A supplied token is released only where it was granted: elsewhere it may be another client's.
            while let Some((at, answer)) = round.next().await {
                votes.answered(at, answer);
            }
        }
        let took = began.elapsed();
        // An acquisition that was not sent yet must not follow its release.
        drop(round);
        let refusal = self.refusal(request, &votes, need, took);
        let is_taken = matches!(refusal, Ok(AcquireReply::Busy(_)));
        // Enough nodes answer, and somebody else has the lease at some of them. For a share they do not say who.
        let is_split = votes.busy() > 0 && (votes.holder().is_some() || votes.holders() > 0);
        let is_contended = is_split && votes.holders() + votes.busy() >= need;
        let is_named = request.share == Share::MUTEX && votes.name_one(need);
        let is_open = request.from.is_some() && (is_taken || is_contended) && !is_named;
        let is_lost = is_taken && (gives_up || !is_open);
        let left = if keeps { 0 } else { self.clear_up(&asked, &votes, is_lost, end).await };
        // The process may end with the answer, and nobody else may ask.
        let most = if matches!(refusal, Ok(AcquireReply::Refused { .. })) { end } else { Instant::now() + MOMENT };
        let _ = timeout_at(most.min(end), join_all(admissions)).await;
        // A supplied token that is left at fewer nodes than it needs holds nothing.
        if left == 0 || (refusal.is_ok() && left < need) {
            return (refusal, is_open);
        }
        (Err(votes.error(&request.name, need).maybe_applied()), false)
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
                    let under_way = self.under_way.token();
                    round.finish(until.end, move |_, _| drop(under_way.clone()));
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

    /// Releases what an attempt may have left at nodes where it was not refused, or hands it back to the owner from whom it was
    /// taken over, unless the lease `is_lost`. Returns at how many of them something of it may be left, or come.
    async fn clear_up(&self, request: &Request, votes: &Votes, is_lost: bool, end: Instant) -> usize {
        let lease = Arc::new(request.lease());
        let back = request.handed_back().filter(|_| !is_lost).map(Arc::new);
        let release = |(at, node): (usize, &Arc<dyn Node>)| {
            let (node, lease, back) = (Arc::clone(node), Arc::clone(&lease), back.clone());
            let (paces, began) = (Arc::clone(&self.paces), Instant::now());
            let there = if request.generated { votes.may_hold(at) } else { votes.holds(at) };
            there.then_some(async move {
                let ended = match back {
                    Some(back) => node.acquire(&back).await.is_ok(),
                    None => node.withdraw(&lease).await.is_ok(),
                };
                if ended {
                    // The acquisition may not have waited for it.
                    paces.heard(at, began.elapsed());
                }
                ended
            })
        };
        let releases: Vec<_> = self.nodes.iter().enumerate().filter_map(release).collect();
        if request.generated {
            if !releases.is_empty() {
                // The token is used up, so a silent node is not waited for. But the process may end with the answer.
                let done = self.under_way.spawn(timeout(self.limit(request.ttl), join_all(releases)));
                let _ = timeout(self.node_timeout(request.ttl), done).await;
            }
            return 0;
        }
        let may_hold = (0..self.nodes.len()).filter(|at| votes.may_hold(*at)).count();
        let ended = join_all(releases.into_iter().map(|release| timeout_at(end, release))).await;
        may_hold - ended.into_iter().filter(|released| matches!(released, Ok(true))).count()
    }

    /// The answer when a majority cannot be had. Its answers took `took`.
    fn refusal(&self, request: &Request, votes: &Votes, need: usize, took: Duration) -> Result<AcquireReply, Error> {
        let short = took.max(Duration::from_millis(2)).mul_f64(0.5 + 3.0 * fastrand::f64()).min(self.poll_interval);
        let is_busy = match votes.last_verdict(need) {
            // Enough have granted, but no number could be agreed on in time: others were granted shares in every
            // round, or nodes have failed meanwhile.
            Verdict::Granted => !votes.is_held && (request.share != Share::MUTEX || votes.busy() > 0),
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

    /// Asks the nodes once more that were busy or away when a majority granted the lease. In most cases the last holder's release
    /// reached them late. Until they have the lease, the majority may lose no node.
    fn complete(&self, asked: &Request, want: Option<Arc<Want>>, votes: &Votes, round: Round<AcquireReply>, end: Instant) {
        let lacking: Vec<usize> = (0..self.nodes.len()).filter(|at| want.is_some() && votes.lacks(*at)).collect();
        if lacking.is_empty() && round.pending() == 0 {
            return;
        }
        let planting = Planting { from: asked.from.clone(), ..self.planting(asked.lease().into(), want) };
        tokio::spawn(async move {
            for at in lacking {
                planting.plant(at);
            }
            let look = |at, answer| {
                if Planting::lacks(&answer) {
                    planting.plant(at);
                }
                let planting = planting.clone();
                begin(async move { planting.look(at, answer).await });
            };
            round.rest(end, look).await;
        });
    }
}
