//! The protocol as a model that can be searched.

use std::ops::Range;

use super::promise::{Promise, Sight};
use super::rules::{Bounds, Counting, Rules};
use super::search::Subject;
use super::state::{Attempt, Client, Id, MOST, Op, Phase, State, Wire};

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
    Renew(Id, bool),
    Release(Id),
    GiveUp(Id),
    ClearAgain(Id),
    /// The lease is passed on as data.
    PassOn(Id),
    Adopt(Id),
    /// The lease goes to another task of the process.
    HandToTask(Id),
    Reconnect(usize),
    Cut(usize),
    Crash(usize),
    Flush,
    Tick,
}

/// Clients and a server under some rules, within some bounds.
#[derive(Clone, Debug)]
pub(crate) struct Protocol {
    pub(super) rules: Rules,
    pub(super) bounds: Bounds,
    /// The promises for every state that is reached.
    pub(super) promises: Vec<Promise>,
    /// The sights that must occur in one of them.
    pub(super) sights: Vec<Sight>,
}

impl Protocol {
    /// Far above what the counter can come to without the clock.
    const EPOCH: u8 = 32;

    pub(super) fn counts(&self) -> bool {
        self.bounds.counting != Counting::No
    }

    /// Claims are numbered through, client by client.
    pub(super) fn client_of(&self, id: Id) -> usize {
        usize::from(id / self.bounds.attempts)
    }

    fn attempts_of(&self, client: usize) -> Range<Id> {
        let attempts = self.bounds.attempts;
        let first = u8::try_from(client).expect("clients are few") * attempts;
        first..first + attempts
    }

    pub(super) fn all_attempts(&self) -> Id {
        self.bounds.clients * self.bounds.attempts
    }

    fn of_client(&self, state: &State, client: usize, actions: &mut Vec<Action>) {
        if state.clients[client].crashed {
            return;
        }
        let ids = self.attempts_of(client);
        let has_begun = |client| state.phase(self.attempts_of(client).start) != Phase::Unused;
        let began = has_begun(client);
        let is_busy =
            |id| matches!(state.phase(id), Phase::Asking | Phase::Joining | Phase::Waiting | Phase::Holding | Phase::Lost);
        // Clients are alike: the first that asks is called the first.
        let turn = client.checked_sub(1).is_none_or(has_begun) && !ids.clone().any(is_busy);
        if let Some(next) = ids.clone().find(|id| state.phase(*id) == Phase::Unused).filter(|_| turn) {
            actions.push(Action::Ask(next));
            actions.extend(state.passed.map(|_| Action::Adopt(next)));
        }
        for id in ids {
            self.of_attempt(state, id, state.attempts[usize::from(id)], actions);
        }
        let Bounds { wire, reconnects, cuts, crashes, .. } = self.bounds;
        let replaces = began && wire == Wire::Connections && state.clients[client].link < reconnects;
        actions.extend(replaces.then_some(Action::Reconnect(client)));
        let sends = || state.traffic.requests.iter().any(|request| self.client_of(request.attempt) == client);
        actions.extend((state.cuts < cuts && sends()).then_some(Action::Cut(client)));
        actions.extend((began && state.crashes < crashes).then_some(Action::Crash(client)));
    }

    fn of_attempt(&self, state: &State, id: Id, attempt: Attempt, actions: &mut Vec<Action>) {
        let Bounds { queued, supplied, asks, beats, renewals, shorter, releases, cancels, passes, .. } = self.bounds;
        let mut may = |is: bool, action| actions.extend(is.then_some(action));
        match attempt.phase {
            Phase::Asking | Phase::Joining | Phase::Waiting => {
                let waits = attempt.phase == Phase::Waiting;
                may(waits && attempt.sent < beats, Action::Beat(id));
                may(!waits && attempt.sent < asks && !supplied, Action::Ask(id));
                may(cancels || !(queued || attempt.awaits), Action::GiveUp(id));
            }
            Phase::Holding => {
                may(attempt.sent < renewals, Action::Renew(id, false));
                may(attempt.sent < renewals && shorter, Action::Renew(id, true));
                may(true, Action::Release(id));
                may(state.passes < passes, Action::PassOn(id));
                may(self.may_hand(attempt), Action::HandToTask(id));
            }
            Phase::Lost => may(true, Action::Release(id)),
            Phase::Clearing => {
                may(attempt.sent < releases && !supplied, Action::ClearAgain(id));
                may(attempt.spent > 0, Action::HandToTask(id));
                may(!self.rules.one_way && attempt.sent < asks, Action::Ask(id));
            }
            _ => {}
        }
    }

