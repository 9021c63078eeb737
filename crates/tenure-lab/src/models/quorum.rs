//! A quorum with fences: nodes that know nothing of one another and count the grants of a name, and
//! clients that ask all of them.
//!
//! A client hands out a fence when a majority has counted exactly that. If their counters disagree,
//! a second round has them take up the largest. Commands run in any order, late, twice or never. A
//! node may lose all it knows. When all that counts has arrived, it asks enough of the others until
//! when leases stand, and notes how far they have counted. It votes again after that, and counts on from there.

pub(super) mod list;
mod rules;
mod state;
pub(super) mod story;

use self::rules::{Bounds, Rules};
use self::state::{Attempt, Fault, Leg, MOST, Node, Phase, State, Vote};
use super::promise::{Promise, Sight};
use super::search::Subject;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Ask(usize),
    /// A command reaches a node; `again` if it will come once more. Its reply is heard or lost: a
    /// client that hears late is one that decides late.
    Acquire {
        node: usize,
        id: usize,
        again: bool,
        heard: bool,
    },
    Confirm {
        node: usize,
        id: usize,
        heard: bool,
    },
    Release {
        node: usize,
        id: usize,
    },
    /// The client goes by what it has heard.
    Decide(usize),
    /// The client releases, or gives up.
    End(usize),
    Restart(usize),
    /// A node comes back with a copy from before, in which this attempt, or nobody, holds, and the counter stands there.
    Restore {
        node: usize,
        owner: Option<u8>,
        counter: u8,
    },
    /// A node asks the others how long it has to wait.
    AskOthers(usize),
    Admit(usize),
    Tick,
}

#[derive(Clone, Debug)]
pub(super) struct Quorum {
    pub(super) rules: Rules,
    pub(super) bounds: Bounds,
    pub(super) promises: Vec<Promise>,
    pub(super) sights: Vec<Sight>,
}

impl Quorum {
    /// The fence that an attempt may hand out by what it has heard.
    fn handed(&self, state: &State, id: usize) -> Option<u8> {
        let Attempt { phase, fence, valid, .. } = state.attempts[id];
        if valid == 0 || !matches!(phase, Phase::Asking | Phase::Confirming) {
            return None;
        }
        let majority = self.bounds.majority();
        let has =
            |fence: u8| state.count(id, |leg| leg.heard == fence || (!self.rules.exact && leg.heard > fence) || leg.confirmed);
        if phase == Phase::Confirming {
            return (has(fence) >= majority).then_some(fence);
        }
        let heard = state.nodes.iter().map(|node| node.legs[id].heard).filter(|heard| *heard > 0);
        if !self.rules.confirms {
            return (state.count(id, |leg| leg.heard > 0) >= majority).then(|| heard.max()).flatten();
        }
        heard.clone().find(|fence| has(*fence) >= majority)
    }

    fn decide(&self, state: &mut State, id: usize) {
        if let Some(fence) = self.handed(state, id) {
            if fence <= state.attempts[id].above {
                state.broken = Some(Fault::Fell);
            } else if state.handed >> fence & 1 == 1 {
                state.broken = Some(Fault::Repeated);
            }
            state.handed |= 1 << fence;
            let attempt = &mut state.attempts[id];
            (attempt.phase, attempt.fence) = (Phase::Holding, fence);
            for node in &mut state.nodes {
                let leg = &mut node.legs[id];
                (leg.heard, leg.confirmed) = (0, false);
            }
            return;
        }
        let fence = state.nodes.iter().map(|node| node.legs[id].heard).max().unwrap_or(0);
        let attempt = &mut state.attempts[id];
        (attempt.phase, attempt.fence) = (Phase::Confirming, fence);
        if !self.rules.valid_from_first {
            attempt.valid = self.bounds.ttl;
        }
        for node in &mut state.nodes {
            let leg = &mut node.legs[id];
            if leg.heard != fence {
                leg.confirm = fence;
            }
        }
    }

    /// Whether the client has heard enough for the next step.
    fn may_decide(&self, state: &State, id: usize) -> bool {
        let enough = state.count(id, |leg| leg.heard > 0) >= self.bounds.majority();
        self.handed(state, id).is_some() || (state.attempts[id].phase == Phase::Asking && state.attempts[id].valid > 0 && enough)
    }

    fn acquire(&self, node: &mut Node, id: usize, heard: bool) {
        let me = u8::try_from(id).ok();
        if node.vote == Vote::Given && (node.owner.is_none() || node.owner == me) {
            (node.owner, node.left) = (me, self.bounds.ttl);
            node.counter += 1;
            if heard {
                node.legs[id].heard = node.counter;
            }
        }
    }

    fn confirm(&self, node: &mut Node, id: usize, heard: bool) {
        let fence = std::mem::take(&mut node.legs[id].confirm);
        let mine = node.owner.map(usize::from) == Some(id) || !self.rules.compares_owner;
        // A node that has lost its data has no owner, and confirms nothing.
        if mine && node.vote == Vote::Given && (node.counter <= fence || !self.rules.never_lowers) {
            node.counter = fence;
            node.legs[id].confirmed = heard;
        }
    }

