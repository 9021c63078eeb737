//! The answers of the nodes about one of them that has lost its data, and what follows.

use std::time::Duration;

use super::absence::{Clock, LONGEST, NEW, Noted, SETTLED};
use super::node::{Memory, Vote};

/// The others are asked again, and what has passed is noted anew, after so long.
pub(super) const NOTED_AGAIN: Duration = Duration::from_secs(1);

/// The next thing to do about a node.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    Note(Noted),
    Admit { counter: u64 },
}

/// Answer of a node, and how long after the first question it came.
pub(super) struct Answer {
    pub(super) memory: Memory,
    pub(super) took: Duration,
}

impl Answer {
    /// Its clock at the first question, or an earlier time.
    fn clock_at_first(&self) -> Option<Clock> {
        self.memory.clock.clone().map(|Clock { run, time }| Clock { run, time: time.saturating_sub(self.took) })
    }
}

/// Answers of the nodes about one of them that has lost its data.
pub(super) struct Seen<'a> {
    pub(super) own: &'a Answer,
    /// Those of the others that have answered.
    pub(super) others: Vec<&'a Answer>,
    pub(super) nodes: usize,
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

    pub(super) fn step(&self, noted: &Noted) -> Step {
        let passed = self.passed(noted);
        let waited = noted.waited + passed;
        let now = match noted.wait {
            None if waited < SETTLED => Noted { waited, ..noted.clone() },
            // When a lease ends is known as soon as one of them has granted.
            _ if self.are_new() => Noted { wait: None, is_guess: false, waited, ..noted.clone() },
            Some(wait) => match self.known_wait() {
                Some((known, is_guess)) if waited + known < wait => {
                    Noted { wait: Some(waited + known), is_guess: noted.is_guess && is_guess, waited, ..noted.clone() }
                }
                _ => Noted { waited, ..noted.clone() },
            },
            None => {
                let (wait, is_guess) = self.known_wait().unwrap_or((LONGEST, true));
                Noted { wait: Some(wait), is_guess, counter: self.counted(), ..Noted::default() }
            }
        };
        if self.left_of(&now, Duration::ZERO).is_some_and(|left| left.is_zero()) && self.others_are_ready() {
            return Step::Admit { counter: now.counter.max(self.counted()) };
        }
        let clocks: Vec<Clock> = self.answers().filter_map(|answer| answer.memory.clock.clone()).collect();
        let is_news = now.wait != noted.wait || passed >= NOTED_AGAIN || !noted.knows(&clocks);
        if is_news { Step::Note(now.at(&clocks)) } else { Step::Nothing }
    }

    /// Whether all nodes have answered, and nobody has been granted anything there, nor may have been before.
    fn are_new(&self) -> bool {
        let own = self.own.memory.loss().map(|(loss, _)| loss);
        let is_new = |Answer { memory, .. }: &Answer| match &memory.vote {
            // The other node may not know what this one granted after the other began to vote.
            Vote::Given { new_beside, .. } => new_beside.iter().any(|loss| own == Some(loss)),
            Vote::Lost { note, is_new, .. } => *is_new && Noted::read(note).knows_no_end(),
        };
        self.others.len() + 1 == self.nodes && self.answers().all(is_new)
    }

    /// The losses of the others that do not vote yet, if all are new.
    pub(super) fn new_beside(&self) -> Vec<&str> {
        let others: &[&Answer] = if self.are_new() { &self.others } else { &[] };
        others.iter().filter_map(|answer| answer.memory.loss()).map(|(loss, _)| loss).collect()
    }

    /// Whether the others that vote, or have waited as well, are a majority with this node.
    fn others_are_ready(&self) -> bool {
        let is_ready = |answer: &&&Answer| answer.memory.loss().is_none_or(|(_, note)| self.left(note) == Some(Duration::ZERO));
        self.others.iter().filter(is_ready).count() + 1 >= self.majority()
    }

    /// How long a node has to wait from the first question on, by what is noted there.
    fn left(&self, note: &str) -> Option<Duration> {
        let noted = Noted::read(note);
        self.left_of(&noted, self.passed(&noted))
    }

    /// The same, if so much has passed since it was noted.
    fn left_of(&self, noted: &Noted, passed: Duration) -> Option<Duration> {
        let wait = if self.are_new() { NEW } else { noted.wait? };
        Some(wait.saturating_sub(noted.waited + passed))
    }

    /// Time from the first question to the latest end of a lease from before, as far as a node knows, and whether that is a guess.
    /// None if it knows nothing.
    fn known_end(&self, answer: &Answer) -> Option<(Duration, bool)> {
        let Answer { memory, took } = answer;
        // The node has counted from its answer, which came later.
        let end = if memory.latest_end.is_zero() { Duration::ZERO } else { *took + memory.latest_end };
        match memory.loss() {
            None => Some((end, false)),
            Some((_, note)) => self.left(note).map(|left| (left.max(end), Noted::read(note).is_guess)),
        }
    }

    /// Time from the first question to the latest end of a lease from before, and whether it is a guess. None if too few others know.
    fn known_wait(&self) -> Option<(Duration, bool)> {
        let mut ends: Vec<(Duration, bool)> = self.others.iter().filter_map(|answer| self.known_end(answer)).collect();
        ends.sort_unstable();
        // Any that are enough know all of them, so those which know the least decide.
        ends.get(self.enough() - 1).copied()
    }

    /// The largest counter from before that the others know.
    fn counted(&self) -> u64 {
        self.others.iter().map(|answer| answer.memory.counted()).max().unwrap_or(0)
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
    fn noted(wait: Option<u64>, waited: u64, counter: u64) -> String {
        let clocks: Vec<Clock> = (0..5).map(|at| clock(at, NOTED)).collect();
        Noted { wait: wait.map(secs), waited: secs(waited), counter, ..Noted::default() }.at(&clocks).to_string()
    }

    #[allow(clippy::unnecessary_wraps, reason = "none stands for a node that does not answer")]
    fn memory(vote: Vote, end: u64) -> Option<Memory> {
        Some(Memory { vote, latest_end: secs(end), copy_end: Duration::ZERO, clock: None })
    }

    fn whole(end: u64, counter: u64) -> Option<Memory> {
        memory(Vote::Given { counter, new_beside: Vec::new() }, end)
    }

    fn lost() -> Option<Memory> {
        lost_noted(noted(None, 0, 0), 0)
    }

    fn lost_noted(note: String, end: u64) -> Option<Memory> {
        memory(Vote::Lost { loss: "x".to_owned(), note, is_new: false }, end)
    }

    /// It has so long to wait now.
    fn waiting(left: u64, end: u64) -> Option<Memory> {
        waiting_to_count_on(left, end, 0)
    }

    fn waiting_to_count_on(left: u64, end: u64, counter: u64) -> Option<Memory> {
        lost_noted(noted(Some(LATER.as_secs() + 7 + left), 7, counter), end)
    }

    /// The same without knowledge of an end.
    fn guessing(left: u64) -> Option<Memory> {
        let mut guessing = waiting(left, 0);
        if let Some(Memory { vote: Vote::Lost { note, .. }, .. }) = &mut guessing {
            *note = note.replacen(' ', "? ", 1);
        }
        guessing
    }

    fn new(mut of: Option<Memory>) -> Option<Memory> {
        if let Some(Memory { vote: Vote::Lost { is_new, .. }, .. }) = &mut of {
            *is_new = true;
        }
        of
    }

    /// One that votes, and was new beside another.
    fn new_beside(loss: &str) -> Option<Memory> {
        memory(Vote::Given { counter: 5, new_beside: vec![loss.to_owned()] }, 0)
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
        assert_eq!(wait(lost(), [whole(30, 7), waiting(900, 0), whole(9, 8), whole(5, 1)]), Some(secs(30)));
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
    fn a_node_waits_longest_if_too_few_others_know_or_answer() {
        for others in [[whole(30, 7), None, None, whole(60, 9)], [lost(), lost(), lost(), whole(60, 9)]] {
            assert_eq!(wait(lost(), others), Some(LONGEST));
        }
        for others in [[lost(), lost()], [whole(30, 7), None]] {
            assert_eq!(wait(lost(), others), Some(LONGEST));
        }
        assert_eq!(wait(waiting(3_600, 0), [whole(30, 7), whole(60, 9)]), Some(LATER + secs(7 + 60)), "they are back");
    }

    #[test]
    fn nodes_that_are_all_new_vote_soon() {
        let keeps = |own, others| {
            let step = step(own, others);
            assert!(matches!(&step, Step::Note(noted) if noted.wait.is_none()), "{step:?}");
        };
        keeps(new(lost()), [new(lost()), new(lost())]);
        keeps(new(lost()), [new(lost()), new_beside("x")]);
        // The last one is there. The others have waited for 17 s.
        keeps(new(guessing(3_600)), [new(guessing(3_600)), new(lost())]);
        for (own, other) in [(new(lost()), lost()), (new(lost()), whole(0, 1)), (lost(), new(lost()))] {
            assert_eq!(wait(own, [new(lost()), other]), Some(LONGEST));
        }
        assert_eq!(wait(new(lost()), [new(lost()), None]), Some(LONGEST));
        let waited = |secs| lost_noted(noted(None, secs, 0), 0);
        assert_eq!(step(new(waited(20)), [new(waited(20)), new(waited(5))]), Step::Admit { counter: 0 });
        keeps(new(waited(20)), [new(waited(19)), new(waited(5))]);
    }

    /// They may have granted something and lost it, while the one that votes was away.
    #[test]
    fn nodes_that_came_back_empty_are_not_new_beside_one_that_votes() {
        assert_eq!(wait(new(lost()), [new(lost()), new_beside("an earlier one")]), Some(LONGEST));
        let step = step(new(lost()), [new_beside("an earlier one"), new_beside("an earlier one")]);
        assert_eq!(step, Step::Admit { counter: 5 }, "the others know that there is nothing");
    }

    /// They have come back empty, one after another, and the lease is known to those that wait alone.
    #[test]
    fn a_node_that_waits_for_a_lease_is_not_new() {
        assert_eq!(wait(new(lost()), [new(waiting(595, 0)), new(waiting(588, 0))]), Some(secs(595)));
        assert_eq!(
            step(new(waiting(595, 0)), [new(waiting(588, 0)), new(lost())]),
            step(waiting(595, 0), [waiting(588, 0), lost()])
        );
        // A guess stays one.
        let guess = step(lost(), [guessing(900), guessing(800)]);
        assert!(matches!(&guess, Step::Note(noted) if noted.is_guess && noted.wait == Some(secs(900))), "{guess:?}");
        let known = step(guessing(900), [whole(5, 3), whole(4, 4)]);
        assert!(matches!(&known, Step::Note(noted) if !noted.is_guess), "{known:?}");
    }

    /// Otherwise it would grant something that decides nothing, and look used to the others, which are as new.
    #[test]
    fn a_node_that_has_waited_is_admitted_when_a_majority_has() {
        assert_eq!(step(waiting(0, 0), [waiting(0, 0), lost()]), Step::Admit { counter: 0 });
        assert_eq!(step(waiting(0, 0), [whole(0, 3), None]), Step::Admit { counter: 3 });
        let waits = |step| assert!(matches!(step, Step::Note(_)), "{step:?}");
        waits(step(waiting(0, 0), [waiting(1, 0), lost()]));
        waits(step(waiting(1, 0), [whole(1, 3), whole(0, 4)]));
        waits(step(waiting(1, 0), [whole(0, 3), None]));
    }

    /// A lease that was released everywhere cannot stand.
    #[test]
    fn a_node_waits_no_longer_than_for_what_the_others_still_know() {
        assert_eq!(step(waiting(900, 0), [whole(0, 3), whole(0, 4)]), Step::Admit { counter: 4 });
        assert_eq!(step(waiting(900, 0), [whole(0, 3), waiting(0, 0)]), Step::Admit { counter: 3 });
        assert_eq!(wait(waiting(900, 0), [whole(5, 3), whole(0, 4)]), Some(LATER + secs(7 + 5)));
        assert_eq!(wait(waiting(900, 0), [whole(5, 3), None]), Some(LATER + secs(7 + 900)));
        assert_eq!(wait(waiting(5, 0), [whole(900, 3), whole(0, 4)]), Some(LATER + secs(7 + 5)), "it was granted since");
    }

    /// Of the nodes that have counted a fence, one lost its data before the other did.
    #[test]
    fn a_node_counts_on_from_what_one_that_waits_had_noted() {
        let noted = |step| if let Step::Note(noted) = step { noted.counter } else { panic!("{step:?}") };
        assert_eq!(noted(step(lost(), [whole(9, 3), waiting_to_count_on(5, 0, 8)])), 8);
        assert_eq!(step(waiting_to_count_on(0, 0, 8), [whole(0, 3), None]), Step::Admit { counter: 8 });
        assert_eq!(noted(step(waiting_to_count_on(5, 0, 8), [whole(9, 9), None])), 8);
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
