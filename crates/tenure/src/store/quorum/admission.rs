//! How a node that has lost its data comes to vote again.
//!
//! It stays out until the latest end of a lease that the others know, and then counts on from what they
//! have counted. Any majority of the nodes has seen each lease and each fence. So of the others it is
//! enough to ask as many as meet the rest of every majority. A node that waits itself knows when the
//! leases end that it has forgotten: it waits for that long.
//!
//! A node is admitted only when it is one of a majority that votes or has waited. An earlier grant would decide nothing. It would
//! make the node look used, and others that are new as well would wait for an hour.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::absence::{NEW, Noted, SETTLED};
use super::node::{Clock, Memory, Node, Nodes, Vote};
use crate::{BootTime, Error};

/// How long a node stays out if too few others know when leases end.
const LONGEST: Duration = Duration::from_secs(3_600);

/// Time that all of it may take.
const LIMIT: Duration = Duration::from_secs(5);

/// Longest time for one answer: a silent node must not keep another out.
const ANSWERS: Duration = Duration::from_secs(1);

/// The others are asked again, and what has passed is noted anew, after so long.
const NOTED_AGAIN: Duration = Duration::from_secs(1);

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
        let lost: Vec<_> =
            self.nodes.iter().zip(&memories).filter_map(|(node, memory)| Some((node, memory.as_ref().ok()?.loss()?))).collect();
        // All of them before the first votes, so that an admission that is cut off goes on with the next acquisition.
        let ends = Noted::new(Some(Duration::ZERO), Duration::ZERO, &[]).to_string();
        let noted = join_all(lost.iter().map(|(node, (loss, note))| node.note(loss, note, &ends))).await;
        let admit = async |(node, (loss, _)): &(&Arc<dyn Node>, (&str, &str))| {
            node.admit(loss, counter).await?;
            match node.memory().await?.vote {
                Vote::Given { .. } => Ok(()),
                Vote::Lost { .. } => Err(Error::unavailable(format!("{node} has lost its data again")).with_hint("try again")),
            }
        };
        let admitted = join_all(lost.iter().map(admit)).await;
        memories.into_iter().map(|memory| memory.map(drop)).chain(noted).chain(admitted).collect()
    }
}

impl Memory {
    const fn counter(&self) -> Option<u64> {
        if let Vote::Given { counter } = self.vote { Some(counter) } else { None }
    }

    fn loss(&self) -> Option<(&str, &str)> {
        if let Vote::Lost { loss, note } = &self.vote { Some((loss, note)) } else { None }
    }
}

/// Errors leave things as they are: the next refusal begins this again.
async fn see_to(nodes: &Nodes, at: usize) {
    let node = &nodes[at];
    let began = BootTime::now();
    let asked = async |node: &Arc<dyn Node>| {
        let memory = timeout(ANSWERS, node.memory()).await.ok()?.ok()?;
        Some(Answer { memory, took: BootTime::now().since(began) })
    };
    let Some(own) = asked(node).await else { return };
    let Some((loss, before)) = own.memory.loss() else { return };
    let noted = Noted::read(before);
    if has_just_been_noted(&noted, &own.memory) {
        return;
    }
    // They are asked after the loss is found, and once more after the wait: what was known before is too old.
    let others = join_all(nodes.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, node)| asked(node))).await;
    let done = async {
        match (Seen { own: &own, others: others.iter().flatten().collect(), nodes: nodes.len() }).step(&noted) {
            Step::Nothing => Ok(()),
            Step::Note(new) => {
                if let (None, Some(wait)) = (noted.wait, new.wait) {
                    tracing::warn!(%node, ?wait, "the node may have lost its data, and does not vote until no lease from before can stand");
                }
                node.note(loss, before, &new.to_string()).await
            }
            Step::Admit { counter } => {
                tracing::info!(%node, "the node votes again");
                node.admit(loss, counter).await
            }
        }
    };
    if let Err(error) = done.await {
        tracing::debug!(%node, %error, "the node did not answer");
    }
}

/// Whether there is nothing to do yet, as it seems to the node alone. If its clock was set, the others are asked.
fn has_just_been_noted(noted: &Noted, own: &Memory) -> bool {
    let passed = own.clock.as_ref().and_then(|clock| noted.since(clock));
    passed.is_some_and(|passed| passed < NOTED_AGAIN && noted.waited + passed < noted.wait.unwrap_or(SETTLED))
}

/// The next thing to do about a node.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Nothing,
    Note(Noted),
    Admit { counter: u64 },
}

/// Answer of a node, and how long after the first question it came.
struct Answer {
    memory: Memory,
    took: Duration,
}

impl Answer {
    /// Its clock at the first question, or an earlier time.
    fn clock_at_first(&self) -> Option<Clock> {
        self.memory.clock.clone().map(|Clock { run, time }| Clock { run, time: time.saturating_sub(self.took) })
    }
}

/// Answers of the nodes about one of them that has lost its data.
struct Seen<'a> {
    own: &'a Answer,
    /// Those of the others that have answered.
    others: Vec<&'a Answer>,
    nodes: usize,
}

