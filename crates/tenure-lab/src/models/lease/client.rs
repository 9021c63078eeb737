//! What a client sends, and what it makes of the answers.

use super::protocol::Protocol;
use super::rules::Counting;
use super::state::{Answer, Claim, Client, Id, Op, Phase, Reply, State};
use crate::models::promise::Subject as _;
use crate::models::traffic::Wire;

impl Protocol {
    fn send(&self, state: &mut State, id: Id, op: Op) {
        let link = state.clients[self.client_of(id)].link;
        if self.rules.matches_answers {
            state.abandon(id);
        }
        let claim = &mut state.claims[usize::from(id)];
        (claim.awaits, claim.age) = (true, 0);
        state.traffic.send(id, link, op);
    }

    /// The command that a claim is asked for with.
    fn ask_op(&self, state: &State, id: Id) -> Op {
        let client = &state.clients[self.client_of(id)];
        match self.bounds.counting {
            Counting::InTwoSteps => Op::Take { lift: !client.lifted, seen: client.seen },
            _ => Op::Claim { mine_counts: self.mine_counts(), from: None, seen: client.seen },
        }
    }

    fn mine_counts(&self) -> bool {
        !self.bounds.given || !self.rules.given_is_busy
    }

    /// Sends a token to be acquired, for the first time or again.
    pub(crate) fn ask(&self, state: &mut State, id: Id) {
        let (op, floor) = (self.ask_op(state, id), state.highest());
        let claim = &mut state.claims[usize::from(id)];
        let again = claim.phase == Phase::Asking;
        let unheard = claim.unheard || (again && claim.awaits);
        *claim = Claim { phase: Phase::Asking, unheard, sent: claim.sent + 1, awaits: claim.awaits, floor, ..Claim::default() };
        self.send(state, id, op);
    }

    /// Asks to take over the lease that was passed on, once.
    pub(crate) fn adopt(&self, state: &mut State, id: Id) {
        let (from, floor, seen) = (state.passed.take(), state.highest(), state.clients[self.client_of(id)].seen);
        state.claims[usize::from(id)] = Claim { sent: self.bounds.asks, floor, ..Claim::at(Phase::Asking) };
        self.send(state, id, Op::Claim { mine_counts: true, from, seen });
    }

    /// Ends an attempt that was not granted, or whose grant came too late.
    pub(crate) fn give_up(&self, state: &mut State, id: Id) {
        let claim = &mut state.claims[usize::from(id)];
        claim.unheard |= claim.awaits;
        let dirty = claim.awaits || (claim.unheard && self.late_commands());
        if self.bounds.given {
            state.end(id, Phase::Unknown);
        } else if dirty && self.rules.clears_up {
            self.clear(state, id);
        } else {
            state.end(id, Phase::Over);
        }
    }

    /// Sends a first release: belief is over, and so is the token.
    pub(crate) fn clear(&self, state: &mut State, id: Id) {
        let Claim { unheard, .. } = state.claims[usize::from(id)];
        let unheard = unheard && self.late_commands();
        state.abandon(id);
        let clears_for = if unheard && self.rules.repeats_clean_up { self.bounds.ttl } else { 0 };
        state.claims[usize::from(id)] = Claim { unheard, clears_for, ..Claim::at(Phase::Clearing) };
        self.clear_again(state, id);
    }

    pub(crate) fn clear_again(&self, state: &mut State, id: Id) {
        let claim = &mut state.claims[usize::from(id)];
        claim.sent += 1;
        claim.last = claim.clears_for == 0 || !self.rules.last_clean_up_is_late;
        self.send(state, id, Op::Release);
    }

    /// Gives up what it holds or has lost.
    pub(crate) fn give_back(&self, state: &mut State, id: Id) {
        let Claim { believed, .. } = state.claims[usize::from(id)];
        let limit = self.bounds.latest.unwrap_or(0);
        if self.bounds.given && self.rules.given_released_in_time && believed <= limit {
            state.end(id, Phase::Unknown);
        } else {
            state.claims[usize::from(id)].unheard &= self.rules.repeats_release;
            self.clear(state, id);
        }
    }

    pub(crate) fn send_renewal(&self, state: &mut State, id: Id, short: bool) {
        state.claims[usize::from(id)].sent += 1;
        self.send(state, id, Op::Renew { short });
    }

