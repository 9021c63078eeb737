//! How a node that has lost its data comes to vote again.
//!
//! It stays out until the latest end of a lease that the others know, and then counts on from what they
//! have counted. Any majority of the nodes has seen each lease and each fence. So of the others it is
//! enough to ask as many as meet the rest of every majority. A node that waits itself knows when the
//! leases end that it has forgotten: it waits for that long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::node::{Memory, NEW, Node, Nodes, SETTLED, Vote};
use crate::Error;

/// How long a node stays out if too few others know when leases end.
const LONGEST: Duration = Duration::from_secs(3_600);

/// Time that all of it may take.
const LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Admission {
    nodes: Nodes,
    /// Whether somebody sees to a node.
    under_way: Vec<Arc<AtomicBool>>,
}

impl Admission {
    pub(super) fn new(nodes: Nodes) -> Self {
        let under_way = nodes.iter().map(|_| Arc::default()).collect();
        Self { nodes, under_way }
    }

    /// Sees to a node that does not vote, in the background. None if somebody does already.
    pub(super) fn begin(&self, at: usize) -> Option<JoinHandle<()>> {
        let under_way = UnderWay::begin(&self.under_way[at])?;
        let nodes = Arc::clone(&self.nodes);
        Some(tokio::spawn(async move {
            let _under_way = under_way;
            let _ = timeout(LIMIT, see_to(&nodes, at)).await;
        }))
    }
}

/// Ends with its task, also if the runtime ends.
struct UnderWay(Arc<AtomicBool>);

