//! What a process sends, and what it makes of the answers and of what is pushed to it.

use super::protocol::Protocol;
use super::state::{Answer, Claim, Id, Op, Phase, Push, Reply, State};
use crate::models::promise::Subject as _;

impl Protocol {
    /// Gives up waiting.
    pub(crate) fn give_up(&self, state: &mut State, id: Id) {
        if self.rules.clears_up { self.clear(state, id) } else { state.end(id, Phase::Over) }
    }

    /// Sends a first release: belief is over, and so is the token.
    pub(crate) fn clear(&self, state: &mut State, id: Id) {
        let Claim { believed, fence, .. } = state.claims[usize::from(id)];
        let spent = if self.rules.release_is_last { 0 } else { believed };
        *state.claim(id) = Claim { spent, fence: if spent > 0 { fence } else { (0, 0) }, ..Claim::at(Phase::Clearing) };
        state.send(id, Op::Release);
    }

    /// The next task has the lease from now on, with no command.
    pub(crate) fn pass_on(&self, state: &mut State, id: Id) {
        let (ttl, tasks) = (self.bounds.ttl, self.bounds.tasks);
        let claim = state.claim(id);
        if claim.phase == Phase::Clearing {
            (claim.phase, claim.believed, claim.awaits) = (Phase::Holding, claim.spent, false);
        }
        claim.spent = 0;
        if !self.rules.deadline_stands {
            claim.believed = ttl;
        }
        let index = claim.fence.1 + 1;
        claim.fence.1 = if index == tasks { 0 } else { index };
        let turn = self.bounds.turn;
        state.overlong |= state.server.queue.iter().any(|place| place.waited >= turn);
        Self::believes(state, id);
    }

    pub(crate) fn crash(&self, state: &mut State, client: usize) {
        for id in self.claims_of(client) {
            state.end(id, Phase::Dead);
        }
        state.crashed[client] = true;
        state.crashes += 1;
    }

    /// The connection of a client is lost, and the server has ended it.
    pub(crate) fn cut(&self, state: &mut State, client: usize) {
        state.traffic.requests.retain(|request| self.client_of(request.claim) != client);
        state.cuts += 1;
    }

    pub(crate) fn hear(&self, state: &mut State, Reply { claim: id, answer }: Reply) {
        let claim = state.claim(id);
        claim.awaits = false;
        let age = std::mem::take(&mut claim.age);
        match (claim.phase, answer) {
            (Phase::Taking, Answer::Granted { waiting: true, .. }) if self.rules.yields => {
                claim.yields = true;
                state.begin(id, Phase::Joining, Op::Yield);
            }
            (Phase::Joining | Phase::Waiting, Answer::Queued { mark }) => {
                let sent = if claim.phase == Phase::Waiting { claim.sent } else { 0 };
                let covered =
                    if self.rules.believes_from_send { self.bounds.claim.saturating_sub(age) } else { self.bounds.claim };
                *claim = Claim { covered, sent, mark: claim.mark.max(mark), ..Claim::at(Phase::Waiting) };
            }
            (Phase::Waiting, Answer::NoPlace) if self.rules.served_once => state.end(id, Phase::Over),
            (Phase::Taking, Answer::NotFree) | (Phase::Waiting, Answer::NoPlace) => state.begin(id, Phase::Joining, Op::Join),
            (Phase::Taking | Phase::Joining | Phase::Waiting, Answer::Granted { counter, .. }) => {
                self.granted(state, id, age, counter);
            }
            (Phase::Holding, Answer::Granted { .. } | Answer::Renewed) => {
                claim.believed = claim.believed.max(self.bounds.ttl.saturating_sub(age));
                claim.pushed = false;
                if !self.rules.one_turn_a_grant {
                    claim.turn = self.bounds.turn;
                }
            }
            (Phase::Holding, Answer::Gone | Answer::NoPlace) => state.end(id, Phase::Lost),
            (Phase::Clearing, Answer::Released) => state.end(id, Phase::Over),
            _ => {}
        }
    }

    fn granted(&self, state: &mut State, id: Id, age: u8, counter: u8) {
        let believed = self.bounds.ttl.saturating_sub(age);
        if believed == 0 {
            return self.clear(state, id);
        }
        let turn = if self.rules.turn_from_send { self.bounds.turn.saturating_sub(age) } else { self.bounds.turn };
        *state.claim(id) = Claim { believed, turn, fence: (counter, 0), ..Claim::at(Phase::Holding) };
        Self::believes(state, id);
    }

    /// A belief has begun.
    fn believes(state: &mut State, id: Id) {
        let fence = state.claim(id).fence;
        state.fell |= fence <= state.highest;
        state.highest = fence;
        state.overtaken |= state.server.owner == Some(id) && state.server.jumped;
    }

    pub(crate) fn hear_push(&self, state: &mut State, Push { claim: id, counter }: Push) {
        let claim = state.claim(id);
        let is_new = counter > claim.mark || !self.rules.compares_marks;
        let believed = if self.rules.believes_from_heartbeat { claim.covered } else { self.bounds.claim };
        if claim.phase == Phase::Waiting && believed > 0 && is_new {
            let (Claim { awaits, age, .. }, turn) = (*claim, self.bounds.turn);
            *claim = Claim { awaits, age, believed, turn, pushed: true, fence: (counter, 0), ..Claim::at(Phase::Holding) };
            Self::believes(state, id);
        }
    }

    /// A tick of everything that a client measures.
    pub(crate) fn tick_claims(&self, state: &mut State) {
        for id in 0..self.all_claims() {
            let claim = state.claim(id);
            if claim.awaits {
                claim.age = (claim.age + 1).min(self.bounds.ttl);
            }
            claim.covered = claim.covered.saturating_sub(1);
            claim.turn = claim.turn.saturating_sub(1);
            claim.spent = claim.spent.saturating_sub(1);
            let ends = claim.believed == 1;
            claim.believed = claim.believed.saturating_sub(1);
            if ends {
                state.end(id, Phase::Lost);
            }
        }
    }
}
