//! Leases: taken, renewed, released, cleared up, passed on as data, and their fences.
//!
//! There is one name. No time is kept back to stop work, so that what is shown needs none. Raising
//! the counter and taking the name are one step here.

use super::protocol::Protocol;
use super::rules::{Counting, Rules};
use super::state::{Answer, Attempt, Id, Op, Phase, Server, State, Wire};
use super::traffic::{Reply, Request};

/// The client's side.
impl Protocol {
    fn mine_counts(&self) -> bool {
        !self.bounds.supplied || !self.rules.supplied_is_busy
    }

    /// Sends a token to be acquired, for the first time or again.
    pub(super) fn ask(&self, state: &mut State, id: Id) {
        let client = state.clients[self.client_of(id)];
        let op = match self.bounds.counting {
            Counting::InTwoSteps => Op::Take { raise: !client.raised, seen: client.seen },
            _ => Op::Attempt { mine_counts: self.mine_counts(), from: None, seen: client.seen },
        };
        let floor = state.largest_heard();
        let attempt = state.attempt(id);
        let unheard = attempt.unheard || (attempt.phase == Phase::Asking && attempt.awaits);
        *attempt = Attempt { unheard, sent: attempt.sent + 1, awaits: attempt.awaits, floor, ..Attempt::at(Phase::Asking) };
        self.send(state, id, op);
    }

    /// Asks to take over the lease that was passed on, once.
    pub(super) fn adopt(&self, state: &mut State, id: Id) {
        let (from, floor, seen) = (state.passed.take(), state.largest_heard(), state.clients[self.client_of(id)].seen);
        *state.attempt(id) = Attempt { sent: self.bounds.asks, floor, ..Attempt::at(Phase::Asking) };
        self.send(state, id, Op::Attempt { mine_counts: true, from, seen });
    }

    /// Ends an attempt that was not granted, or whose grant came too late.
    pub(super) fn give_up(&self, state: &mut State, id: Id) {
        let attempt = state.attempt(id);
        attempt.unheard |= attempt.awaits && !self.bounds.queued;
        let dirty = attempt.awaits || (attempt.unheard && self.late_commands()) || self.bounds.queued;
        if self.bounds.supplied {
            state.end(id, Phase::Unknown);
        } else if dirty && self.rules.clears_up {
            self.clear(state, id);
        } else {
            state.end(id, Phase::Over);
        }
    }

    /// Sends a first release: the validity is over, and so is the token.
    pub(super) fn clear(&self, state: &mut State, id: Id) {
        let Attempt { unheard, valid, fence, .. } = *state.attempt(id);
        let unheard = unheard && self.late_commands();
        state.abandon(id);
        let clears_for = if unheard && self.rules.repeats_clean_up { self.bounds.ttl } else { 0 };
        let spent = if self.rules.release_is_last { 0 } else { valid };
        let fence = if spent > 0 { fence } else { (0, 0) };
        *state.attempt(id) = Attempt { unheard, clears_for, fence, spent, ..Attempt::at(Phase::Clearing) };
        self.clear_again(state, id);
    }

    pub(super) fn clear_again(&self, state: &mut State, id: Id) {
        let attempt = state.attempt(id);
        attempt.sent += 1;
        attempt.last = attempt.clears_for == 0 || !self.rules.last_clean_up_is_late;
        self.send(state, id, Op::Release);
    }

    /// Gives up what it holds or has lost.
    pub(super) fn give_back(&self, state: &mut State, id: Id) {
        let limit = self.bounds.latest.unwrap_or(0);
        let attempt = state.attempt(id);
        if self.bounds.supplied && self.rules.supplied_released_in_time && attempt.valid <= limit {
            state.end(id, Phase::Unknown);
        } else {
            attempt.unheard &= self.rules.repeats_release;
            self.clear(state, id);
        }
    }

    pub(super) fn pass_on(&self, state: &mut State, id: Id) {
        state.abandon(id);
        let attempt = state.attempt(id);
        let valid = if self.rules.passing_ends_validity { 0 } else { attempt.valid };
        *attempt = Attempt { valid, ..Attempt::at(Phase::Passed) };
        state.passed = Some(id);
        state.passes += 1;
    }

    /// Replaces the connection of a client.
    pub(super) fn reconnect(&self, state: &mut State, client: usize) {
        state.clients[client].link += 1;
        state.clients[client].raised = false;
        if self.rules.kills_predecessor {
            state.traffic.requests.retain(|request| self.client_of(request.attempt) != client);
        }
    }

    /// Whether what was sent may run after what was sent later and answered.
    fn late_commands(&self) -> bool {
        self.bounds.wire == Wire::Unordered || !self.rules.kills_predecessor
    }

    pub(super) fn hear(&self, state: &mut State, Reply { attempt: id, answer }: Reply) {
        let attempt = state.attempt(id);
        attempt.awaits = false;
        let age = std::mem::take(&mut attempt.age);
        match (attempt.phase, answer) {
            (Phase::Asking, Answer::Took { counter, floor }) => self.took(state, id, age, counter, floor),
            (Phase::Asking, Answer::NotFree { floor }) => {
                self.saw(state, id, floor);
                self.attempt_it(state, id, age, self.mine_counts());
            }
            (Phase::Asking, Answer::Granted { counter, .. }) => self.granted(state, id, age, counter),
            (Phase::Lost, Answer::Renewed { .. }) if self.rules.deadline_is_final => {}
            (Phase::Holding | Phase::Lost, Answer::Renewed { short }) => {
                let ttl = if short { 1 } else { self.bounds.ttl };
                attempt.valid = attempt.valid.max(self.validity(ttl, age));
            }
            (Phase::Holding, Answer::Gone) => {
                *attempt = Attempt { unheard: attempt.unheard, ..Attempt::at(Phase::Lost) };
                state.robbed |= state.flushes == 0;
            }
            (Phase::Clearing, Answer::Released | Answer::NotHeld) => {
                let repeats = attempt.unheard && self.rules.repeats_clean_up;
                if !repeats || (attempt.clears_for == 0 && attempt.last) {
                    state.end(id, Phase::Over);
                }
            }
            _ => {}
        }
    }