impl UnderWay {
    fn begin(flag: &Arc<AtomicBool>) -> Option<Self> {
        let is_first = !flag.swap(true, Ordering::AcqRel);
        is_first.then(|| Self(Arc::clone(flag)))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Admission {
    /// Admits every node that does not vote, without a wait.
    pub(super) async fn now(&self) -> Result<(), Error> {
        let memories = join_all(self.nodes.iter().map(|node| node.memory())).await;
        let counter = memories.iter().flatten().filter_map(Memory::counter).max().unwrap_or(0);
        let admit = async |(node, memory): (&Arc<dyn Node>, Result<Memory, Error>)| match memory?.vote {
            Vote::Given { .. } => Ok(()),
            Vote::Lost { loss, .. } | Vote::Waiting { loss, .. } => {
                node.keep_out(&loss, Duration::ZERO).await?;
                node.admit(&loss, counter).await?;
                match node.memory().await?.vote {
                    Vote::Given { .. } => Ok(()),
                    _ => Err(Error::unavailable(format!("{node} has lost its data again")).with_hint("try again")),
                }
            }
        };
        join_all(self.nodes.iter().zip(memories).map(admit)).await.into_iter().collect()
    }
}

impl Memory {
    const fn counter(&self) -> Option<u64> {
        if let Vote::Given { counter } = self.vote { Some(counter) } else { None }
    }

    /// Time until the latest end of a lease from before, as far as this node knows. None if it knows nothing.
    fn known_end(&self) -> Option<Duration> {
        match self.vote {
            Vote::Given { .. } => Some(self.latest_end),
            Vote::Waiting { left, .. } => Some(self.latest_end.max(left)),
            Vote::Lost { .. } => None,
        }
    }
}

/// Errors leave things as they are: the next refusal begins this again.
async fn see_to(nodes: &Nodes, at: usize) {
    let node = &nodes[at];
    let Ok(memory) = node.memory().await else { return };
    let loss = match &memory.vote {
        Vote::Given { .. } => return,
        Vote::Lost { since, .. } if *since < SETTLED => return,
        Vote::Waiting { left, .. } if !left.is_zero() => return,
        Vote::Lost { loss, .. } | Vote::Waiting { loss, .. } => loss,
    };
    // They are asked now, after the loss, and after the wait: what was known before is too old.
    let others = nodes.iter().enumerate().filter(|(other, _)| *other != at);
    let memories = join_all(others.map(|(_, node)| node.memory())).await;
    let done = async {
        if let Vote::Lost { since, .. } = &memory.vote {
            let Some(wait) = wait(&memory, *since, &memories, nodes.len()) else { return Ok(()) };
            tracing::warn!(%node, ?wait, "the node may have lost its data, and does not vote until no lease from before can stand");
            node.keep_out(loss, wait).await?;
            if !wait.is_zero() {
                return Ok(());
            }
        }
        let Some(counter) = counted(&memories, nodes.len()) else { return Ok(()) };
        tracing::info!(%node, "the node votes again");
        node.admit(loss, counter).await
    };
    if let Err(error) = done.await {
        tracing::debug!(%node, %error, "the node did not answer");
    }
}

/// Number of others of which one at least has seen what a majority has, whichever that was.
const fn enough(nodes: usize) -> usize {
    nodes - (nodes / 2 + 1) + 1
}

/// How long a node that lost its data `since` then stays out, by what the others know. None if too few have answered.
fn wait<E>(own: &Memory, since: Duration, others: &[Result<Memory, E>], nodes: usize) -> Option<Duration> {
    let ends: Vec<Duration> = others.iter().flatten().filter_map(Memory::known_end).collect();
    if ends.len() >= enough(nodes) {
        return ends.into_iter().max();
    }
    // Nobody can know. Those that did not answer might.
    let all = others.iter().map(|memory| memory.as_ref().ok()).collect::<Option<Vec<_>>>()?;
    let are_new = own.is_new && all.iter().all(|memory| memory.is_new);
    Some(if are_new { NEW.saturating_sub(since) } else { LONGEST })
}

/// Largest counter from before, as the others know it. None if too few have answered.
fn counted<E>(others: &[Result<Memory, E>], nodes: usize) -> Option<u64> {
    let counters: Vec<u64> = others.iter().flatten().filter_map(Memory::counter).collect();
    (counters.len() >= enough(nodes) || others.iter().all(Result::is_ok)).then(|| counters.into_iter().max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[allow(clippy::unnecessary_wraps, reason = "none stands for a node that does not answer")]
    fn memory(vote: Vote, end: u64) -> Option<Memory> {
        Some(Memory { vote, latest_end: secs(end), is_new: false })
    }

    fn whole(end: u64, counter: u64) -> Option<Memory> {
        memory(Vote::Given { counter }, end)
    }

    fn lost() -> Option<Memory> {
        memory(Vote::Lost { loss: "x".to_owned(), since: secs(3) }, 0)
    }

    fn waiting(left: u64, end: u64) -> Option<Memory> {
        memory(Vote::Waiting { loss: "x".to_owned(), left: secs(left) }, end)
    }

    fn new(of: Option<Memory>) -> Option<Memory> {
        of.map(|memory| Memory { is_new: true, ..memory })
    }

    /// The wait, and the counter. None stands for a node that does not answer.
    fn known<const N: usize>(own: Option<Memory>, others: [Option<Memory>; N]) -> (Option<Duration>, Option<u64>) {
        let others = others.map(|memory| memory.ok_or(()));
        (wait(&own.unwrap(), secs(3), &others, N + 1), counted(&others, N + 1))
    }

    #[test]
    fn a_node_stays_out_until_the_latest_end_of_a_lease_of_any_majority() {
        // Of five, three others are enough: they meet what is left of every majority.
        assert_eq!(known(lost(), [whole(30, 7), whole(60, 9), whole(0, 8), None]), (Some(secs(60)), Some(9)));
        assert_eq!(known(lost(), [whole(30, 7), whole(60, 9), lost(), whole(5, 1)]), (Some(secs(60)), Some(9)));
        assert_eq!(known(lost(), [whole(0, 7), whole(0, 9)]), (Some(secs(0)), Some(9)));
    }

    /// Otherwise servers that are restarted one after another would cause an hour without a grant.
    #[test]
    fn a_node_that_waits_knows_until_when_what_it_has_forgotten_can_stand() {
        assert_eq!(known(lost(), [whole(30, 7), waiting(20, 5)]), (Some(secs(30)), Some(7)));
        assert_eq!(known(lost(), [whole(10, 7), waiting(20, 5)]), (Some(secs(20)), Some(7)));
        assert_eq!(known(lost(), [whole(10, 7), waiting(20, 40)]), (Some(secs(40)), Some(7)));
        assert_eq!(known(lost(), [None, waiting(20, 40), whole(0, 1), whole(0, 2)]), (Some(secs(40)), None));
    }

    #[test]
    fn a_node_waits_for_others_that_may_know_and_longest_if_nobody_can() {
        assert_eq!(known(lost(), [whole(30, 7), None, None, whole(60, 9)]), (None, None));
        assert_eq!(known(lost(), [lost(), lost(), lost(), whole(60, 9)]), (Some(LONGEST), Some(9)));
        assert_eq!(known(lost(), [lost(), lost()]), (Some(LONGEST), Some(0)));
        assert_eq!(known(lost(), [whole(30, 7), None]), (None, None));
    }

    /// Some of them may vote already: an admission can be cut off half way.
    #[test]
    fn nodes_that_are_all_new_vote_soon() {
        assert_eq!(known(new(lost()), [new(lost()), new(lost())]), (Some(secs(27)), Some(0)));
        assert_eq!(known(new(lost()), [new(lost()), new(whole(0, 5))]), (Some(secs(27)), Some(5)));
        assert_eq!(known(new(lost()), [new(waiting(20, 0)), new(lost())]).0, Some(secs(27)));
        for (own, other) in [(new(lost()), lost()), (new(lost()), whole(0, 1)), (lost(), new(lost()))] {
            assert_eq!(known(own, [new(lost()), other]).0, Some(LONGEST));
        }
        assert_eq!(known(new(lost()), [new(lost()), None]).0, None);
    }
}
