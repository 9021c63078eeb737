//! Leases: taken, renewed, released, cleared up, passed on as data, and their fences.
//!
//! There is one name. No time is kept back to stop work, so that what is shown needs none. Lifting the counter and
//! taking the name are one step here.

use super::protocol::Protocol;
use super::rules::{Counting, Rules};
use super::state::{Answer, Claim, Id, Op, Phase, Server, State, Wire};
use super::traffic::{Reply, Request};

/// What a client sends, and what it makes of the answers.
impl Protocol {
    fn mine_counts(&self) -> bool {
        !self.bounds.given || !self.rules.given_is_busy
    }

    /// Sends a token to be acquired, for the first time or again.
    pub(super) fn ask(&self, state: &mut State, id: Id) {
        let client = state.clients[self.client_of(id)];
        let op = match self.bounds.counting {
            Counting::InTwoSteps => Op::Take { lift: !client.lifted, seen: client.seen },
            _ => Op::Claim { mine_counts: self.mine_counts(), from: None, seen: client.seen },
        };
        let floor = state.largest_heard();
        let claim = state.claim(id);
        let unheard = claim.unheard || (claim.phase == Phase::Asking && claim.awaits);
        *claim = Claim { unheard, sent: claim.sent + 1, awaits: claim.awaits, floor, ..Claim::at(Phase::Asking) };
        self.send(state, id, op);
    }

    /// Asks to take over the lease that was passed on, once.
    pub(super) fn adopt(&self, state: &mut State, id: Id) {
        let (from, floor, seen) = (state.passed.take(), state.largest_heard(), state.clients[self.client_of(id)].seen);
        *state.claim(id) = Claim { sent: self.bounds.asks, floor, ..Claim::at(Phase::Asking) };
        self.send(state, id, Op::Claim { mine_counts: true, from, seen });
    }

    /// Ends an attempt that was not granted, or whose grant came too late.
    pub(super) fn give_up(&self, state: &mut State, id: Id) {
        let claim = state.claim(id);
        claim.unheard |= claim.awaits && !self.bounds.queued;
        let dirty = claim.awaits || (claim.unheard && self.late_commands()) || self.bounds.queued;
        if self.bounds.given {
            state.end(id, Phase::Unknown);
        } else if dirty && self.rules.clears_up {
            self.clear(state, id);
        } else {
            state.end(id, Phase::Over);
        }
    }

    /// Sends a first release: belief is over, and so is the token.
    pub(super) fn clear(&self, state: &mut State, id: Id) {
        let Claim { unheard, believed, fence, .. } = *state.claim(id);
        let unheard = unheard && self.late_commands();
        state.abandon(id);
        let clears_for = if unheard && self.rules.repeats_clean_up { self.bounds.ttl } else { 0 };
        let spent = if self.rules.release_is_last { 0 } else { believed };
        let fence = if spent > 0 { fence } else { (0, 0) };
        *state.claim(id) = Claim { unheard, clears_for, spent, fence, ..Claim::at(Phase::Clearing) };
        self.clear_again(state, id);
    }

    pub(super) fn clear_again(&self, state: &mut State, id: Id) {
        let claim = state.claim(id);
        claim.sent += 1;
        claim.last = claim.clears_for == 0 || !self.rules.last_clean_up_is_late;
        self.send(state, id, Op::Release);
    }

    /// Gives up what it holds or has lost.
    pub(super) fn give_back(&self, state: &mut State, id: Id) {
        let limit = self.bounds.latest.unwrap_or(0);
        let claim = state.claim(id);
        if self.bounds.given && self.rules.given_released_in_time && claim.believed <= limit {
            state.end(id, Phase::Unknown);
        } else {
            claim.unheard &= self.rules.repeats_release;
            self.clear(state, id);
        }
    }

    pub(super) fn pass_on(&self, state: &mut State, id: Id) {
        state.abandon(id);
        let claim = state.claim(id);
        let believed = if self.rules.passing_ends_belief { 0 } else { claim.believed };
        *claim = Claim { believed, ..Claim::at(Phase::Passed) };
        state.passed = Some(id);
        state.passes += 1;
    }

    /// Replaces the connection of a client.
    pub(super) fn reconnect(&self, state: &mut State, client: usize) {
        state.clients[client].link += 1;
        state.clients[client].lifted = false;
        if self.rules.kills_predecessor {
            state.traffic.requests.retain(|request| self.client_of(request.claim) != client);
        }
    }

    /// Whether what was sent may run after what was sent later and answered.
    fn late_commands(&self) -> bool {
        self.bounds.wire == Wire::Unordered || !self.rules.kills_predecessor
    }