    /// Whether another task of the process may have the lease of one that is done.
    fn may_hand(&self, attempt: Attempt) -> bool {
        let tasks = self.bounds.tasks;
        let has_room = attempt.fence.1 + 1 < tasks || !self.rules.index_ends;
        tasks > 1 && has_room && (attempt.turn > 0 || !self.rules.takes_turns)
    }

    /// Sends a command, whose answer is the only one that counts from now on.
    pub(super) fn send(&self, state: &mut State, id: Id, op: Op) {
        if self.rules.matches_answers {
            state.abandon(id);
        }
        let attempt = state.attempt(id);
        (attempt.awaits, attempt.age) = (true, 0);
        state.traffic.send(id, state.clients[self.client_of(id)].link, op);
    }

    pub(super) fn receive(&self, state: &mut State, at: usize) {
        let request = state.traffic.requests.remove(at);
        let answer = if self.bounds.queued {
            self.execute_queued(state, request.attempt, request.op)
        } else {
            self.execute(&mut state.server, request)
        };
        state.traffic.answer(request, answer);
    }

    fn crash(&self, state: &mut State, client: usize) {
        for id in self.attempts_of(client) {
            state.end(id, Phase::Dead);
        }
        state.clients[client] = Client { crashed: true, ..Client::default() };
        state.crashes += 1;
    }

    fn flush(&self, state: &mut State) {
        state.server.forget();
        let copy = if self.bounds.older_copy { Self::EPOCH } else { 0 };
        state.server.counter = state.server.counter.min(copy);
        state.flushes += 1;
    }

    pub(super) fn tick(&self, state: &mut State) {
        state.server.tick(self.bounds.turn);
        for id in 0..self.all_attempts() {
            self.tick_attempt(state, id);
        }
        state.traffic.tick(self.bounds.latest);
    }

    /// A tick of everything that a client measures.
    fn tick_attempt(&self, state: &mut State, id: Id) {
        let attempt = state.attempt(id);
        if attempt.awaits {
            attempt.age = (attempt.age + 1).min(self.bounds.ttl);
        }
        let ends = attempt.valid == 1 && attempt.phase == Phase::Holding;
        for left in [&mut attempt.valid, &mut attempt.clears_for, &mut attempt.covered, &mut attempt.turn, &mut attempt.spent] {
            *left = left.saturating_sub(1);
        }
        if ends {
            attempt.phase = Phase::Lost;
            let unheard = attempt.unheard;
            if self.rules.deadline_is_final {
                state.end(id, Phase::Lost);
                state.attempt(id).unheard = unheard;
            }
        }
    }

    /// Makes one of states that differ in nothing that matters.
    fn tidy(&self, state: &mut State) {
        state.traffic.tidy(self.bounds.wire, |id| self.client_of(id));
        // A client that waits no more hears none.
        let State { pushes, attempts, .. } = state;
        pushes.retain(|push| matches!(attempts[usize::from(push.attempt)].phase, Phase::Joining | Phase::Waiting));
        pushes.sort_unstable();
        pushes.dedup();
    }

    fn keeps(&self, state: &State, promise: Promise) -> bool {
        let is_over = |id: Id| state.phase(id) == Phase::Over;
        let server = &state.server;
        match promise {
            Promise::OneHolder => state.holders().count() <= 1,
            Promise::FencesRise | Promise::FencesDiffer => !state.fell,
            Promise::NoOrphan => {
                let is_asked_for = self.bounds.queued || server.left <= server.asked_for;
                let over = server.owner.is_some_and(is_over) || server.queue.iter().any(|place| is_over(place.attempt));
                self.bounds.supplied || (is_asked_for && !over)
            }
            Promise::LossIsFinal => !state.attempts.iter().any(|attempt| attempt.phase == Phase::Lost && attempt.valid > 0),
            Promise::NoFalseLoss => !state.robbed,
            Promise::InOrder => !state.overtaken,
            Promise::InTurn => !state.overlong,
            Promise::Served => self.serves_in_time(state),
        }
    }
}

impl Subject for Protocol {
    type State = State;
    type Action = Action;
    type Promise = Promise;

