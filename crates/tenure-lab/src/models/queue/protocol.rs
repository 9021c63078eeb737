//! The protocol as a model that can be searched.

use stateright::Property;

use super::rules::{Bounds, Rules};
use super::state::{Claim, Id, MOST, Op, Phase, State};
use super::story::Narrator;
use crate::models::promise::{Promise, Sight, Subject};
use crate::models::story::{Story, told};
use crate::models::traffic::{Traffic, Wire};

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// The request at this place reaches the server.
    Execute(usize),
    /// The reply at this place reaches its client.
    Hear(usize),
    /// The push at this place reaches its client.
    HearPush(usize),
    Ask(Id),
    Beat(Id),
    Renew(Id),
    PassOn(Id),
    Release(Id),
    GiveUp(Id),
    ClearAgain(Id),
    Cut(usize),
    Crash(usize),
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
    fn of_client(&self, state: &State, client: usize, actions: &mut Vec<Action>) {
        if state.crashed[client] {
            return;
        }
        let ids = self.claims_of(client);
        let is_done = |id| matches!(state.phase(id), Phase::Unused | Phase::Clearing | Phase::Over);
        let began = state.phase(ids.start) != Phase::Unused;
        // All but the first are alike: the first of them that asks is called the second.
        let turn = client < 2 || state.phase(self.claims_of(client - 1).start) != Phase::Unused;
        if turn && ids.clone().all(is_done) {
            let next = ids.clone().find(|id| state.phase(*id) == Phase::Unused);
            actions.extend(next.map(Action::Ask));
        }
        for id in ids {
            self.of_claim(id, state.claims[usize::from(id)], actions);
        }
        let under_way = |id: Id| self.client_of(id) == client;
        if state.cuts < self.bounds.cuts && state.traffic.requests.iter().any(|request| under_way(request.claim)) {
            actions.push(Action::Cut(client));
        }
        if began && state.crashes < self.bounds.crashes {
            actions.push(Action::Crash(client));
        }
    }

    fn of_claim(&self, id: Id, claim: Claim, actions: &mut Vec<Action>) {
        let Bounds { asks, beats, renewals, releases, cancels, .. } = self.bounds;
        match claim.phase {
            Phase::Taking | Phase::Joining | Phase::Waiting => {
                if claim.phase == Phase::Waiting {
                    actions.extend((claim.sent < beats).then_some(Action::Beat(id)));
                } else {
                    actions.extend((claim.sent < asks).then_some(Action::Ask(id)));
                }
                actions.extend(cancels.then_some(Action::GiveUp(id)));
            }
            Phase::Holding => {
                actions.extend((claim.sent < renewals).then_some(Action::Renew(id)));
                actions.push(Action::Release(id));
                actions.extend(self.may_pass(claim).then_some(Action::PassOn(id)));
            }
            Phase::Lost => actions.push(Action::Release(id)),
            Phase::Clearing => {
                actions.extend((claim.sent < releases).then_some(Action::ClearAgain(id)));
                actions.extend((claim.spent > 0).then_some(Action::PassOn(id)));
                actions.extend((!self.rules.one_way).then_some(Action::Ask(id)));
            }
            _ => {}
        }
    }

    /// Whether another task of the process may have the lease of one that is done.
    fn may_pass(&self, claim: Claim) -> bool {
        let tasks = self.bounds.tasks;
        let has_room = claim.fence.1 + 1 < tasks || !self.rules.index_ends;
        tasks > 1 && has_room && (claim.turn > 0 || !self.rules.takes_turns)
    }

    fn wire(&self) -> Wire {
        if self.bounds.unordered.is_some() { Wire::Unordered } else { Wire::Connections }
    }

    fn tick(&self, state: &mut State) {
        state.server.tick(self.bounds.turn);
        self.tick_claims(state);
        state.traffic.tick(self.bounds.unordered);
    }

    /// Makes one of states that differ in nothing that matters.
    fn tidy(&self, state: &mut State) {
        state.traffic.tidy(self.wire(), |id| self.client_of(id));
        // Whoever waits no more hears none.
        let State { pushes, claims, .. } = state;
        pushes.retain(|push| matches!(claims[usize::from(push.claim)].phase, Phase::Joining | Phase::Waiting));
        pushes.sort_unstable();
        pushes.dedup();
    }

    fn receive(&self, state: &mut State, at: usize) {
        let request = state.traffic.requests.remove(at);
        let answer = self.execute(state, request.claim, request.op);
        state.traffic.answer(request, answer);
    }

    /// Whether one of those who wait is served in time, if from now on everybody who lives does at once what it can, and all that is on
    /// its way is lost, pushes always.
    fn serves_in_time(&self, state: &State) -> bool {
        let waits = |state: &State, id: Id| matches!(state.phase(id), Phase::Taking | Phase::Joining | Phase::Waiting);
        let waiting: Vec<Id> = (0..self.all_claims()).filter(|id| waits(state, *id)).collect();
        let mut state = state.clone();
        state.traffic = Traffic::default();
        let is_served = |state: &State| waiting.iter().any(|id| state.phase(*id) == Phase::Holding);
        for _ in 0..=self.bounds.served_within {
            for id in 0..self.all_claims() {
                // Who had a place and found it gone queues again, under another token; nothing of the old one is on its way.
                if state.phase(id) != Phase::Over || waiting.contains(&id) {
                    self.acts(&mut state, id);
                }
                if waiting.is_empty() || is_served(&state) {
                    return true;
                }
            }
            self.tick(&mut state);
        }
        false
    }

    /// Does at once what is to be done.
    fn acts(&self, state: &mut State, id: Id) {
        match state.phase(id) {
            Phase::Taking | Phase::Joining | Phase::Over => state.ask(id),
            Phase::Waiting => state.send(id, Op::Keep),
            Phase::Holding | Phase::Lost | Phase::Clearing => self.clear(state, id),
            Phase::Unused | Phase::Dead => return,
        }
        while !state.traffic.requests.is_empty() {
            self.receive(state, 0);
            while let Some(reply) = state.traffic.replies.pop() {
                self.hear(state, reply);
            }
        }
        state.pushes.clear();
    }
}

