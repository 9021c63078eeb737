//! What the server does with a command, each in one step.

use super::protocol::Protocol;
use super::state::{Answer, Id, Op, Place, Push, State};

impl Protocol {
    pub(crate) fn execute(&self, state: &mut State, id: Id, op: Op) -> Answer {
        match op {
            Op::Take => self.take(state, id),
            Op::Join => self.join(state, id),
            Op::Yield => {
                if state.server.owner == Some(id) && !state.server.queue.is_empty() {
                    state.server.free();
                }
                self.join(state, id)
            }
            Op::Keep => self.keep(state, id),
            Op::Renew => self.renew(state, id),
            Op::Release => self.release(state, id),
        }
    }

    /// The full ttl, from now.
    fn grant(&self, state: &mut State, id: Id) -> Answer {
        let server = &mut state.server;
        server.jumped &= !server.queue.is_empty();
        server.owner = Some(id);
        server.left = server.left.max(self.bounds.ttl);
        server.count();
        Answer::Granted { counter: server.counter, waiting: !server.queue.is_empty() }
    }

    fn take(&self, state: &mut State, id: Id) -> Answer {
        if state.server.owner.is_some() {
            return Answer::NotFree;
        }
        state.server.jumped = !state.server.queue.is_empty();
        self.grant(state, id)
    }

    /// Hands a free name to the first who waits.
    fn serve(&self, state: &mut State) {
        let server = &mut state.server;
        if server.owner.is_some() || server.queue.is_empty() {
            return;
        }
        let claim = server.queue.remove(0).claim;
        server.count();
        server.owner = Some(claim);
        server.left = if self.rules.own_claim { self.bounds.claim } else { 1 };
        if self.bounds.pushes {
            state.pushes.push(Push { claim, counter: server.counter });
        }
    }

    fn join(&self, state: &mut State, id: Id) -> Answer {
        self.serve(state);
        if state.server.owner.is_none_or(|owner| owner == id) {
            return self.grant(state, id);
        }
        self.queue(state, id)
    }

    /// Makes a place, or looks after it.
    fn queue(&self, state: &mut State, id: Id) -> Answer {
        let left = self.bounds.keep;
        match state.server.place(id) {
            Some(place) => place.left = left,
            None => state.server.queue.push(Place { claim: id, left, waited: 0 }),
        }
        Answer::Queued { mark: state.server.counter }
    }

    fn keep(&self, state: &mut State, id: Id) -> Answer {
        if self.rules.rechecks {
            self.serve(state);
            if state.server.owner == Some(id) {
                return self.grant(state, id);
            }
        }
        if state.server.place(id).is_some() || !self.rules.keep_never_joins {
            return self.queue(state, id);
        }
        Answer::NoPlace
    }

    fn renew(&self, state: &mut State, id: Id) -> Answer {
        let server = &mut state.server;
        if server.owner != Some(id) {
            return Answer::Gone;
        }
        server.left = server.left.max(self.bounds.ttl);
        Answer::Renewed
    }

    fn release(&self, state: &mut State, id: Id) -> Answer {
        state.server.queue.retain(|place| place.claim != id);
        if state.server.owner == Some(id) {
            state.server.free();
            self.serve(state);
        }
        Answer::Released
    }
}

impl super::state::Server {
    pub(crate) fn place(&mut self, id: Id) -> Option<&mut Place> {
        self.queue.iter_mut().find(|place| place.claim == id)
    }

    /// One more grant, and for those who wait another turn.
    fn count(&mut self) {
        self.counter += 1;
        for place in &mut self.queue {
            place.waited = 0;
        }
    }

    fn free(&mut self) {
        (self.owner, self.left, self.jumped) = (None, 0, false);
    }

    /// A lease that ends serves nobody. How long a place has waited matters up to a `turn`.
    pub(crate) fn tick(&mut self, turn: u8) {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.free();
        }
        self.queue.retain_mut(|place| {
            place.left -= 1;
            place.waited = (place.waited + 1).min(turn);
            place.left > 0
        });
    }
}
