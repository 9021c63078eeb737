//! How many copies of a grant have to be confirmed, as a user says it.

use std::fmt;
use std::str::FromStr;

use tenure::Error;

/// Copies of a grant that have to be confirmed before it counts.
///
/// They are asked for by a `WAIT` or `WAITAOF` on a second connection, one for all grants and
/// renewals that have gathered. So a grant costs at least one round trip more, and one to a replica.
/// If too few are confirmed within the operation timeout, the acquisition fails with
/// [`Unavailable`](tenure::ErrorKind::Unavailable), and what it took is released. A renewal that is
/// not confirmed does not count: the holder is notified of its loss at the deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// The answer of the server alone.
    #[default]
    None,
    /// This number of replicas. If it is all of them, no failover forgets a grant.
    Replicas(u32),
    /// A majority of the server and its replicas, counted as the most that this client has seen at
    /// once. A failover forgets no grant if the replica that has most is promoted.
    Majority,
    /// The server's append-only file, as with `appendfsync always`. Redis 7.2 or newer, with
    /// `appendonly yes`.
    Aof,
}

impl FromStr for Durability {
    type Err = Error;

    /// Reads the value of the URL's parameter.
    fn from_str(text: &str) -> Result<Self, Error> {
        let replicas = |number: &str| number.parse().ok().filter(|number| *number > 0).map(Self::Replicas);
        let level = match text {
            "none" => Some(Self::None),
            "majority" => Some(Self::Majority),
            "aof" => Some(Self::Aof),
            other => other.strip_prefix("replicas:").and_then(replicas),
        };
        level.ok_or_else(|| {
            let what = format!("durability={text} is no level of durability");
            Error::invalid(what).with_hint("write none, replicas:1 (or more), majority or aof")
        })
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Replicas(number) => write!(f, "replicas:{number}"),
            Self::Majority => f.write_str("majority"),
            Self::Aof => f.write_str("aof"),
        }
    }
}
