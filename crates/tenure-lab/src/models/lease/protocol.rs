//! The protocol as a model that can be searched.

use stateright::Property;

use super::rules::{Bounds, Counting, Rules};
use super::state::{Claim, Id, MOST, Phase, State};
use super::story::Narrator;
use crate::models::promise::{Promise, Sight, Subject};
use crate::models::story::{Story, told};
use crate::models::traffic::Wire;

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// The request at this place reaches the server.
    Execute(usize),
    /// The reply at this place reaches its client.
    Hear(usize),
    Ask(Id),
    Renew(Id, bool),
    Release(Id),
    GiveUp(Id),
    ClearAgain(Id),
    PassOn(Id),
    Adopt(Id),
    Reconnect(usize),
    Crash(usize),
    Flush,
    Tick,
}

/// Clients and a server under some rules, within some bounds.
#[derive(Clone, Debug)]
pub(crate) struct Protocol {
    pub(crate) rules: Rules,
    pub(crate) bounds: Bounds,
    /// What must hold in every state that is reached.
    pub(crate) promises: Vec<Promise>,
    /// What must hold in one of them.
    pub(crate) sights: Vec<Sight>,
}

impl Protocol {
    /// Far above what the counter can come to without the clock.
    const EPOCH: u8 = 32;

    pub(crate) fn counts(&self) -> bool {
        self.bounds.counting != Counting::No
    }

    fn of_client(&self, state: &State, client: usize, actions: &mut Vec<Action>) {
        if state.clients[client].crashed {
            return;
        }
        let claim = |id: &Id| state.claims[usize::from(*id)];
        let ids = self.claims_of(client);
        let began = claim(&ids.start).phase != Phase::Unused;
        let busy = ids.clone().any(|id| matches!(claim(&id).phase, Phase::Asking | Phase::Holding | Phase::Lost));
        let before = client.checked_sub(1).map(|before| self.claims_of(before).start);
        // Clients are alike: the first that asks is called the first.
        let turn = before.is_none_or(|before| claim(&before).phase != Phase::Unused);
        if let Some(next) = ids.clone().find(|id| claim(id).phase == Phase::Unused).filter(|_| turn && !busy) {
            actions.push(Action::Ask(next));
            if state.passed.is_some() {
                actions.push(Action::Adopt(next));
            }
        }
        for id in ids {
            self.of_claim(state, id, claim(&id), actions);
        }
        if began && self.bounds.wire == Wire::Connections && state.clients[client].link < self.bounds.reconnects {
            actions.push(Action::Reconnect(client));
        }
        if began && state.crashes < self.bounds.crashes {
            actions.push(Action::Crash(client));
        }
    }

    fn of_claim(&self, state: &State, id: Id, claim: Claim, actions: &mut Vec<Action>) {
        match claim.phase {
            Phase::Asking => {
                if claim.sent < self.bounds.asks && !self.bounds.given {
                    actions.push(Action::Ask(id));
                }
                if self.bounds.cancels || !claim.awaits {
                    actions.push(Action::GiveUp(id));
                }
            }
            Phase::Holding => {
                if claim.sent < self.bounds.renewals {
                    actions.push(Action::Renew(id, false));
                    if self.bounds.shorter {
                        actions.push(Action::Renew(id, true));
                    }
                }
                actions.push(Action::Release(id));
                if state.passes < self.bounds.passes {
                    actions.push(Action::PassOn(id));
                }
            }
            Phase::Lost => actions.push(Action::Release(id)),
            Phase::Clearing => {
                if claim.sent < self.bounds.releases && !self.bounds.given {
                    actions.push(Action::ClearAgain(id));
                }
                if !self.rules.one_way && claim.sent < self.bounds.asks {
                    actions.push(Action::Ask(id));
                }
            }
            _ => {}
        }
    }

    fn tick(&self, state: &mut State) {
        state.server.tick();
        self.tick_claims(state);
        state.traffic.tick(self.bounds.latest);
    }
}

