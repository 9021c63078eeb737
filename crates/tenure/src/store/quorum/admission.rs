//! How a node that has lost its data comes to vote again.
//!
//! It stays out until no lease from before can stand, and then counts on from what the others have
//! counted. Any majority of the nodes has seen each lease and each fence. So of the others it is
//! enough to ask as many as meet the rest of every majority.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::node::{Memory, Node, Nodes};
use crate::Error;

/// How long a node stays out if too few others know for how long leases last.
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
        let counters = memories.iter().map(|memory| if let Ok(Memory::Whole { counter, .. }) = memory { *counter } else { 0 });
        let counter = counters.max().unwrap_or(0);
        let admit = async |(node, memory): (&Arc<dyn Node>, Result<Memory, Error>)| match memory? {
            Memory::Whole { .. } => Ok(()),
            Memory::Lost { loss } | Memory::Waiting { loss, .. } => {
                node.keep_out(&loss, Duration::ZERO).await?;
                node.admit(&loss, counter).await?;
                match node.memory().await? {
                    Memory::Whole { .. } => Ok(()),
                    _ => Err(Error::unavailable(format!("{node} has lost its data again")).with_hint("try again")),
                }
            }
        };
        join_all(self.nodes.iter().zip(memories).map(admit)).await.into_iter().collect()
    }
}

/// Errors leave things as they are: the next refusal begins this again.
async fn see_to(nodes: &Nodes, at: usize) {
    let Ok(memory) = nodes[at].memory().await else { return };
    let (loss, left) = match memory {
        Memory::Whole { .. } => return,
        Memory::Lost { loss } => (loss, None),
        Memory::Waiting { loss, left } => (loss, Some(left)),
    };
    if left.is_some_and(|left| !left.is_zero()) {
        return;
    }
    // They are asked now, after the loss, and after the wait: what was known before is too old.
    let others = nodes.iter().enumerate().filter(|(other, _)| *other != at);
    let memories = join_all(others.map(|(_, node)| node.memory())).await;
    let Some((longest_ttl, counter)) = known(&memories, nodes.len()) else { return };
    let node = &nodes[at];
    let done = if left.is_some() {
        tracing::info!(%node, "the node votes again");
        node.admit(&loss, counter).await
    } else {
        tracing::warn!(%node, ?longest_ttl, "the node has lost its data, and does not vote until no lease from before can stand");
        node.keep_out(&loss, longest_ttl).await
    };
    if let Err(error) = done {
        tracing::debug!(%node, %error, "the node did not answer");
    }
}

/// Longest ttl and largest counter from before, as the others know them. None if too few have answered.
fn known<E>(memories: &[Result<Memory, E>], nodes: usize) -> Option<(Duration, u64)> {
    let whole = memories.iter().filter_map(|memory| match memory {
        Ok(Memory::Whole { longest_ttl, counter }) => Some((*longest_ttl, *counter)),
        _ => None,
    });
    let (ttls, counters): (Vec<_>, Vec<_>) = whole.unzip();
    // Whatever majority knew of a lease, one of these did.
    let enough = nodes - (nodes / 2 + 1) + 1;
    let counter = counters.into_iter().max().unwrap_or(0);
    if ttls.len() >= enough {
        return Some((ttls.into_iter().max().unwrap_or(LONGEST), counter));
    }
    // Nobody can know. Those that did not answer might.
    memories.iter().all(Result::is_ok).then_some((LONGEST, counter))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn whole(secs: u64, counter: u64) -> Memory {
        Memory::Whole { longest_ttl: Duration::from_secs(secs), counter }
    }

    /// As [`known`], where None stands for a node that does not answer.
    fn known_of<const N: usize>(memories: [Option<Memory>; N], nodes: usize) -> Option<(Duration, u64)> {
        known(&memories.map(|memory| memory.ok_or(())), nodes)
    }

    fn lost() -> Memory {
        Memory::Lost { loss: "x".to_owned() }
    }

    #[test]
    fn a_node_stays_out_for_the_longest_ttl_that_any_majority_may_have_granted() {
        let secs = Duration::from_secs;
        // Of five, three others are enough: they meet what is left of every majority.
        assert_eq!(known_of([Some(whole(30, 7)), Some(whole(60, 9)), Some(whole(30, 8)), None], 5), Some((secs(60), 9)));
        assert_eq!(known_of([Some(whole(30, 7)), Some(whole(60, 9)), Some(lost()), Some(whole(5, 1))], 5), Some((secs(60), 9)));
        assert_eq!(known_of([Some(whole(30, 7)), Some(whole(60, 9))], 3), Some((secs(60), 9)));
    }

    #[test]
    fn a_node_waits_for_others_that_may_know_and_longest_if_nobody_can() {
        assert_eq!(known_of([Some(whole(30, 7)), None, None, Some(whole(60, 9))], 5), None);
        assert_eq!(known_of([Some(lost()), Some(lost()), Some(lost()), Some(whole(60, 9))], 5), Some((LONGEST, 9)));
        assert_eq!(known_of([Some(lost()), Some(lost())], 3), Some((LONGEST, 0)));
        assert_eq!(known_of([Some(whole(30, 7)), None], 3), None);
    }
}