    /// The copies with which a node may come back. Those which make no difference are one.
    fn copies(&self, state: &State, node: usize, actions: &mut Vec<Action>) {
        let counts = self.rules.trusts_copy || !self.rules.counts_on;
        let counters = 0..=if counts { state.nodes[node].counter } else { 0 };
        let asked = (0..MOST).filter(|id| state.attempts[*id].phase != Phase::Unused).filter_map(|id| u8::try_from(id).ok());
        for owner in std::iter::once(None).chain(asked.map(Some)) {
            actions.extend(counters.clone().map(|counter| Action::Restore { node, owner, counter }));
        }
    }

    /// The least that a majority of the others makes known of the fences so far. None if too few of
    /// them remember.
    fn counted(&self, state: &State, node: usize) -> Option<u8> {
        self.known(state, node, |found| match found.vote {
            Vote::Given => Some(found.counter),
            Vote::Kept(_) => Some(found.noted),
            Vote::Lost(_) => None,
        })
    }

    /// The same as those make it known that vote, however few they are.
    fn counted_by_voters(state: &State, node: usize) -> u8 {
        let voters = state.nodes.iter().enumerate().filter(|(other, found)| *other != node && found.vote == Vote::Given);
        voters.map(|(_, found)| found.counter).max().unwrap_or(0)
    }

    /// Whether a node has waited, and is one of a majority that has or votes.
    fn may_vote(&self, state: &State, node: usize) -> bool {
        let is_ready = |found: &&Node| matches!(found.vote, Vote::Given | Vote::Kept(0));
        state.nodes[node].vote == Vote::Kept(0) && state.nodes.iter().filter(is_ready).count() >= self.bounds.majority()
    }

    /// The same of the ticks until the last lease from before ends.
    fn latest_end(&self, state: &State, node: usize) -> Option<u8> {
        self.known(state, node, |found| match found.vote {
            Vote::Given => Some(found.left),
            Vote::Kept(ticks) => Some(found.left.max(ticks)),
            Vote::Lost(_) => None,
        })
    }

    fn known(&self, state: &State, node: usize, knows: impl Fn(&Node) -> Option<u8>) -> Option<u8> {
        let others = state.nodes.iter().enumerate().filter(|(other, _)| *other != node);
        let mut least: Vec<u8> = others.filter_map(|(_, found)| knows(found)).collect();
        least.sort_unstable();
        let enough = self.bounds.nodes - self.bounds.majority() + 1;
        least.get(enough - 1).copied()
    }

    /// How a node is back that has lost its data.
    fn back(&self) -> Vote {
        if self.rules.waits { Vote::Lost(u8::from(self.rules.settles)) } else { Vote::Kept(0) }
    }

    /// Whether an answer to this attempt counts. One tick is what it may take.
    fn is_in_time(&self, attempt: Attempt) -> bool {
        !self.rules.in_time || attempt.valid == self.bounds.ttl
    }
}

impl Subject for Quorum {
    type State = State;
    type Action = Action;
    type Promise = Promise;

    fn first(&self) -> State {
        let node = |id| Node { id, counter: if id == 0 { self.bounds.lead } else { 0 }, ..Node::default() };
        State {
            nodes: (0..u8::try_from(self.bounds.nodes).expect("nodes are few")).rev().map(node).collect(),
            attempts: Default::default(),
            handed: 1,
            doubles: 0,
            restarts: 0,
            broken: None,
        }
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let mut may = |is: bool, action| actions.extend(is.then_some(action));
        for id in 0..self.bounds.attempts {
            let phase = state.attempts[id].phase;
            let turn = id == 0 || state.attempts[id - 1].phase != Phase::Unused;
            may(phase == Phase::Unused && turn, Action::Ask(id));
            may(self.may_decide(state, id), Action::Decide(id));
            may(matches!(phase, Phase::Asking | Phase::Confirming | Phase::Holding), Action::End(id));
            for (node, found) in state.nodes.iter().enumerate() {
                let leg = found.legs[id];
                let asks = matches!(phase, Phase::Asking | Phase::Confirming) && self.is_in_time(state.attempts[id]);
                let may_be_lost = !asks || !self.bounds.heard;
                for heard in [false, true].into_iter().filter(|heard| if *heard { asks } else { may_be_lost }) {
                    may(leg.acquire, Action::Acquire { node, id, again: false, heard });
                    may(leg.acquire && state.doubles < self.bounds.doubles, Action::Acquire { node, id, again: true, heard });
                    may(leg.confirm > 0, Action::Confirm { node, id, heard });
                }
                may(leg.release, Action::Release { node, id });
            }
        }
        for (node, found) in state.nodes.iter().enumerate() {
            let restarts = state.restarts < self.bounds.restarts && found.counter > 0;
            may(restarts && !self.bounds.copies, Action::Restart(node));
            may(found.vote == Vote::Lost(0) && self.latest_end(state, node).is_some(), Action::AskOthers(node));
            may(self.may_vote(state, node), Action::Admit(node));
        }
        let runs = state.attempts.iter().any(|attempt| attempt.valid > 0)
            || state.nodes.iter().any(|node| node.left > 0 || matches!(node.vote, Vote::Kept(1..) | Vote::Lost(1..)));
        may(runs, Action::Tick);
        if self.bounds.copies && state.restarts < self.bounds.restarts {
            (0..state.nodes.len())
                .filter(|node| state.nodes[*node].counter > 0)
                .for_each(|node| self.copies(state, node, actions));
        }
    }