impl stateright::Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        assert!(usize::from(self.all_claims()) <= MOST, "more claims than a state has room for");
        let mut state = State::default();
        if self.counts() {
            state.server.micros = Self::EPOCH;
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let arriving = state.traffic.arriving(self.bounds.wire, |id| self.client_of(id));
        actions.extend(arriving.into_iter().map(Action::Execute));
        actions.extend((0..state.traffic.replies.len()).map(Action::Hear));
        for client in 0..usize::from(self.bounds.clients) {
            self.of_client(state, client, actions);
        }
        if state.flushes < self.bounds.flushes && (state.server.owner.is_some() || state.server.counter > 0) {
            actions.push(Action::Flush);
        }
        actions.push(Action::Tick);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Execute(at) => {
                let request = state.traffic.requests.remove(at);
                let answer = self.execute(&mut state.server, request);
                state.traffic.answer(request, answer);
            }
            Action::Hear(at) => {
                let reply = state.traffic.replies.remove(at);
                self.hear(&mut state, reply);
            }
            Action::Ask(id) => self.ask(&mut state, id),
            Action::Renew(id, short) => self.send_renewal(&mut state, id, short),
            Action::Release(id) => self.give_back(&mut state, id),
            Action::GiveUp(id) => self.give_up(&mut state, id),
            Action::ClearAgain(id) => self.clear_again(&mut state, id),
            Action::PassOn(id) => self.pass_on(&mut state, id),
            Action::Adopt(id) => self.adopt(&mut state, id),
            Action::Reconnect(client) => self.reconnect(&mut state, client),
            Action::Crash(client) => self.crash(&mut state, client),
            Action::Flush => {
                state.server.forget();
                let copy = if self.bounds.older_copy { Self::EPOCH } else { 0 };
                state.server.counter = state.server.counter.min(copy);
                state.flushes += 1;
            }
            Action::Tick => self.tick(&mut state),
        }
        state.traffic.tidy(self.bounds.wire, |id| self.client_of(id));
        Some(state)
    }

    fn within_boundary(&self, state: &State) -> bool {
        self.bounds.under_way.is_none_or(|most| state.traffic.len() <= most)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        self.all_properties()
    }
}

impl Subject for Protocol {
    const TICK: Action = Action::Tick;

    fn claimants(&self) -> (u8, u8) {
        (self.bounds.clients, self.bounds.claims)
    }

    fn promises(&self) -> &[Promise] {
        &self.promises
    }

    fn sights(&self) -> &[Sight] {
        &self.sights
    }

    fn keeps(&self, state: &State, promise: Promise) -> bool {
        match promise {
            Promise::OneHolder => state.believers() <= 1,
            Promise::FencesRise => !state.fell,
            Promise::NoOrphan => {
                let over = |owner: Id| state.claims[usize::from(owner)].phase == Phase::Over;
                !state.server.owner.is_some_and(over) && state.server.left <= state.server.asked_for || self.bounds.given
            }
            Promise::LossIsFinal => !state.claims.iter().any(|claim| claim.phase == Phase::Lost && claim.believed > 0),
            Promise::NoFalseLoss => !state.robbed,
            Promise::InOrder | Promise::InTurn | Promise::Served => unreachable!("nobody queues here"),
        }
    }

    fn sees(&self, state: &State, sight: Sight) -> bool {
        let any = |phase: Phase| state.claims.iter().any(|claim| claim.phase == phase);
        let holding = any(Phase::Holding);
        match sight {
            Sight::Granted => holding,
            Sight::Renewed => state.claims.iter().any(|claim| claim.phase == Phase::Holding && claim.sent > 0 && !claim.awaits),
            Sight::Lost => any(Phase::Lost),
            Sight::Over => any(Phase::Over),
            Sight::TakenOver => any(Phase::Lost) && holding,
            Sight::AfterCrash => any(Phase::Dead) && holding,
            Sight::Adopted => any(Phase::Passed) && holding && state.passed.is_none(),
            Sight::AfterFlush => state.flushes > 0 && state.heard > 0 && holding,
            _ => unreachable!("nobody queues here"),
        }
    }

    fn told(&self, actions: &[Action], promise: Promise) -> Story {
        told(self, Narrator::new(self), actions, promise)
    }
}
