//! Commands of memcached at the lock, in words.

use std::fmt;

use super::command::{Command, LOCK, Value};
use super::program::Tick;

/// One command. The story has the words of the text protocol, without flags and lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Memcached {
    /// For so long; for ever without.
    Add(Value, Option<Tick>),
    Get,
    /// As `get`, with the version of the item, which the client keeps for its `cas`.
    Gets,
    /// If the item still has the version that this connection read last.
    Cas(Value),
    Delete,
}

pub(crate) const STORED: Value = Value::Word("STORED");
pub(crate) const NOT_STORED: Value = Value::Word("NOT_STORED");
pub(crate) const EXISTS: Value = Value::Word("EXISTS");
pub(crate) const DELETED: Value = Value::Word("DELETED");
pub(crate) const NOT_FOUND: Value = Value::Word("NOT_FOUND");

impl Memcached {
    pub(crate) const fn command(self) -> Command {
        Command::Memcached(self)
    }
}

impl fmt::Display for Memcached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Add(value, ttl) => write!(f, "add {LOCK} {value} {}", ttl.unwrap_or(0)),
            Self::Get => write!(f, "get {LOCK}"),
            Self::Gets => write!(f, "gets {LOCK}"),
            Self::Cas(value) => write!(f, "cas {LOCK} {value} 0"),
            Self::Delete => write!(f, "delete {LOCK}"),
        }
    }
}
