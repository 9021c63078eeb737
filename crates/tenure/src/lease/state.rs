//! How sure a holder may be, and why a lease ended.

use std::fmt;

use crate::Error;

/// How sure a holder may be.
///
/// The term *jeopardy* is that of Chubby, Google's lock service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// The lease stands, and its renewals are answered.
    Held,
    /// The lease still stands. A renewal is overdue and being retried.
    Jeopardy,
    /// The lease has ended. Another client may hold the name.
    Lost,
}

/// Reason why a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndReason {
    /// Its time ran out without an answered renewal.
    Expired,
    /// The store says that the owner does not hold any more: deleted, flushed, evicted or taken
    /// over. Also in the child of a `fork`, where no lease of the parent stands.
    Gone,
    /// It reached its longest hold.
    MaxHold,
    /// Its holder released it.
    Released,
}

impl EndReason {
    /// The reason in words. An [`Expired`](Self::Expired) lease ended because of the
    /// [error of its last renewal](crate::Guard::renewal_error), if there was one.
    pub fn because_of(self, renewal: Option<&Error>) -> String {
        match renewal {
            Some(error) if self == Self::Expired => format!("the lease ran out, and its last renewal failed: {error}"),
            _ => self.to_string(),
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "the lease ran out without an answer to its renewals",
            Self::Gone => "the store says it is no longer ours: it was broken, flushed or evicted",
            Self::MaxHold => "it had lasted for the longest hold allowed",
            Self::Released => "the holder gave it up",
        })
    }
}
