//! One moment of the protocol. Times are ticks left, so that what differs only in when it happens is one state.

pub(crate) use crate::models::traffic::Id;
use crate::models::traffic::{self, Traffic};

/// All clients together may have this many claims.
pub(crate) const MOST: usize = 6;

pub(crate) type Request = traffic::Request<Op>;
pub(crate) type Reply = traffic::Reply<Answer>;

/// A counter of grants, and the index of a hand-over.
pub(crate) type Fence = (u8, u8);

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct State {
    pub(crate) server: Server,
    pub(crate) crashed: [bool; 3],
    pub(crate) claims: [Claim; MOST],
    pub(crate) traffic: Traffic<Op, Answer>,
    /// What was published; whoever it is for may hear it at any time, and again.
    pub(crate) pushes: Vec<Push>,
    pub(crate) crashes: u8,
    pub(crate) cuts: u8,
    /// The fence of the last belief that began.
    pub(crate) highest: Fence,
    /// A belief began with a fence that is not above it.
    pub(crate) fell: bool,
    /// Somebody believes by a grant for which another, who waited, was passed over.
    pub(crate) overtaken: bool,
    /// A lease was passed on within a process after its turn, while another waited.
    pub(crate) overlong: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Server {
    /// Whose value is in place.
    pub(crate) owner: Option<Id>,
    pub(crate) left: u8,
    /// The owner has it although others waited.
    pub(crate) jumped: bool,
    pub(crate) queue: Vec<Place>,
    pub(crate) counter: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) claim: Id,
    pub(crate) left: u8,
    /// Ticks since it was made and the name was last granted, up to a turn.
    pub(crate) waited: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) enum Phase {
    /// Not made yet.
    #[default]
    Unused,
    /// Asks for a name that may be free.
    Taking,
    /// Asks for it or a place in the queue.
    Joining,
    /// Has a place, as it was told.
    Waiting,
    Holding,
    /// Its deadline has passed, or it was told that it is gone.
    Lost,
    /// A release was sent.
    Clearing,
    /// Nothing is done for it any more.
    Over,
    /// Its client has crashed.
    Dead,
}

#[allow(clippy::struct_excessive_bools, reason = "what was heard, each apart")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Claim {
    pub(crate) phase: Phase,
    /// The last request has no answer yet.
    pub(crate) awaits: bool,
    /// Ticks since it was sent, up to the ttl.
    pub(crate) age: u8,
    /// Ticks for which the tenure is still believed.
    pub(crate) believed: u8,
    /// Ticks for which a push would be believed.
    pub(crate) covered: u8,
    /// The largest counter heard while it waited.
    pub(crate) mark: u8,
    /// What it took has to be handed to whoever waited.
    pub(crate) yields: bool,
    /// It believes a push, and has no answer yet that says so.
    pub(crate) pushed: bool,
    /// Sent so far, in this phase.
    pub(crate) sent: u8,
    pub(crate) fence: Fence,
    /// Ticks for which its process may still pass it on.
    pub(crate) turn: u8,
    /// What would be left of the belief that a release has ended, where somebody would believe on.
    pub(crate) spent: u8,
}

impl Claim {
    pub(crate) fn at(phase: Phase) -> Self {
        Self { phase, ..Self::default() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Op {
    /// Takes a free name, and says whether others wait for it.
    Take,
    /// Serves those who wait, then takes the name, or a place in the queue.
    Join,
    /// As `Join`, but first gives up what a `Take` has taken.
    Yield,
    /// The heartbeat of a place.
    Keep,
    Renew,
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Answer {
    Granted {
        counter: u8,
        waiting: bool,
    },
    /// To `Take`: it is not free.
    NotFree,
    /// It has a place; so many were granted when this was said.
    Queued {
        mark: u8,
    },
    /// To `Keep`: it has no place, and was served none that it still has.
    NoPlace,
    Renewed,
    Gone,
    Released,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Push {
    pub(crate) claim: Id,
    pub(crate) counter: u8,
}

impl State {
    pub(crate) fn claim(&mut self, id: Id) -> &mut Claim {
        &mut self.claims[usize::from(id)]
    }

    pub(crate) fn phase(&self, id: Id) -> Phase {
        self.claims[usize::from(id)].phase
    }

    /// Sends a command, whose answer is the only one that counts from now on.
    pub(crate) fn send(&mut self, id: Id, op: Op) {
        self.abandon(id);
        let claim = self.claim(id);
        claim.awaits = true;
        claim.sent += 1;
        self.traffic.send(id, 0, op);
    }

    /// The first command of a phase.
    pub(crate) fn begin(&mut self, id: Id, phase: Phase, op: Op) {
        let claim = self.claim(id);
        (claim.phase, claim.sent) = (phase, 0);
        self.send(id, op);
    }

    /// Sends a token to be acquired, for the first time or again.
    pub(crate) fn ask(&mut self, id: Id) {
        match self.claims[usize::from(id)] {
            Claim { phase: Phase::Taking, .. } => self.send(id, Op::Take),
            Claim { phase: Phase::Joining, yields, .. } => self.send(id, if yields { Op::Yield } else { Op::Join }),
            Claim { phase: Phase::Unused, .. } => self.begin(id, Phase::Taking, Op::Take),
            _ => self.begin(id, Phase::Joining, Op::Join),
        }
    }

    /// Nobody waits for what was sent of this claim any more.
    pub(crate) fn abandon(&mut self, id: Id) {
        let claim = self.claim(id);
        (claim.awaits, claim.age) = (false, 0);
        self.traffic.abandon(id);
    }

    /// A claim comes to a phase in which nothing is awaited.
    pub(crate) fn end(&mut self, id: Id, phase: Phase) {
        self.abandon(id);
        *self.claim(id) = Claim::at(phase);
    }

    /// Those who believe.
    pub(crate) fn believers(&self) -> impl Iterator<Item = usize> {
        (0..MOST).filter(|id| self.claims[*id].believed > 0)
    }
}
