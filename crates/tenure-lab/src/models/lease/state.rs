//! One moment of the protocol. Times are ticks left, so that what differs only in when it happens is one state.

pub(crate) use crate::models::traffic::Id;
use crate::models::traffic::{self, Traffic};

/// A client may have this many claims, all clients together.
pub(crate) const MOST: usize = 6;

pub(crate) type Request = traffic::Request<Op>;
pub(crate) type Reply = traffic::Reply<Answer>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct State {
    pub(crate) server: Server,
    pub(crate) clients: [Client; 3],
    pub(crate) claims: [Claim; MOST],
    pub(crate) traffic: Traffic<Op, Answer>,
    /// The lease that was passed on, for whoever adopts it.
    pub(crate) passed: Option<Id>,
    pub(crate) passes: u8,
    pub(crate) crashes: u8,
    pub(crate) flushes: u8,
    /// Every fence that a client was told, a bit each.
    pub(crate) heard: u64,
    /// A client was told a fence that is not above one that was heard before it asked, or one that was told before.
    pub(crate) fell: bool,
    /// A holder was told that the name is not its own while its lease had to stand.
    pub(crate) robbed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Server {
    /// Whose value is in place.
    pub(crate) owner: Option<Id>,
    pub(crate) left: u8,
    /// What is left of the longest ttl that the owner's own commands have asked for.
    pub(crate) asked_for: u8,
    pub(crate) counter: u8,
    /// The server's clock in units in which no two counts are as near as one.
    pub(crate) micros: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Client {
    pub(crate) crashed: bool,
    pub(crate) link: u8,
    /// The counter was lifted through this link.
    pub(crate) lifted: bool,
    /// The largest counter seen.
    pub(crate) seen: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) enum Phase {
    /// Not made yet.
    #[default]
    Unused,
    Asking,
    Holding,
    /// Its deadline has passed, or it was told that it is gone.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Claim {
    pub(crate) phase: Phase,
    /// The last request has no answer yet.
    pub(crate) awaits: bool,
    /// Ticks since it was sent, up to the ttl.
    pub(crate) age: u8,
    /// Ticks for which the tenure is still believed.
    pub(crate) believed: u8,
    /// An acquire had no answer.
    pub(crate) unheard: bool,
    /// Sent so far, in this phase.
    pub(crate) sent: u8,
    /// Ticks for which the clean-up is repeated where commands may run late.
    pub(crate) clears_for: u8,
    /// The clean-up under way was sent after that.
    pub(crate) last: bool,
    /// The largest fence that anybody had heard when it asked.
    pub(crate) floor: u8,
}

impl Claim {
    pub(crate) fn at(phase: Phase) -> Self {
        Self { phase, ..Self::default() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Op {
    /// Takes a free name, and counts; `lift`s the counter before.
    Take {
        lift: bool,
        seen: u8,
    },
    /// Takes a free name, or finds it taken by this token (if that `mine_counts`), or takes it over `from` another.
    Claim {
        mine_counts: bool,
        from: Option<Id>,
        seen: u8,
    },
    /// For the ttl, or for one tick.
    Renew {
        short: bool,
    },
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Answer {
    /// To `Take`: taken, with this counter, which should be above the floor.
    Took {
        counter: u8,
        floor: u8,
    },
    /// To `Take`: it is not free.
    NotFree {
        floor: u8,
    },
    Granted {
        counter: u8,
    },
    Busy,
    Renewed {
        short: bool,
    },
    Gone,
    Released,
    NotHeld,
}

impl State {
    /// Nobody waits for what was sent of this claim any more.
    pub(crate) fn abandon(&mut self, id: Id) {
        self.claims[usize::from(id)].awaits = false;
        self.claims[usize::from(id)].age = 0;
        self.traffic.abandon(id);
    }

    /// A claim comes to a phase in which nothing is awaited.
    pub(crate) fn end(&mut self, id: Id, phase: Phase) {
        self.abandon(id);
        self.claims[usize::from(id)] = Claim::at(phase);
    }

    /// The largest fence that anybody was told.
    pub(crate) fn highest(&self) -> u8 {
        u8::try_from(self.heard.checked_ilog2().unwrap_or(0)).unwrap_or(0)
    }

    /// How many believe.
    pub(crate) fn believers(&self) -> usize {
        self.claims.iter().filter(|claim| claim.believed > 0).count()
    }
}
