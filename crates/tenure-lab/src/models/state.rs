//! One moment of the protocol. Times are ticks left, so that what differs only in when it happens
//! is one state.

use super::traffic::Traffic;

pub(crate) use super::traffic::{Answer, Id, Op, Wire};

/// All clients together may have this many attempts.
pub(crate) const MOST: usize = 6;

/// A counter of grants, and the index of a hand-over.
pub(crate) type Fence = (u8, u8);

#[allow(clippy::struct_excessive_bools, reason = "each promise that a step can break, apart")]
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct State {
    pub(crate) server: Server,
    pub(crate) clients: [Client; 3],
    pub(crate) attempts: [Attempt; MOST],
    pub(crate) traffic: Traffic,
    /// Published messages. Its client may hear each at any time, and again.
    pub(crate) pushes: Vec<Push>,
    /// The lease that was passed on as data, and that nobody has adopted.
    pub(crate) passed: Option<Id>,
    pub(crate) passes: u8,
    pub(crate) crashes: u8,
    pub(crate) cuts: u8,
    pub(crate) flushes: u8,
    /// Every fence in an answer that was heard, a bit each; in a queue, `highest` instead.
    pub(crate) heard: u64,
    /// The fence of the last validity that began.
    pub(crate) highest: Fence,
    /// A client heard a fence that is not above one that was heard before it asked, or one that was
    /// heard before.
    pub(crate) fell: bool,
    /// A holder heard that the name is not its own while its lease had to stand.
    pub(crate) robbed: bool,
    /// A client holds by a grant for which another, who waited, was passed over.
    pub(crate) overtaken: bool,
    /// A lease was passed on within a process after its turn, while another waited.
    pub(crate) overlong: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Server {
    /// Whose value is in place.
    pub(crate) owner: Option<Id>,
    pub(crate) left: u8,
    /// The rest of the longest ttl that the owner's own commands have asked for; not followed in a
    /// queue.
    pub(crate) asked_for: u8,
    /// The owner has it although others waited.
    pub(crate) jumped: bool,
    pub(crate) queue: Vec<Place>,
    pub(crate) counter: u8,
    /// The server's clock in units in which no two counts are as near as one.
    pub(crate) micros: u8,
}

/// An entry of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) attempt: Id,
    pub(crate) left: u8,
    /// Ticks since it was made and the name was last granted, up to a turn.
    pub(crate) waited: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Client {
    pub(crate) crashed: bool,
    pub(crate) link: u8,
    /// The counter was raised through this link.
    pub(crate) raised: bool,
    /// The largest counter seen.
    pub(crate) seen: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) enum Phase {
    /// Not made yet.
    #[default]
    Unused,
    Asking,
    /// Asks for the name or an entry in the queue.
    Joining,
    /// Has an entry, as it has heard.
    Waiting,
    Holding,
    /// Its deadline has passed, or it has heard that it is gone.
    Lost,
    /// A release was sent.
    Clearing,
    /// Its lease is somebody else's to adopt.
    Passed,
    /// Nothing is done for it any more.
    Over,
    /// Its outcome stays unknown, and nothing may be done about it.
    Unknown,
    /// Its client has crashed.
    Dead,
}

#[allow(clippy::struct_excessive_bools, reason = "what was sent and heard, each apart")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Attempt {
    pub(crate) phase: Phase,
    /// The last request has no answer yet.
    pub(crate) awaits: bool,
    /// Ticks since it was sent, up to the ttl.
    pub(crate) age: u8,
    /// Ticks for which the lease is still valid.
    pub(crate) valid: u8,
    /// An acquire had no answer.
    pub(crate) unheard: bool,
    /// Sent so far, in this phase.
    pub(crate) sent: u8,
    /// Ticks for which the clean-up is repeated if commands may run late.
    pub(crate) clears_for: u8,
    /// The clean-up under way was sent after that.
    pub(crate) last: bool,
    /// The largest fence that anybody had heard when it asked.
    pub(crate) floor: u8,
    /// Ticks for which a push would be accepted.
    pub(crate) covered: u8,
    /// The largest counter heard while it waited.
    pub(crate) grant_seq: u8,
    /// Its lease has to be handed to one who waited.
    pub(crate) yields: bool,
    /// It has accepted a push, and has no answer yet that says so.
    pub(crate) pushed: bool,
    pub(crate) fence: Fence,
    /// Ticks for which its process may still pass it on.
    pub(crate) turn: u8,
    /// Ticks for which a lease whose release was sent would be valid, if a task went on.
    pub(crate) spent: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Push {
    pub(crate) attempt: Id,
    pub(crate) counter: u8,
}

impl Attempt {
    pub(crate) fn at(phase: Phase) -> Self {
        Self { phase, ..Self::default() }
    }
}

impl State {
    pub(crate) fn attempt(&mut self, id: Id) -> &mut Attempt {
        &mut self.attempts[usize::from(id)]
    }

    pub(crate) fn phase(&self, id: Id) -> Phase {
        self.attempts[usize::from(id)].phase
    }

    /// Nobody waits for what was sent of this attempt any more.
    pub(crate) fn abandon(&mut self, id: Id) {
        let attempt = self.attempt(id);
        (attempt.awaits, attempt.age) = (false, 0);
        self.traffic.abandon(id);
    }

    /// A attempt comes to a phase in which nothing is awaited.
    pub(crate) fn end(&mut self, id: Id, phase: Phase) {
        self.abandon(id);
        *self.attempt(id) = Attempt::at(phase);
    }

    /// The largest fence in any answer that was heard.
    pub(crate) fn largest_heard(&self) -> u8 {
        u8::try_from(self.heard.checked_ilog2().unwrap_or(0)).unwrap_or(0)
    }

    /// The attempts that regard themselves as the holder.
    pub(crate) fn holders(&self) -> impl Iterator<Item = Id> {
        (0..).zip(&self.attempts).filter(|(_, attempt)| attempt.valid > 0).map(|(id, _)| id)
    }
}

impl Server {
    pub(crate) fn forget(&mut self) {
        (self.owner, self.left, self.asked_for, self.jumped) = (None, 0, 0, false);
    }

    /// A lease that ends serves nobody. How long an entry has waited matters up to a `turn`.
    pub(crate) fn tick(&mut self, turn: u8) {
        self.left = self.left.saturating_sub(1);
        self.asked_for = self.asked_for.saturating_sub(1);
        if self.left == 0 {
            self.forget();
        }
        self.queue.retain_mut(|place| {
            place.left -= 1;
            place.waited = (place.waited + 1).min(turn);
            place.left > 0
        });
    }
}
