//! How a node that has lost its data comes to vote again.
//!
//! It stays out until the latest end of a lease that the others know, and then counts on from what they
//! have counted. A majority of the nodes has seen each lease and each fence, so it is enough to ask as many
//! of the others as meet the rest of every majority. A node that waits itself knows when the leases
//! end that it has forgotten, because it waits for that long, and how far it had counted, because that was
//! noted with its wait.
//!
//! While it waits, the others are asked again. Where they know of no lease any more, the wait is over.
//!
//! A node is admitted only when it is one of a majority that votes or has waited. An earlier grant would decide nothing. It would
//! make the node look used, and others that are new as well would wait for an hour.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::absence::{Noted, SETTLED};
use super::node::{Memory, Node, Nodes, Vote};
use super::seen::{Answer, NOTED_AGAIN, Seen, Step};
use crate::{BootTime, Error};

/// Time that all of it may take.
const LIMIT: Duration = Duration::from_secs(5);

/// Longest time for one answer: a silent node must not keep another out.
const ANSWERS: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Admission {
    nodes: Nodes,
    /// Whether somebody sees to a node.
    under_way: Vec<Arc<AtomicBool>>,
    /// Whether somebody will.
    planned: Vec<Arc<AtomicBool>>,
}

impl Admission {
    pub(super) fn new(nodes: Nodes) -> Self {
        let flags = || nodes.iter().map(|_| Arc::default()).collect();
        let (under_way, planned) = (flags(), flags());
        Self { nodes, under_way, planned }
    }

    /// Sees to a node that does not vote, in the background, and again each second until it votes. None if somebody is at it.
    pub(super) fn begin(self: &Arc<Self>, at: usize) -> Option<JoinHandle<()>> {
        let under_way = UnderWay::begin(&self.under_way[at])?;
        let me = Arc::clone(self);
        Some(tokio::spawn(async move {
            let goes_on = timeout(LIMIT, see_to(&me.nodes, at)).await.unwrap_or(true);
            drop(under_way);
            if goes_on {
                me.plan(at);
            }
        }))
    }

    /// Begins in a second, if anybody uses the quorum then.
    pub(super) fn plan(self: &Arc<Self>, at: usize) {
        let Some(planned) = UnderWay::begin(&self.planned[at]) else { return };
        let me = Arc::downgrade(self);
        tokio::spawn(async move {
            sleep(NOTED_AGAIN).await;
            drop(planned);
            if let Some(me) = me.upgrade() {
                drop(me.begin(at));
            }
        });
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
        let counter = memories.iter().flatten().map(Memory::counted).max().unwrap_or(0);
        let lost: Vec<_> =
            self.nodes.iter().zip(&memories).filter_map(|(node, memory)| Some((node, memory.as_ref().ok()?.loss()?))).collect();
        // All of them before the first votes, so that an admission that is cut off goes on with the next acquisition.
        let ends = Noted { wait: Some(Duration::ZERO), counter, ..Noted::default() }.to_string();
        let noted = join_all(lost.iter().map(|(node, (loss, note))| node.note(loss, note, &ends))).await;
        let admit = async |(node, (loss, _)): &(&Arc<dyn Node>, (&str, &str))| {
            node.admit(loss, counter, &[]).await?;
            match node.memory().await?.vote {
                Vote::Given { .. } => Ok(()),
                Vote::Lost { .. } => Err(Error::unavailable(format!("{node} has lost its data again")).with_hint("try again")),
            }
        };
        let admitted = join_all(lost.iter().map(admit)).await;
        memories.into_iter().map(|memory| memory.map(drop)).chain(noted).chain(admitted).collect()
    }
}

/// Returns whether the node has to be seen to again. Errors leave things as they are.
async fn see_to(nodes: &Nodes, at: usize) -> bool {
    let node = &nodes[at];
    let began = BootTime::now();
    let asked = async |node: &Arc<dyn Node>| {
        let memory = timeout(ANSWERS, node.memory()).await.ok()?.ok()?;
        Some(Answer { memory, took: BootTime::now().since(began) })
    };
    let Some(own) = asked(node).await else { return true };
    let Some((loss, before)) = own.memory.loss() else { return false };
    let noted = Noted::read(before);
    if has_just_been_noted(&noted, &own.memory) {
        return true;
    }
    // They are asked after the loss is found, and once more after the wait: what was known before is too old.
    let others = join_all(nodes.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, node)| asked(node))).await;
    let done = async {
        let seen = Seen { own: &own, others: others.iter().flatten().collect(), nodes: nodes.len() };
        match seen.step(&noted) {
            Step::Nothing => Ok(()),
            Step::Note(new) => {
                if let (None, Some(wait)) = (noted.wait, new.wait) {
                    tracing::warn!(%node, ?wait, "the node may have lost its data, and does not vote until no lease from before can stand");
                }
                node.note(loss, before, &new.to_string()).await
            }
            Step::Admit { counter } => {
                tracing::info!(%node, "the node votes again");
                node.admit(loss, counter, &seen.new_beside()).await
            }
        }
    };
    if let Err(error) = done.await {
        tracing::debug!(%node, %error, "the node did not answer");
    }
    true
}

/// Whether there is nothing to do yet, as it seems to the node alone. If its clock was set, the others are asked.
fn has_just_been_noted(noted: &Noted, own: &Memory) -> bool {
    let passed = own.clock.as_ref().and_then(|clock| noted.since(clock));
    passed.is_some_and(|passed| passed < NOTED_AGAIN && noted.waited + passed < noted.wait.unwrap_or(SETTLED))
}
