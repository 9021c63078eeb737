//! The rules of our client, the faults around it, and the times of both.

use crate::tables::settings;

/// A moment or a span, in steps of the run's clock.
pub(super) type Tick = i16;

/// How long a lease is, in steps.
pub(super) const TTL: Tick = 2;
/// For how long a key must be seen without an end before it is taken, in steps.
pub(super) const UNENDED: Tick = 1;
settings! {
    /// Our client in the schemes of others, rule by rule. Each is one that can be left out, to see
    /// what it is there for.
    Rules::TENURE {
        /// No rule: the value is the end of the lease, as in `scheme=getset`, and the key has no
        /// ttl.
        by_value: bool = false,
        /// A key without ttl is not taken before the end that its writer computed.
        value_passed: bool = true,
        /// Nor before it was seen without ttl for a while.
        seen_long: bool = true,
        /// The owner stands beside the value. Otherwise the value is all there is.
        owner_beside: bool = true,
        /// The note beside the lock counts only as long as the values agree.
        changed_is_lost: bool = true,
        /// The look and the write are one step.
        one_step: bool = true,
        /// Nothing is taken while the clocks of host and server are apart.
        clocks_agree: bool = true,
        /// A transaction whose connection was replaced since its look writes nothing, and reads
        /// anew.
        looks_again: bool = true,
    }
}

settings! {
    /// Faults, and how often each may occur; clients are slow besides.
    Faults::NONE {
        /// Processes killed.
        crashes: u8 = 0,
        /// Commands that are executed though their reply is lost.
        lost_replies: u8 = 0,
        /// Commands that are lost.
        lost_requests: u8 = 0,
        /// Commands that travel slowly, either way.
        slow: u8 = 0,
    }
}

impl Faults {
    pub(super) const CRASH: Self = Self { crashes: 1, ..Self::NONE };
    pub(super) const LOST_REPLY: Self = Self { lost_replies: 1, ..Self::NONE };
    pub(super) const LOST_REQUEST: Self = Self { lost_requests: 1, ..Self::NONE };
    pub(super) const SLOW: Self = Self { slow: 1, ..Self::NONE };
    /// One of each that a careful client survives.
    pub(super) const EACH: Self = Self { crashes: 1, lost_replies: 1, lost_requests: 1, slow: 1 };
}