    pub(super) fn hear(&self, state: &mut State, Reply { claim: id, answer }: Reply) {
        let claim = state.claim(id);
        claim.awaits = false;
        let age = std::mem::take(&mut claim.age);
        match (claim.phase, answer) {
            (Phase::Asking, Answer::Took { counter, floor }) => self.took(state, id, age, counter, floor),
            (Phase::Asking, Answer::NotFree { floor }) => {
                self.saw(state, id, floor);
                self.claim_it(state, id, age, self.mine_counts());
            }
            (Phase::Asking, Answer::Granted { counter, .. }) => self.granted(state, id, age, counter),
            (Phase::Holding | Phase::Lost, Answer::Renewed { short }) => {
                if claim.phase == Phase::Holding || !self.rules.deadline_is_final {
                    let ttl = if short { 1 } else { self.bounds.ttl };
                    claim.believed = claim.believed.max(self.belief(ttl, age));
                }
            }
            (Phase::Holding, Answer::Gone) => {
                *claim = Claim { unheard: claim.unheard, ..Claim::at(Phase::Lost) };
                state.robbed |= state.flushes == 0;
            }
            (Phase::Clearing, Answer::Released | Answer::NotHeld) => {
                let repeats = claim.unheard && self.rules.repeats_clean_up;
                if !repeats || (claim.clears_for == 0 && claim.last) {
                    state.end(id, Phase::Over);
                }
            }
            _ => {}
        }
    }

    fn took(&self, state: &mut State, id: Id, age: u8, counter: u8, floor: u8) {
        self.saw(state, id, floor.max(counter));
        if counter > floor || !self.rules.rechecks {
            self.granted(state, id, age, counter);
        } else {
            // It was given to us a moment ago.
            self.claim_it(state, id, age, true);
        }
    }

    /// The counter was lifted before, and is this now.
    fn saw(&self, state: &mut State, id: Id, counter: u8) {
        let client = &mut state.clients[self.client_of(id)];
        (client.lifted, client.seen) = (true, client.seen.max(counter));
    }

    /// The second step of an acquire, which belongs to the same try.
    fn claim_it(&self, state: &mut State, id: Id, age: u8, mine_counts: bool) {
        let seen = state.clients[self.client_of(id)].seen;
        self.send(state, id, Op::Claim { mine_counts, from: None, seen });
        state.claim(id).age = age;
    }

    fn granted(&self, state: &mut State, id: Id, age: u8, counter: u8) {
        let believed = self.belief(self.bounds.ttl, age);
        if self.counts() {
            let client = &mut state.clients[self.client_of(id)];
            client.seen = client.seen.max(counter);
        }
        if believed == 0 {
            // Too late to be believed: its token goes to the clean-up.
            state.claim(id).awaits = false;
            return if self.bounds.given { state.end(id, Phase::Unknown) } else { self.clear(state, id) };
        }
        let claim = state.claim(id);
        let floor = claim.floor;
        *claim = Claim { believed, unheard: claim.unheard && self.late_commands(), ..Claim::at(Phase::Holding) };
        if self.counts() {
            let bit = 1 << counter;
            state.fell |= counter <= floor || state.heard & bit != 0;
            state.heard |= bit;
        }
    }

    fn belief(&self, ttl: u8, age: u8) -> u8 {
        if self.rules.believes_from_send { ttl.saturating_sub(age) } else { ttl }
    }
}

/// What the server does with a command, each in one step.
impl Protocol {
    pub(super) fn execute(&self, server: &mut Server, request: Request) -> Answer {
        let id = request.claim;
        match request.op {
            Op::Take { lift, seen } => self.take(server, id, lift, seen),
            Op::Claim { mine_counts, from, seen } => self.claim(server, id, mine_counts, from, seen),
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
        server.owner.is_some_and(|owner| owner == id || self.bounds.given)
    }

    fn put(&self, server: &mut Server, id: Id) {
        let ttl = self.bounds.ttl;
        (server.owner, server.left, server.asked_for) = (Some(id), ttl, ttl);
    }

    fn take(&self, server: &mut Server, id: Id, lift: bool, seen: u8) -> Answer {
        let mut floor = seen;
        if lift {
            server.counter = lifted(self.rules, server, seen);
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

    fn claim(&self, server: &mut Server, id: Id, mine_counts: bool, from: Option<Id>, seen: u8) -> Answer {
        let mine = mine_counts && self.has(server, id);
        let handed = from.is_some_and(|from| self.has(server, from) || !self.rules.adoption_compares);
        let free = server.owner.is_none() && from.is_none();
        if !(mine || handed || free) {
            return Answer::Busy;
        }
        if self.counts() {
            server.counter = lifted(self.rules, server, seen) + 1;
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
fn lifted(rules: Rules, server: &Server, seen: u8) -> u8 {
    if rules.lifts { server.counter.max(server.micros).max(seen) } else { server.counter }
}
