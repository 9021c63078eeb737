//! Clients that wait: their queue, hand-overs that are pushed to them, and leases that pass from
//! task to task of one process.
//!
//! The first client holds at the beginning. A push travels on a path of its own: it may come late,
//! out of order, more than once or never. A connection that is lost has been ended at the server
//! before anything is sent on the next.

use super::protocol::Protocol;
use super::state::{Answer, Attempt, Id, Op, Phase, Place, Push, Server, State};
use super::traffic::{Reply, Traffic};

/// The client's side.
impl Protocol {
    /// Sends one more command of a phase.
    pub(super) fn repeat(&self, state: &mut State, id: Id, op: Op) {
        state.attempt(id).sent += 1;
        self.send(state, id, op);
    }

    /// The first command of a phase.
    fn begin(&self, state: &mut State, id: Id, phase: Phase, op: Op) {
        let attempt = state.attempt(id);
        (attempt.phase, attempt.sent) = (phase, 0);
        self.repeat(state, id, op);
    }

    /// Sends a token to be acquired, for the first time or again.
    pub(super) fn ask_or_join(&self, state: &mut State, id: Id) {
        match *state.attempt(id) {
            Attempt { phase: Phase::Asking, .. } => self.repeat(state, id, Op::TAKE),
            Attempt { phase: Phase::Joining, yields, .. } => self.repeat(state, id, if yields { Op::Yield } else { Op::Join }),
            Attempt { phase: Phase::Unused, .. } => self.begin(state, id, Phase::Asking, Op::TAKE),
            _ => self.begin(state, id, Phase::Joining, Op::Join),
        }
    }

    /// The next task has the lease from now on, with no command.
    pub(super) fn hand_to_task(&self, state: &mut State, id: Id) {
        let (ttl, tasks, turn) = (self.bounds.ttl, self.bounds.tasks, self.bounds.turn);
        let attempt = state.attempt(id);
        if attempt.phase == Phase::Clearing {
            (attempt.phase, attempt.valid, attempt.awaits, attempt.last) = (Phase::Holding, attempt.spent, false, false);
        }
        attempt.spent = 0;
        if !self.rules.deadline_stands {
            attempt.valid = ttl;
        }
        let index = attempt.fence.1 + 1;
        attempt.fence.1 = if index == tasks { 0 } else { index };
        state.overlong |= state.server.queue.iter().any(|place| place.waited >= turn);
        begins(state, id);
    }

    /// The connection of a client is lost, and the server has ended it.
    pub(super) fn cut(&self, state: &mut State, client: usize) {
        state.traffic.requests.retain(|request| self.client_of(request.attempt) != client);
        state.cuts += 1;
    }

    pub(super) fn hear_queued(&self, state: &mut State, Reply { attempt: id, answer }: Reply) {
        let attempt = state.attempt(id);
        attempt.awaits = false;
        let age = std::mem::take(&mut attempt.age);
        let since = if self.rules.valid_from_send { age } else { 0 };
        match (attempt.phase, answer) {
            (Phase::Asking, Answer::Granted { waiting: true, .. }) if self.rules.yields => {
                attempt.yields = true;
                self.begin(state, id, Phase::Joining, Op::Yield);
            }
            (Phase::Joining | Phase::Waiting, Answer::Queued { grant_seq }) => {
                let sent = if attempt.phase == Phase::Waiting { attempt.sent } else { 0 };
                let covered = self.bounds.handoff_ttl.saturating_sub(since);
                *attempt = Attempt { covered, sent, grant_seq: attempt.grant_seq.max(grant_seq), ..Attempt::at(Phase::Waiting) };
            }
            (Phase::Waiting, Answer::NoPlace) if self.rules.served_once => state.end(id, Phase::Over),
            (Phase::Asking, Answer::NotFree { .. }) | (Phase::Waiting, Answer::NoPlace) => {
                self.begin(state, id, Phase::Joining, Op::Join);
            }
            (Phase::Asking | Phase::Joining | Phase::Waiting, Answer::Granted { counter, .. }) => {
                self.served(state, id, age, counter);
            }
            (Phase::Holding, Answer::Granted { .. } | Answer::Renewed { .. }) => {
                attempt.valid = attempt.valid.max(self.bounds.ttl.saturating_sub(age));
                attempt.pushed = false;
                if !self.rules.one_turn_a_grant {
                    attempt.turn = self.bounds.turn;
                }
            }
            (Phase::Holding, Answer::Gone | Answer::NoPlace) => state.end(id, Phase::Lost),
            (Phase::Clearing, Answer::Released) => state.end(id, Phase::Over),
            _ => {}
        }
    }

    fn served(&self, state: &mut State, id: Id, age: u8, counter: u8) {
        let valid = self.bounds.ttl.saturating_sub(age);
        if valid == 0 {
            return self.clear(state, id);
        }
        let turn = if self.rules.turn_from_send { self.bounds.turn.saturating_sub(age) } else { self.bounds.turn };
        *state.attempt(id) = Attempt { valid, turn, fence: (counter, 0), ..Attempt::at(Phase::Holding) };
        begins(state, id);
    }

