//! What the server does with a command, each in one step.

use super::protocol::Protocol;
use super::rules::Rules;
use super::state::{Answer, Id, Op, Request, Server};

impl Protocol {
    pub(crate) fn execute(&self, server: &mut Server, request: Request) -> Answer {
        let id = request.claim;
        match request.op {
            Op::Take { lift, seen } => self.take(server, id, lift, seen),
            Op::Claim { mine_counts, from, seen } => self.claim(server, id, mine_counts, from, seen),
            Op::Renew { short } => self.renew(server, id, short),
            Op::Release => self.release(server, id),
        }
    }

    /// Whether the value in place is that of `id`. Of a value that was given there is only one.
    pub(crate) fn has(&self, server: &Server, id: Id) -> bool {
        server.owner.is_some_and(|owner| owner == id || self.bounds.given)
    }

    fn put(&self, server: &mut Server, id: Id) {
        server.owner = Some(id);
        server.left = self.bounds.ttl;
        server.asked_for = self.bounds.ttl;
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
        if mine && !self.rules.repeat_extends {
            return Answer::Granted { counter: server.counter };
        }
        self.put(server, id);
        Answer::Granted { counter: server.counter }
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

    fn release(&self, server: &mut Server, id: Id) -> Answer {
        if self.has(server, id) || (server.owner.is_some() && !self.rules.release_compares) {
            server.forget();
            return Answer::Released;
        }
        Answer::NotHeld
    }
}

/// The counter, or what it may have been before data was lost.
fn lifted(rules: Rules, server: &Server, seen: u8) -> u8 {
    if rules.lifts { server.counter.max(server.micros).max(seen) } else { server.counter }
}

impl Server {
    pub(crate) fn forget(&mut self) {
        self.owner = None;
        self.left = 0;
        self.asked_for = 0;
    }

    pub(crate) fn tick(&mut self) {
        self.left = self.left.saturating_sub(1);
        self.asked_for = self.asked_for.saturating_sub(1);
        if self.left == 0 {
            self.forget();
        }
    }
}