    fn apply(&self, state: &mut State, action: Action) {
        match action {
            Action::Ask(id) => {
                let above = state.largest();
                state.attempts[id] = Attempt { phase: Phase::Asking, valid: self.bounds.ttl, above, fence: 0 };
                state.nodes.iter_mut().for_each(|node| node.legs[id].acquire = true);
            }
            Action::Acquire { node, id, again, heard } => {
                self.acquire(&mut state.nodes[node], id, heard);
                state.nodes[node].legs[id].acquire = again;
                state.doubles += u8::from(again);
            }
            Action::Confirm { node, id, heard } => self.confirm(&mut state.nodes[node], id, heard),
            Action::Release { node, id } => {
                let node = &mut state.nodes[node];
                node.legs[id].release = false;
                if node.owner.map(usize::from) == Some(id) {
                    (node.owner, node.left) = (None, 0);
                }
            }
            Action::Decide(id) => self.decide(state, id),
            Action::End(id) => {
                let attempt = &mut state.attempts[id];
                *attempt = Attempt { phase: Phase::Over, ..Attempt::default() };
                for node in &mut state.nodes {
                    let Leg { acquire, confirm, .. } = node.legs[id];
                    node.legs[id] = Leg { acquire, confirm, release: true, ..Leg::default() };
                }
            }
            Action::Restart(node) => {
                let Node { id, legs, .. } = state.nodes[node];
                state.nodes[node] = Node { id, legs, vote: self.back(), ..Node::default() };
                state.restarts += 1;
            }
            Action::Restore { node, owner, counter } => {
                let Node { id, legs, .. } = state.nodes[node];
                let vote = if self.rules.trusts_copy { Vote::Given } else { self.back() };
                // It may last for longer than the wait: where it was released, the others know of no end.
                let left = if owner.is_some() { self.bounds.ttl + 1 } else { 0 };
                state.nodes[node] = Node { id, owner, left, counter, noted: 0, vote, legs };
                state.restarts += 1;
            }
            Action::AskOthers(node) => {
                let noted = self.counted(state, node).filter(|_| self.rules.notes_counter).unwrap_or(0);
                let ticks = self.latest_end(state, node).unwrap_or(0);
                let node = &mut state.nodes[node];
                (node.vote, node.noted) = (Vote::Kept(ticks), noted);
            }
            Action::Admit(node) => {
                let voters = Self::counted_by_voters(state, node);
                let node = &mut state.nodes[node];
                node.counter = match (self.rules.counts_on, self.rules.notes_counter) {
                    (false, _) => node.counter,
                    (true, false) => voters,
                    (true, true) => node.noted,
                };
                (node.vote, node.noted) = (Vote::Given, 0);
            }
            Action::Tick => {
                for attempt in &mut state.attempts {
                    attempt.valid = attempt.valid.saturating_sub(1);
                }
                for node in &mut state.nodes {
                    node.left = node.left.saturating_sub(1);
                    if node.left == 0 {
                        node.owner = None;
                    }
                    if let Vote::Kept(ticks) | Vote::Lost(ticks) = &mut node.vote {
                        *ticks = ticks.saturating_sub(1);
                    }
                }
            }
        }
        for node in &mut state.nodes {
            for (id, leg) in node.legs.iter_mut().enumerate() {
                // What changes nothing any more is no difference.
                let may_matter = node.owner.map(usize::from) == Some(id) || leg.acquire;
                leg.release &= may_matter;
                if !may_matter && self.rules.compares_owner {
                    leg.confirm = 0;
                }
            }
        }
        state.nodes.sort_by_key(Node::alike);
    }

    fn broken(&self, state: &State) -> Option<Promise> {
        let breaks = |promise: &Promise| match promise {
            Promise::OneHolder => state.holders().count() > 1,
            Promise::FencesRise => state.broken == Some(Fault::Fell),
            Promise::FencesDiffer => state.broken == Some(Fault::Repeated),
            _ => false,
        };
        self.promises.iter().copied().find(breaks)
    }

    fn sights(&self) -> &[Sight] {
        &self.sights
    }

    fn sees(&self, state: &State, sight: Sight) -> bool {
        let holds = |id: usize| state.attempts[id].phase == Phase::Holding;
        match sight {
            Sight::Granted => holds(0),
            Sight::TakenOver => holds(1) && state.attempts[0].phase == Phase::Holding && state.attempts[0].valid == 0,
            Sight::Confirmed => state.attempts.iter().any(|attempt| attempt.phase == Phase::Confirming),
            Sight::AfterFlush => holds(1) && state.restarts > 0 && state.nodes.iter().all(|node| node.vote == Vote::Given),
            Sight::Over => state.attempts[0].phase == Phase::Over,
            _ => false,
        }
    }
}