    pub(super) fn hear_push(&self, state: &mut State, Push { attempt: id, counter }: Push) {
        let attempt = state.attempt(id);
        let is_new = counter > attempt.grant_seq || !self.rules.compares_marks;
        let valid = if self.rules.accepts_from_heartbeat { attempt.covered } else { self.bounds.handoff_ttl };
        if attempt.phase == Phase::Waiting && valid > 0 && is_new {
            let (Attempt { awaits, age, .. }, turn) = (*attempt, self.bounds.turn);
            *attempt = Attempt { awaits, age, valid, turn, pushed: true, fence: (counter, 0), ..Attempt::at(Phase::Holding) };
            begins(state, id);
        }
    }
}

/// A validity has begun.
fn begins(state: &mut State, id: Id) {
    let fence = state.attempt(id).fence;
    state.fell |= fence <= state.highest;
    state.highest = fence;
    state.overtaken |= state.server.owner == Some(id) && state.server.jumped;
}

/// The server's side: each command is one step.
impl Protocol {
    pub(super) fn execute_queued(&self, state: &mut State, id: Id, op: Op) -> Answer {
        let server = &mut state.server;
        let has = server.owner == Some(id);
        match op {
            Op::Take { .. } if server.owner.is_some() => Answer::NotFree { floor: 0 },
            Op::Take { .. } => {
                server.jumped = !server.queue.is_empty();
                self.grant(server, id)
            }
            Op::Yield if has && !server.queue.is_empty() => {
                server.forget();
                self.join(state, id)
            }
            Op::Join | Op::Yield => self.join(state, id),
            Op::Keep => self.keep(state, id),
            Op::Renew { .. } if has => {
                server.left = server.left.max(self.bounds.ttl);
                Answer::Renewed { short: false }
            }
            Op::Release => {
                server.queue.retain(|place| place.attempt != id);
                if has {
                    server.forget();
                    self.serve(state);
                }
                Answer::Released
            }
            _ => Answer::Gone,
        }
    }

    /// The full ttl, from now.
    fn grant(&self, server: &mut Server, id: Id) -> Answer {
        server.jumped &= !server.queue.is_empty();
        server.owner = Some(id);
        server.left = server.left.max(self.bounds.ttl);
        server.count();
        Answer::Granted { counter: server.counter, waiting: !server.queue.is_empty() }
    }

    /// Hands a free name to the first who waits.
    fn serve(&self, state: &mut State) {
        let server = &mut state.server;
        if server.owner.is_some() || server.queue.is_empty() {
            return;
        }
        let attempt = server.queue.remove(0).attempt;
        server.count();
        server.owner = Some(attempt);
        server.left = if self.rules.own_handoff_ttl { self.bounds.handoff_ttl } else { 1 };
        if self.bounds.pushes {
            state.pushes.push(Push { attempt, counter: server.counter });
        }
    }

    fn join(&self, state: &mut State, id: Id) -> Answer {
        self.serve(state);
        if state.server.owner.is_none_or(|owner| owner == id) {
            return self.grant(&mut state.server, id);
        }
        self.queue(&mut state.server, id)
    }

    /// Makes an entry, or looks after it.
    fn queue(&self, server: &mut Server, id: Id) -> Answer {
        let left = self.bounds.entry_ttl;
        match server.place(id) {
            Some(place) => place.left = left,
            None => server.queue.push(Place { attempt: id, left, waited: 0 }),
        }
        Answer::Queued { grant_seq: server.counter }
    }

    fn keep(&self, state: &mut State, id: Id) -> Answer {
        if self.rules.heartbeat_serves {
            self.serve(state);
            if state.server.owner == Some(id) {
                return self.grant(&mut state.server, id);
            }
        }
        if state.server.place(id).is_some() || !self.rules.keep_never_joins {
            return self.queue(&mut state.server, id);
        }
        Answer::NoPlace
    }
}

impl Server {
    fn place(&mut self, id: Id) -> Option<&mut Place> {
        self.queue.iter_mut().find(|place| place.attempt == id)
    }

    /// One more grant, and for those who wait another turn.
    fn count(&mut self) {
        self.counter += 1;
        for place in &mut self.queue {
            place.waited = 0;
        }
    }
}

/// Whether those who wait are served.
impl Protocol {
    /// Whether one of those who wait is served in time, if from now on every living client does at
    /// once what it can, and all that is on its way is lost, pushes always.
    pub(super) fn serves_in_time(&self, state: &State) -> bool {
        let waits = |id: &Id| matches!(state.phase(*id), Phase::Asking | Phase::Joining | Phase::Waiting);
        let waiting: Vec<Id> = (0..self.all_attempts()).filter(waits).collect();
        let mut state = State { traffic: Traffic::default(), ..state.clone() };
        let is_served = |state: &State| waiting.iter().any(|id| state.phase(*id) == Phase::Holding);
        for _ in 0..=self.bounds.served_within {
            for id in 0..self.all_attempts() {
                // A client that had an entry and found it gone queues again, under another token;
                // nothing of the old one is on its way.
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
            Phase::Asking | Phase::Joining | Phase::Over => self.ask_or_join(state, id),
            Phase::Waiting => self.repeat(state, id, Op::Keep),
            Phase::Holding | Phase::Lost | Phase::Clearing => self.clear(state, id),
            Phase::Unused | Phase::Dead | Phase::Passed | Phase::Unknown => return,
        }
        while !state.traffic.requests.is_empty() {
            self.receive(state, 0);
            while let Some(reply) = state.traffic.replies.pop() {
                self.hear_queued(state, reply);
            }
        }
        state.pushes.clear();
    }
}