    pub(crate) fn pass_on(&self, state: &mut State, id: Id) {
        state.abandon(id);
        let claim = &mut state.claims[usize::from(id)];
        let believed = if self.rules.passing_ends_belief { 0 } else { claim.believed };
        *claim = Claim { believed, ..Claim::at(Phase::Passed) };
        state.passed = Some(id);
        state.passes += 1;
    }

    /// Replaces the connection of a client.
    pub(crate) fn reconnect(&self, state: &mut State, client: usize) {
        state.clients[client].link += 1;
        state.clients[client].lifted = false;
        if self.rules.kills_predecessor {
            state.traffic.requests.retain(|request| self.client_of(request.claim) != client);
        }
    }

    pub(crate) fn crash(&self, state: &mut State, client: usize) {
        for id in self.claims_of(client) {
            state.end(id, Phase::Dead);
        }
        state.clients[client] = Client { crashed: true, ..Client::default() };
        state.crashes += 1;
    }

    /// Whether what was sent may run after what was sent later and answered.
    pub(crate) fn late_commands(&self) -> bool {
        self.bounds.wire == Wire::Unordered || !self.rules.kills_predecessor
    }

    pub(crate) fn hear(&self, state: &mut State, Reply { claim: id, answer }: Reply) {
        let claim = &mut state.claims[usize::from(id)];
        claim.awaits = false;
        let age = std::mem::take(&mut claim.age);
        match (claim.phase, answer) {
            (Phase::Asking, Answer::Took { counter, floor }) => self.took(state, id, age, counter, floor),
            (Phase::Asking, Answer::NotFree { floor }) => {
                self.saw(state, id, floor);
                self.claim_it(state, id, age, self.mine_counts());
            }
            (Phase::Asking, Answer::Granted { counter }) => self.granted(state, id, age, counter),
            (Phase::Holding | Phase::Lost, Answer::Renewed { short }) => self.renewed(claim, age, short),
            (Phase::Holding, Answer::Gone) => {
                state.robbed |= state.flushes == 0;
                *claim = Claim { unheard: claim.unheard, ..Claim::at(Phase::Lost) };
            }
            (Phase::Clearing, Answer::Released | Answer::NotHeld) => {
                let repeats = claim.unheard && self.rules.repeats_clean_up;
                let done = !repeats || (claim.clears_for == 0 && claim.last);
                if done {
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
        state.claims[usize::from(id)].age = age;
    }

    fn granted(&self, state: &mut State, id: Id, age: u8, counter: u8) {
        let believed = self.belief(self.bounds.ttl, age);
        if self.counts() {
            let client = &mut state.clients[self.client_of(id)];
            client.seen = client.seen.max(counter);
        }
        if believed == 0 {
            // Too late to be believed: its token goes to the clean-up.
            state.claims[usize::from(id)].awaits = false;
            return if self.bounds.given { state.end(id, Phase::Unknown) } else { self.clear(state, id) };
        }
        let claim = &mut state.claims[usize::from(id)];
        let floor = claim.floor;
        *claim = Claim { believed, unheard: claim.unheard && self.late_commands(), ..Claim::at(Phase::Holding) };
        if self.counts() {
            let bit = 1 << counter;
            state.fell |= counter <= floor || state.heard & bit != 0;
            state.heard |= bit;
        }
    }

    fn renewed(&self, claim: &mut Claim, age: u8, short: bool) {
        if claim.phase == Phase::Holding || !self.rules.deadline_is_final {
            let ttl = if short { 1 } else { self.bounds.ttl };
            claim.believed = claim.believed.max(self.belief(ttl, age));
        }
    }

    fn belief(&self, ttl: u8, age: u8) -> u8 {
        if self.rules.believes_from_send { ttl.saturating_sub(age) } else { ttl }
    }

    /// A tick of everything that a client measures.
    pub(crate) fn tick_claims(&self, state: &mut State) {
        for id in 0..self.all_claims() {
            let claim = &mut state.claims[usize::from(id)];
            if claim.awaits {
                claim.age = (claim.age + 1).min(self.bounds.ttl);
            }
            claim.clears_for = claim.clears_for.saturating_sub(1);
            let ends = claim.believed == 1;
            claim.believed = claim.believed.saturating_sub(1);
            if ends && claim.phase == Phase::Holding {
                claim.phase = Phase::Lost;
                if self.rules.deadline_is_final {
                    let unheard = claim.unheard;
                    state.end(id, Phase::Lost);
                    state.claims[usize::from(id)].unheard = unheard;
                }
            }
        }
    }
}
