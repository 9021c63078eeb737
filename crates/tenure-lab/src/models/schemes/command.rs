//! Commands and values at the lock, also in words.

use std::fmt;

use super::rules::{TTL, Tick};

/// A value that is stored, sent or answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Value {
    #[default]
    Nil,
    Int(Tick),
    Word(&'static str),
    /// Random bits of one client.
    Token(u8),
    /// A point in time, by its writer's wall clock.
    At(Tick),
    /// No reply came: the connection broke.
    Broken,
}

/// The answer of a won `SETNX`, a deleted key and so on.
pub(super) const ONE: Value = Value::Int(1);
/// The answer of a lost one.
pub(super) const ZERO: Value = Value::Int(0);
pub(super) const OK: Value = Value::Word("OK");

impl Value {
    /// A point in time that lies before `wall`.
    pub(super) fn is_past(self, wall: Tick) -> bool {
        matches!(self, Self::At(at) if at < wall)
    }
}

/// One command, executed in one step. Where it sets a ttl, that is of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Command {
    SetNx(Value),
    SetPx(Value),
    Get,
    GetSet(Value),
    Del,
    Expire,
    /// As a number of steps, -1 for a key that stays, -2 for none.
    Ttl,
    Watch,
    ExecDel,
    ExecSetPx(Value),
    /// A script of ours, for an owner, with the time on the client's wall clock.
    Script(Task, Value, Tick),
}

/// The task of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Task {
    /// Takes the name if it is nobody's, or finds it its own.
    Take,
    /// Takes the name, without a comparison.
    Put,
    /// Prolongs its own.
    Renew,
    /// Gives its own up.
    Release,
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => f.write_str("nil"),
            Self::Int(number) => write!(f, "{number}"),
            Self::Word(word) => f.write_str(word),
            Self::Token(who) => write!(f, "token-{}", name(*who)),
            Self::At(at) => write!(f, "t{at}"),
            Self::Broken => f.write_str("no reply"),
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetNx(value) => write!(f, "SETNX lock {value}"),
            Self::SetPx(value) => write!(f, "SET lock {value} PX {TTL}"),
            Self::Get => f.write_str("GET lock"),
            Self::GetSet(value) => write!(f, "GETSET lock {value}"),
            Self::Del => f.write_str("DEL lock"),
            Self::Expire => write!(f, "EXPIRE lock {TTL}"),
            Self::Ttl => f.write_str("TTL lock"),
            Self::Watch => f.write_str("WATCH lock"),
            Self::ExecDel => f.write_str("MULTI, DEL lock, EXEC"),
            Self::ExecSetPx(value) => write!(f, "MULTI, SET lock {value} PX {TTL}, EXEC"),
            Self::Script(Task::Take, owner, _) => write!(f, "script: take lock for {owner} if it is nobody's"),
            Self::Script(Task::Put, owner, _) => write!(f, "script: take lock for {owner}"),
            Self::Script(Task::Renew, owner, _) => write!(f, "script: prolong lock if it is of {owner}"),
            Self::Script(Task::Release, owner, _) => write!(f, "script: delete lock if it is of {owner}"),
        }
    }
}

/// A, B, C.
pub(super) fn name(who: u8) -> char {
    char::from(b'A' + who)
}
