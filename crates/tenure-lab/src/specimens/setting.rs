//! The surroundings of a scheme: who is there, for how long, and what may go wrong.

use super::beside::Others;
use super::program::{Scheme, Tick};
use super::schemes::TTL;
use super::world::World;

/// A scheme in surroundings that break it.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The lock.
    pub scheme: Scheme,
    /// What others run at the same name.
    pub others: Option<Others>,
    /// How many clients there are.
    pub clients: u8,
    /// How often each may ask.
    pub takes: u8,
    /// How much of the name there is.
    pub capacity: u32,
    /// How much of it each client takes.
    pub weights: [u32; 3],
    /// How long a lease is.
    pub ttl: Tick,
    /// When the run ends.
    pub horizon: Tick,
    /// By how much the wall clock of each is ahead.
    pub skews: [Tick; 3],
    /// By how much the server's clock is ahead.
    pub ahead: Tick,
    /// Renewals are never later than this after the last; otherwise they may be as late as they like.
    pub punctual: Option<Tick>,
    /// Nobody is slow: whoever lives finishes what it does within a step, and gives up before its lease ends.
    pub prompt: bool,
    /// What must be so as well for a broken rule to be the one that is looked for.
    pub also: fn(&World) -> bool,
    /// What may go wrong, and how often.
    pub faults: Faults,
}

/// What may go wrong besides clients being slow, and how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// Processes killed.
    pub crashes: u8,
    /// Commands that are executed though their reply is lost.
    pub lost_replies: u8,
    /// Commands that are lost.
    pub lost_requests: u8,
    /// Commands that travel slowly, either way.
    pub slow: u8,
    /// The server loses its data: flushed, or killed without persistence.
    pub flushes: u8,
    /// A replica takes over that has none of the writes.
    pub failovers: u8,
    /// The server's clock jumps forward, by this much.
    pub jump: Tick,
    /// Subscriptions that are lost without a word.
    pub deaf: u8,
    /// Machines of clients that sleep through a step.
    pub sleeps: u8,
}

impl Faults {
    /// Nothing goes wrong.
    pub const NONE: Self =
        Self { crashes: 0, lost_replies: 0, lost_requests: 0, slow: 0, flushes: 0, failovers: 0, jump: 0, deaf: 0, sleeps: 0 };
}

impl Setting {
    /// Three clients that ask once each, for a mutex, over two leases, and nothing goes wrong.
    pub const fn new(scheme: Scheme) -> Self {
        Self {
            scheme,
            others: None,
            clients: 3,
            takes: 1,
            capacity: 1,
            weights: [1; 3],
            ttl: TTL,
            horizon: 2 * TTL,
            skews: [0; 3],
            ahead: 0,
            punctual: None,
            prompt: false,
            also: |_| true,
            faults: Faults::NONE,
        }
    }

    /// Whether a client is one of the others.
    pub fn is_other(&self, who: u8) -> bool {
        self.others.is_some_and(|others| who >= others.from)
    }

    /// What a client runs.
    pub fn scheme_of(&self, who: u8) -> &Scheme {
        match &self.others {
            Some(others) if who >= others.from => &others.scheme,
            _ => &self.scheme,
        }
    }
}