impl Seen<'_> {
    const fn majority(&self) -> usize {
        self.nodes / 2 + 1
    }

    /// Number of others of which one at least has seen what a majority has, whichever that was.
    const fn enough(&self) -> usize {
        self.nodes - self.majority() + 1
    }

    fn answers(&self) -> impl Iterator<Item = &Answer> {
        self.others.iter().copied().chain([self.own])
    }

    /// Time since something was noted, until the first question, by the clocks of a majority.
    fn passed(&self, noted: &Noted) -> Duration {
        noted.passed(self.answers().filter_map(Answer::clock_at_first), self.majority())
    }

    fn step(&self, noted: &Noted) -> Step {
        let passed = self.passed(noted);
        let waited = noted.waited + passed;
        let (wait, waited) = match noted.wait {
            Some(wait) => (Some(wait), waited),
            None if waited < SETTLED => (None, waited),
            None => match self.wait(waited) {
                Some(wait) => (Some(wait), Duration::ZERO),
                None => (None, waited),
            },
        };
        if wait.is_some_and(|wait| waited >= wait)
            && let Some(counter) = self.counted()
            && self.others_are_ready()
        {
            return Step::Admit { counter };
        }
        let clocks: Vec<Clock> = self.answers().filter_map(|answer| answer.memory.clock.clone()).collect();
        let is_news = wait != noted.wait || passed >= NOTED_AGAIN || !noted.knows(&clocks);
        if is_news { Step::Note(Noted::new(wait, waited, &clocks)) } else { Step::Nothing }
    }

    /// Whether the others that vote, or have waited as well, are a majority with this node.
    fn others_are_ready(&self) -> bool {
        let is_ready = |answer: &&&Answer| answer.memory.loss().is_none_or(|(_, note)| self.left(note) == Some(Duration::ZERO));
        self.others.iter().filter(is_ready).count() + 1 >= self.majority()
    }

    /// How long a node has to wait from the first question on, by what is noted there.
    fn left(&self, note: &str) -> Option<Duration> {
        let noted = Noted::read(note);
        Some(noted.wait?.saturating_sub(noted.waited + self.passed(&noted)))
    }

    /// Time from the first question to the latest end of a lease from before, as far as a node knows. None if it knows nothing.
    fn known_end(&self, answer: &Answer) -> Option<Duration> {
        let Answer { memory, took } = answer;
        // The node has counted from its answer, which came later.
        let end = if memory.latest_end.is_zero() { Duration::ZERO } else { *took + memory.latest_end };
        match memory.loss() {
            None => Some(end),
            Some((_, note)) => self.left(note).map(|left| left.max(end)),
        }
    }

    /// How long a node whose loss was found `since` stays out from now on, by what the others know. None if too few have answered.
    fn wait(&self, since: Duration) -> Option<Duration> {
        let ends: Vec<Duration> = self.others.iter().filter_map(|answer| self.known_end(answer)).collect();
        if ends.len() >= self.enough() {
            return ends.into_iter().max();
        }
        // Nobody can know. Those that did not answer might.
        let are_new = self.answers().all(|answer| answer.memory.is_new);
        let all = self.others.len() + 1 == self.nodes;
        all.then(|| if are_new { NEW.saturating_sub(since) } else { LONGEST })
    }

    /// Largest counter from before, as the others know it. None if too few have answered.
    fn counted(&self) -> Option<u64> {
        let counters: Vec<u64> = self.others.iter().filter_map(|answer| answer.memory.counter()).collect();
        let are_enough = counters.len() >= self.enough() || self.others.len() + 1 == self.nodes;
        are_enough.then(|| counters.into_iter().max().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    /// The clocks of all nodes say this much when something is noted, and so much more when they are asked.
    const NOTED: Duration = secs(1_000);
    const LATER: Duration = secs(10);

    fn clock(at: usize, time: Duration) -> Clock {
        Clock { run: format!("run{at}"), time }
    }

    /// By the clocks of five nodes.
    fn noted(wait: Option<u64>, waited: u64) -> String {
        let clocks: Vec<Clock> = (0..5).map(|at| clock(at, NOTED)).collect();
        Noted::new(wait.map(secs), secs(waited), &clocks).to_string()
    }

    #[allow(clippy::unnecessary_wraps, reason = "none stands for a node that does not answer")]
    fn memory(vote: Vote, end: u64) -> Option<Memory> {
        Some(Memory { vote, latest_end: secs(end), is_new: false, clock: None })
    }

    fn whole(end: u64, counter: u64) -> Option<Memory> {
        memory(Vote::Given { counter }, end)
    }

    fn lost() -> Option<Memory> {
        memory(Vote::Lost { loss: "x".to_owned(), note: noted(None, 0) }, 0)
    }

    /// It has so long to wait now.
    fn waiting(left: u64, end: u64) -> Option<Memory> {
        memory(Vote::Lost { loss: "x".to_owned(), note: noted(Some(LATER.as_secs() + 7 + left), 7) }, end)
    }

    fn new(of: Option<Memory>) -> Option<Memory> {
        of.map(|memory| Memory { is_new: true, ..memory })
    }

    /// The next thing to do about a node, as the others answer. None stands for one that does not.
    fn step<const N: usize>(own: Option<Memory>, others: [Option<Memory>; N]) -> Step {
        step_after(own, others, Duration::ZERO)
    }

    fn step_after<const N: usize>(own: Option<Memory>, others: [Option<Memory>; N], took: Duration) -> Step {
        let nodes = std::iter::once(own).chain(others).enumerate();
        let answer = |(at, memory): (usize, Option<Memory>)| {
            memory.map(|memory| Answer { memory: Memory { clock: Some(clock(at, NOTED + LATER)), ..memory }, took })
        };
        let answers: Vec<Option<Answer>> = nodes.map(answer).collect();
        let own = answers[0].as_ref().unwrap();
        let (_, note) = own.memory.loss().unwrap();
        Seen { own, others: answers[1..].iter().flatten().collect(), nodes: N + 1 }.step(&Noted::read(note))
    }

    /// How long a node then has to wait. None if nobody can say, or it need not.
    fn wait<const N: usize>(own: Option<Memory>, others: [Option<Memory>; N]) -> Option<Duration> {
        match step(own, others) {
            Step::Note(noted) => noted.wait,
            _ => None,
        }
    }

    #[test]
    fn a_node_stays_out_until_the_latest_end_of_a_lease_of_any_majority() {
        // Of five, three others are enough: they meet what is left of every majority.
        assert_eq!(wait(lost(), [whole(30, 7), whole(60, 9), whole(0, 8), None]), Some(secs(60)));
        assert_eq!(wait(lost(), [whole(30, 7), whole(60, 9), lost(), whole(5, 1)]), Some(secs(60)));
        assert_eq!(step(lost(), [whole(0, 7), whole(0, 9)]), Step::Admit { counter: 9 });
    }

    /// Otherwise servers that are restarted one after another would cause an hour without a grant.
    #[test]
    fn a_node_that_waits_knows_until_when_what_it_has_forgotten_can_stand() {
        assert_eq!(wait(lost(), [whole(30, 7), waiting(20, 5)]), Some(secs(30)));
        assert_eq!(wait(lost(), [whole(10, 7), waiting(20, 5)]), Some(secs(20)));
        assert_eq!(wait(lost(), [whole(10, 7), waiting(20, 40)]), Some(secs(40)));
        assert_eq!(wait(lost(), [None, waiting(20, 40), whole(0, 1), whole(0, 2)]), Some(secs(40)));
    }

    #[test]
    fn a_node_waits_for_others_that_may_know_and_longest_if_nobody_can() {
        assert_eq!(wait(lost(), [whole(30, 7), None, None, whole(60, 9)]), None);
        assert_eq!(wait(lost(), [lost(), lost(), lost(), whole(60, 9)]), Some(LONGEST));
        assert_eq!(wait(lost(), [lost(), lost()]), Some(LONGEST));
        assert_eq!(wait(lost(), [whole(30, 7), None]), None);
    }

    #[test]
    fn nodes_that_are_all_new_vote_soon() {
        assert_eq!(wait(new(lost()), [new(lost()), new(lost())]), Some(secs(20)));
        assert_eq!(wait(new(lost()), [new(lost()), new(whole(0, 5))]), Some(secs(20)));
        for (own, other) in [(new(lost()), lost()), (new(lost()), whole(0, 1)), (lost(), new(lost()))] {
            assert_eq!(wait(own, [new(lost()), other]), Some(LONGEST));
        }
        assert_eq!(wait(new(lost()), [new(lost()), None]), None);
    }

    /// Otherwise it would grant something that decides nothing, and look used to the others, which are as new.
    #[test]
    fn a_node_that_has_waited_is_admitted_when_a_majority_has() {
        assert_eq!(step(waiting(0, 0), [waiting(0, 0), lost()]), Step::Admit { counter: 0 });
        let waits = |step| assert!(matches!(step, Step::Note(_)), "{step:?}");
        waits(step(waiting(0, 0), [waiting(1, 0), lost()]));
        waits(step(waiting(1, 0), [whole(0, 3), whole(0, 4)]));
        // Nobody knows how far to count on.
        waits(step(waiting(0, 0), [whole(0, 3), None]));
    }

    #[test]
    fn what_the_nodes_have_taken_to_answer_has_not_passed() {
        let took = |secs_: u64| step_after(lost(), [whole(0, 1), whole(0, 1)], secs(secs_));
        assert_eq!(took(7), Step::Admit { counter: 1 });
        assert!(matches!(took(8), Step::Note(Noted { wait: None, waited, .. }) if waited == secs(2)));
        let late = step_after(lost(), [whole(60, 1), whole(0, 1)], secs(1));
        assert!(matches!(&late, Step::Note(noted) if noted.wait == Some(secs(61))), "the end came a second later: {late:?}");
    }
}
