//! The protocol as a model that can be searched.

use stateright::Property;

use super::rules::{Bounds, Rules};
use super::state::{Claim, Id, MOST, Op, Phase, Reply, State};
use crate::models::promise::{Promise, Sight, Subject};
use crate::models::story::Story;

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
    Recount(Id),
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
    pub(crate) fn client_of(&self, id: Id) -> usize {
        usize::from(id / self.bounds.claims)
    }

    pub(crate) fn claims_of(&self, client: usize) -> std::ops::Range<Id> {
        let first = u8::try_from(client).expect("clients are few") * self.bounds.claims;
        first..first + self.bounds.claims
    }

    pub(crate) fn all_claims(&self) -> Id {
        self.bounds.clients * self.bounds.claims
    }

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
        if state.cuts < self.bounds.cuts && state.requests.iter().any(|request| under_way(request.claim)) {
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
                self.of_tasks(id, claim, actions);
            }
            Phase::Recounting => actions.extend((claim.sent < asks).then_some(Action::Recount(id))),
            Phase::Lost => actions.push(Action::Release(id)),
            Phase::Clearing => {
                actions.extend((claim.sent < releases).then_some(Action::ClearAgain(id)));
                actions.extend((claim.spent > 0).then_some(Action::PassOn(id)));
                actions.extend((!self.rules.one_way).then_some(Action::Ask(id)));
            }
            _ => {}
        }
    }

    /// A task is done and another of its process waits.
    fn of_tasks(&self, id: Id, claim: Claim, actions: &mut Vec<Action>) {
        let Bounds { tasks, turn, .. } = self.bounds;
        if tasks == 1 {
            return;
        }
        let counts = claim.fence.1 + 1 < tasks || !self.rules.counts_anew;
        let in_turn = (claim.turn < turn && !claim.wanted) || !self.rules.takes_turns;
        if counts && in_turn {
            actions.push(Action::PassOn(id));
        } else if !claim.wanted {
            actions.push(Action::Recount(id));
        }
    }

    /// The requests that may be the next to arrive.
    fn arriving(&self, state: &State) -> Vec<usize> {
        let client = |at: usize| self.client_of(state.requests[at].claim);
        let all = 0..state.requests.len();
        if self.bounds.unordered.is_some() {
            all.filter(|&at| !state.requests[..at].contains(&state.requests[at])).collect()
        } else {
            all.filter(|&at| !(0..at).any(|before| client(before) == client(at))).collect()
        }
    }

    fn tick(&self, state: &mut State) {
        state.server.tick();
        self.tick_claims(state);
        if let Some(latest) = self.bounds.unordered {
            for request in &mut state.requests {
                request.age += 1;
            }
            state.requests.retain(|request| request.age <= latest);
        }
    }

    /// Makes one of states that differ in nothing that matters.
    fn tidy(&self, state: &mut State) {
        if self.bounds.unordered.is_some() {
            state.requests.sort_unstable();
        } else {
            state.requests.sort_by_key(|request| self.client_of(request.claim));
        }
        state.replies.sort_unstable();
        // Whoever waits no more hears none.
        let State { pushes, claims, .. } = state;
        pushes.retain(|push| matches!(claims[usize::from(push.claim)].phase, Phase::Joining | Phase::Waiting));
        pushes.sort_unstable();
        pushes.dedup();
    }

    fn receive(&self, state: &mut State, at: usize) {
        let request = state.requests.remove(at);
        let answer = self.execute(state, request.claim, request.op);
        if request.awaited {
            state.replies.push(Reply { claim: request.claim, answer });
        }
    }

    /// Whether one of those who wait is served in time, if from now on everybody who lives does at once what it can, and all that is on
    /// its way is lost, pushes always.
    fn serves_in_time(&self, state: &State) -> bool {
        let waits = |state: &State, id: Id| matches!(state.phase(id), Phase::Taking | Phase::Joining | Phase::Waiting);
        let waiting: Vec<Id> = (0..self.all_claims()).filter(|id| waits(state, *id)).collect();
        let mut state = state.clone();
        (state.requests, state.replies) = <_>::default();
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
            Phase::Holding | Phase::Lost | Phase::Recounting | Phase::Clearing => self.clear(state, id),
            Phase::Unused | Phase::Dead => return,
        }
        while !state.requests.is_empty() {
            self.receive(state, 0);
            while let Some(reply) = state.replies.pop() {
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
        let (ttl, fence) = (self.bounds.ttl, (1, 0));
        let mut state = State { highest: fence, ..State::default() };
        state.claims[0] = Claim { believed: ttl, fence, ..Claim::at(Phase::Holding) };
        (state.server.owner, state.server.left, state.server.counter) = (Some(0), ttl, 1);
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(self.arriving(state).into_iter().map(Action::Execute));
        actions.extend((0..state.replies.len()).map(Action::Hear));
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
                let reply = state.replies.remove(at);
                self.hear(&mut state, reply);
            }
            Action::HearPush(at) => self.hear_push(&mut state, last.pushes[at]),
            Action::Ask(id) => state.ask(id),
            Action::Beat(id) => state.send(id, Op::Keep),
            Action::Renew(id) => state.send(id, Op::Renew),
            Action::PassOn(id) => self.pass_on(&mut state, id),
            Action::Recount(id) => state.recount(id),
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
        state.requests.len() + state.replies.len() <= under_way && state.server.counter <= grants
    }

    fn properties(&self) -> Vec<Property<Self>> {
        self.all_properties()
    }
}

impl Subject for Protocol {
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
            Promise::InTurn => state.server.queue.iter().all(|place| place.passed <= self.bounds.turn),
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
            Sight::Recounted => state.claims[0].phase == Phase::Holding && state.claims[0].fence.0 > 1,
            Sight::Over => any(Phase::Over),
            Sight::AfterCrash => any(Phase::Dead) && others_hold,
            Sight::Lost => any(Phase::Lost),
            Sight::Renewed | Sight::TakenOver | Sight::Adopted | Sight::AfterFlush => false,
        }
    }

    fn told(&self, actions: &[Action], promise: Promise) -> Story {
        super::story::told(self, actions, promise)
    }
}