    fn took(&self, state: &mut State, id: Id, age: u8, counter: u8, floor: u8) {
        self.saw(state, id, floor.max(counter));
        if counter > floor || !self.rules.compares_fences {
            self.granted(state, id, age, counter);
        } else {
            // It was granted to us a moment ago.
            self.attempt_it(state, id, age, true);
        }
    }

    /// The counter was raised before, and is this now.
    fn saw(&self, state: &mut State, id: Id, counter: u8) {
        let client = &mut state.clients[self.client_of(id)];
        (client.raised, client.seen) = (true, client.seen.max(counter));
    }

    /// The second step of an acquire, which belongs to the same try.
    fn attempt_it(&self, state: &mut State, id: Id, age: u8, mine_counts: bool) {
        let seen = state.clients[self.client_of(id)].seen;
        self.send(state, id, Op::Attempt { mine_counts, from: None, seen });
        state.attempt(id).age = age;
    }

    fn granted(&self, state: &mut State, id: Id, age: u8, counter: u8) {
        let valid = self.validity(self.bounds.ttl, age);
        if self.counts() {
            let client = &mut state.clients[self.client_of(id)];
            client.seen = client.seen.max(counter);
        }
        if valid == 0 {
            // Too late to be valid: its token goes to the clean-up.
            state.attempt(id).awaits = false;
            return if self.bounds.supplied { state.end(id, Phase::Unknown) } else { self.clear(state, id) };
        }
        let attempt = state.attempt(id);
        let floor = attempt.floor;
        *attempt = Attempt { valid, unheard: attempt.unheard && self.late_commands(), ..Attempt::at(Phase::Holding) };
        if self.counts() {
            let bit = 1 << counter;
            state.fell |= counter <= floor || state.heard & bit != 0;
            state.heard |= bit;
        }
    }

    fn validity(&self, ttl: u8, age: u8) -> u8 {
        if self.rules.valid_from_send { ttl.saturating_sub(age) } else { ttl }
    }
}

/// The server's side: each command is one step.
impl Protocol {
    pub(super) fn execute(&self, server: &mut Server, request: Request) -> Answer {
        let id = request.attempt;
        match request.op {
            Op::Take { raise, seen } => self.take(server, id, raise, seen),
            Op::Attempt { mine_counts, from, seen } => self.attempt(server, id, mine_counts, from, seen),
            Op::Renew { short } => self.renew(server, id, short),
            Op::Release if self.has(server, id) || (server.owner.is_some() && !self.rules.release_compares) => {
                server.forget();
                Answer::Released
            }
            _ => Answer::NotHeld,
        }
    }

    /// Whether the value in place is that of `id`. Of a supplied token there is only one.
    pub(super) fn has(&self, server: &Server, id: Id) -> bool {
        server.owner.is_some_and(|owner| owner == id || self.bounds.supplied)
    }

    fn put(&self, server: &mut Server, id: Id) {
        let ttl = self.bounds.ttl;
        (server.owner, server.left, server.asked_for) = (Some(id), ttl, ttl);
    }

    fn take(&self, server: &mut Server, id: Id, raise: bool, seen: u8) -> Answer {
        let mut floor = seen;
        if raise {
            server.counter = raised(self.rules, server, seen);
            floor = server.counter.max(seen);
        }
        let free = server.owner.is_none();
        if free {
            self.put(server, id);
        }
        // As in the transaction: it counts whether the name was free or not.
        server.counter += 1;
        server.micros += 1;
        if free { Answer::Took { counter: server.counter, floor } } else { Answer::NotFree { floor } }
    }

    fn attempt(&self, server: &mut Server, id: Id, mine_counts: bool, from: Option<Id>, seen: u8) -> Answer {
        let mine = mine_counts && self.has(server, id);
        let handed = from.is_some_and(|from| self.has(server, from) || !self.rules.adoption_compares);
        let free = server.owner.is_none() && from.is_none();
        if !(mine || handed || free) {
            return Answer::Busy;
        }
        if self.counts() {
            server.counter = raised(self.rules, server, seen) + 1;
            server.micros += 1;
        }
        if !mine || self.rules.repeat_extends {
            self.put(server, id);
        }
        Answer::Granted { counter: server.counter, waiting: false }
    }

    fn renew(&self, server: &mut Server, id: Id, short: bool) -> Answer {
        let ttl = if short { 1 } else { self.bounds.ttl };
        if server.owner.is_none() && !self.rules.renewal_never_creates {
            self.put(server, id);
            return Answer::Renewed { short };
        }
        let its_own = self.has(server, id);
        if !its_own && (self.rules.renewal_compares || server.owner.is_none()) {
            return Answer::Gone;
        }
        server.left = if self.rules.renewal_never_shortens { server.left.max(ttl) } else { ttl };
        if its_own {
            server.asked_for = server.asked_for.max(ttl);
        }
        Answer::Renewed { short }
    }
}

/// The counter, or what it may have been before data was lost.
fn raised(rules: Rules, server: &Server, seen: u8) -> u8 {
    if rules.raises { server.counter.max(server.micros).max(seen) } else { server.counter }
}