impl stateright::Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        assert!(usize::from(self.all_claims()) <= MOST, "more claims than a state has room for");
        let (Bounds { ttl, turn, .. }, fence) = (self.bounds, (1, 0));
        let mut state = State { highest: fence, ..State::default() };
        state.claims[0] = Claim { believed: ttl, fence, turn, ..Claim::at(Phase::Holding) };
        (state.server.owner, state.server.left, state.server.counter) = (Some(0), ttl, 1);
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let arriving = state.traffic.arriving(self.wire(), |id| self.client_of(id));
        actions.extend(arriving.into_iter().map(Action::Execute));
        actions.extend((0..state.traffic.replies.len()).map(Action::Hear));
        actions.extend((0..state.pushes.len()).map(Action::HearPush));
        for client in 0..usize::from(self.bounds.clients) {
            self.of_client(state, client, actions);
        }
        actions.push(Action::Tick);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Execute(at) => self.receive(&mut state, at),
            Action::Hear(at) => {
                let reply = state.traffic.replies.remove(at);
                self.hear(&mut state, reply);
            }
            Action::HearPush(at) => self.hear_push(&mut state, last.pushes[at]),
            Action::Ask(id) => state.ask(id),
            Action::Beat(id) => state.send(id, Op::Keep),
            Action::Renew(id) => state.send(id, Op::Renew),
            Action::PassOn(id) => self.pass_on(&mut state, id),
            Action::Release(id) => self.clear(&mut state, id),
            Action::GiveUp(id) => self.give_up(&mut state, id),
            Action::ClearAgain(id) => state.send(id, Op::Release),
            Action::Cut(client) => self.cut(&mut state, client),
            Action::Crash(client) => self.crash(&mut state, client),
            Action::Tick => self.tick(&mut state),
        }
        self.tidy(&mut state);
        Some(state)
    }

    fn within_boundary(&self, state: &State) -> bool {
        let Bounds { under_way, grants, .. } = self.bounds;
        state.traffic.len() <= under_way && state.server.counter <= grants
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
        let is_over = |id: Id| state.phase(id) == Phase::Over;
        match promise {
            Promise::OneHolder => state.believers().count() <= 1,
            Promise::FencesRise => !state.fell,
            Promise::NoOrphan => {
                !state.server.owner.is_some_and(is_over) && !state.server.queue.iter().any(|place| is_over(place.claim))
            }
            Promise::InOrder => !state.overtaken,
            Promise::InTurn => !state.overlong,
            Promise::Served => self.serves_in_time(state),
            Promise::LossIsFinal | Promise::NoFalseLoss => true,
        }
    }

    fn sees(&self, state: &State, sight: Sight) -> bool {
        let any = |phase: Phase| state.claims.iter().any(|claim| claim.phase == phase);
        let others = usize::from(self.bounds.claims);
        let others_hold = state.claims[others..].iter().any(|claim| claim.phase == Phase::Holding);
        match sight {
            Sight::Granted => others_hold,
            Sight::Queued => any(Phase::Waiting),
            Sight::Pushed => state.claims.iter().any(|claim| claim.pushed),
            Sight::Ignored => state.pushes.iter().any(|push| {
                let claim = state.claims[usize::from(push.claim)];
                claim.phase == Phase::Waiting && claim.covered > 0 && claim.mark >= push.counter
            }),
            Sight::Passed => state.believers().any(|id| state.claims[id].fence.1 > 0),
            Sight::Over => any(Phase::Over),
            Sight::AfterCrash => any(Phase::Dead) && others_hold,
            Sight::Lost => any(Phase::Lost),
            Sight::Renewed | Sight::TakenOver | Sight::Orphan | Sight::Adopted | Sight::AfterFlush => false,
        }
    }

    fn told(&self, actions: &[Action], promise: Promise) -> Story {
        told(self, Narrator::new(self), actions, promise)
    }
}