    fn first(&self) -> State {
        assert!(usize::from(self.all_attempts()) <= MOST, "more attempts than a state has room for");
        let mut state = State::default();
        if self.counts() {
            state.server.micros = Self::EPOCH;
        }
        if self.bounds.queued {
            let (Bounds { ttl, turn, .. }, fence) = (self.bounds, (1, 0));
            state.highest = fence;
            state.attempts[0] = Attempt { valid: ttl, fence, turn, ..Attempt::at(Phase::Holding) };
            (state.server.owner, state.server.left, state.server.counter) = (Some(0), ttl, 1);
        }
        state
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let arriving = state.traffic.arriving(self.bounds.wire, |id| self.client_of(id));
        actions.extend(arriving.into_iter().map(Action::Execute));
        actions.extend((0..state.traffic.replies.len()).map(Action::Hear));
        actions.extend((0..state.pushes.len()).map(Action::HearPush));
        for client in 0..usize::from(self.bounds.clients) {
            self.of_client(state, client, actions);
        }
        let has_data = state.server.owner.is_some() || state.server.counter > 0;
        actions.extend((state.flushes < self.bounds.flushes && has_data).then_some(Action::Flush));
        actions.push(Action::Tick);
    }

    fn apply(&self, state: &mut State, action: Action) {
        let queued = self.bounds.queued;
        match action {
            Action::Execute(at) => self.receive(state, at),
            Action::Hear(at) => {
                let reply = state.traffic.replies.remove(at);
                if queued { self.hear_queued(state, reply) } else { self.hear(state, reply) }
            }
            Action::HearPush(at) => self.hear_push(state, state.pushes[at]),
            Action::Ask(id) if queued => self.ask_or_join(state, id),
            Action::Ask(id) => self.ask(state, id),
            Action::Beat(id) => self.repeat(state, id, Op::Keep),
            Action::Renew(id, short) => self.repeat(state, id, Op::Renew { short }),
            Action::Release(id) => self.give_back(state, id),
            Action::GiveUp(id) => self.give_up(state, id),
            Action::ClearAgain(id) => self.clear_again(state, id),
            Action::PassOn(id) => self.pass_on(state, id),
            Action::Adopt(id) => self.adopt(state, id),
            Action::HandToTask(id) => self.hand_to_task(state, id),
            Action::Reconnect(client) => self.reconnect(state, client),
            Action::Cut(client) => self.cut(state, client),
            Action::Crash(client) => self.crash(state, client),
            Action::Flush => self.flush(state),
            Action::Tick => self.tick(state),
        }
        self.tidy(state);
    }

    fn is_within(&self, state: &State) -> bool {
        let Bounds { under_way, grants, .. } = self.bounds;
        under_way.is_none_or(|most| state.traffic.len() <= most) && state.server.counter <= grants
    }

    fn broken(&self, state: &State) -> Option<Promise> {
        self.promises.iter().copied().find(|promise| !self.keeps(state, *promise))
    }

    fn sights(&self) -> &[Sight] {
        &self.sights
    }

    fn sees(&self, state: &State, sight: Sight) -> bool {
        let any = |phase: Phase| state.attempts.iter().any(|attempt| attempt.phase == phase);
        // The holder of the beginning was granted nothing.
        let others = if self.bounds.queued { usize::from(self.bounds.attempts) } else { 0 };
        let holding = state.attempts[others..].iter().any(|attempt| attempt.phase == Phase::Holding);
        match sight {
            Sight::Granted => holding,
            Sight::Renewed => {
                state.attempts.iter().any(|attempt| attempt.phase == Phase::Holding && attempt.sent > 0 && !attempt.awaits)
            }
            Sight::Lost => any(Phase::Lost),
            Sight::Over => any(Phase::Over),
            Sight::TakenOver => any(Phase::Lost) && holding,
            Sight::AfterCrash => any(Phase::Dead) && holding,
            Sight::Adopted => any(Phase::Passed) && holding && state.passed.is_none(),
            Sight::AfterFlush => state.flushes > 0 && state.heard > 0 && holding,
            Sight::Queued => any(Phase::Waiting),
            Sight::Pushed => state.attempts.iter().any(|attempt| attempt.pushed),
            Sight::Ignored => state.pushes.iter().any(|push| {
                let attempt = state.attempts[usize::from(push.attempt)];
                attempt.phase == Phase::Waiting && attempt.covered > 0 && attempt.grant_seq >= push.counter
            }),
            Sight::Passed => state.holders().any(|id| state.attempts[usize::from(id)].fence.1 > 0),
            Sight::WithoutTtl => unreachable!("every lease ends here"),
            Sight::Confirmed => unreachable!("a server alone disagrees with nobody"),
        }
    }
}
