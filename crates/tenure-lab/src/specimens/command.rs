//! What clients say to the server: in words, on the wire, and back.

use std::fmt;

use super::program::Tick;
use super::stamp::Stamp;

/// The key that is the lock, in every scheme.
pub(super) const LOCK: &str = "lock";
/// Where grants are counted, in schemes that do.
pub(super) const FENCE: &str = "fence";

/// What is stored, sent or answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    /// Nothing.
    Nil,
    /// A number.
    Int(i16),
    /// A text that is the same for all.
    Word(&'static str),
    /// Random bits of one take of one client.
    Token {
        /// Whose.
        who: u8,
        /// Of which of its takes.
        take: u8,
    },
    /// A point in time, by its writer's wall clock.
    At(Tick),
    /// A row of a table, with its version.
    Row {
        /// Counts its updates.
        version: i16,
        /// When its lease ends, by its writer's wall clock.
        ends: Tick,
    },
    /// No reply came: the connection broke.
    Broken,
}

/// What a won `SETNX`, a deleted key and the like answer.
pub(super) const ONE: Value = Value::Int(1);
/// What a lost one answers.
pub(super) const ZERO: Value = Value::Int(0);
/// What a command answers that has nothing to say.
pub(super) const OK: Value = Value::Word("OK");

impl Value {
    /// A point in time, or the end of a row's lease, that lies before `wall`.
    pub fn is_past(self, wall: Tick) -> bool {
        matches!(self, Self::At(at) | Self::Row { ends: at, .. } if at < wall)
    }
}

/// One command, executed in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Command {
    /// `SETNX key value`
    SetNx(&'static str, Value),
    /// `SET key value PX ttl NX`
    SetNxPx(&'static str, Value, Tick),
    /// `SET key value PX ttl XX`
    SetXxPx(&'static str, Value, Tick),
    /// `SET key value PX ttl`
    SetPx(&'static str, Value, Tick),
    /// `GET key`
    Get(&'static str),
    /// `GETSET key value`
    GetSet(&'static str, Value),
    /// `DEL key`
    Del(&'static str),
    /// `PEXPIRE key ttl`
    Expire(&'static str, Tick),
    /// `EXPIRE key 0`, which is what less than a second becomes in whole seconds
    ExpireNow(&'static str),
    /// `PTTL key`, as a number of steps, -1 for a key that stays, -2 for none
    Ttl(&'static str),
    /// `WATCH key`
    Watch(&'static str),
    /// `MULTI`, `DEL key`, `EXEC`
    ExecDel(&'static str),
    /// `MULTI`, `SET key value PX ttl`, `EXEC`
    ExecSetPx(&'static str, Value, Tick),
    /// A script: `SETNX`, and if it won `PEXPIRE`
    SetNxExpire(&'static str, Value, Tick),
    /// A script: `DEL` if the value is this one
    DelIf(&'static str, Value),
    /// A script: `PEXPIRE` if the value is this one
    ExpireIf(&'static str, Value, Tick),
    /// A script: `SET NX PX`, and if it won `INCR fence`; the fence or 0
    SetNxPxIncr(&'static str, Value, Tick),
    /// `HINCRBY key value n` with expiry; deletes the field at 0 (a re-entrant hold)
    Count(&'static str, Value, i8, Tick),
    /// A script of a semaphore: forgets members with a score before `now - ttl`, adds one if fewer than `limit` are left; 1 or 0
    Enter {
        /// The sorted set.
        key: &'static str,
        /// Who enters.
        member: Value,
        /// The client's wall clock.
        at: Value,
        /// How long members live.
        ttl: Tick,
        /// How many there may be.
        limit: u8,
    },
    /// `INCR key`
    Incr(&'static str),
    /// `DECR key`
    Decr(&'static str),
    /// A script: drops from the queue's head who is late by the client's clock, then takes the name if it is free and nobody waits in
    /// front, or queues; 1 if it has it
    TakeInTurn {
        /// The lock; its queue is beside it.
        key: &'static str,
        /// Who asks.
        member: Value,
        /// The client's wall clock.
        at: Value,
        /// How long the lease is.
        ttl: Tick,
        /// How much longer than those in front of it a place lasts.
        patience: Tick,
    },
    /// `ZREM key value`
    Leave(&'static str, Value),
    /// `SUBSCRIBE key`
    Subscribe(&'static str),
    /// A script: `DEL` if the value is this one, and `PUBLISH`
    DelIfPublish(&'static str, Value),
    /// `WAIT 1 0`: how many replicas have what this connection wrote
    Wait,
    /// `SELECT version, ends`
    Select(&'static str),
    /// `UPDATE SET version = version + 1, ends = ...`, if `WHERE version = ...`; the number of rows
    Update {
        /// Which row.
        key: &'static str,
        /// Only this version of it.
        version: i16,
        /// The new end, by the client's wall clock.
        ends: Value,
    },
    /// A script of a reader: joins the readers unless a writer is there, and lets the set live for ttl
    ReadLock(&'static str, Value, Tick),
    /// A script of a reader: leaves the readers
    ReadUnlock(&'static str, Value),
    /// A script of a writer: takes the name unless anybody is there
    WriteLock(&'static str, Value, Tick),
    /// A script of ours, at a lock whose value is a point in time
    Stamp(Stamp),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => f.write_str("nil"),
            Self::Int(number) => write!(f, "{number}"),
            Self::Word(word) => f.write_str(word),
            Self::Token { who, take } => write!(f, "token-{}{take}", super::program::name(*who)),
            Self::At(at) => write!(f, "t{at}"),
            Self::Row { version, ends } => write!(f, "(version {version}, ends t{ends})"),
            Self::Broken => f.write_str("no reply"),
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetNx(key, value) => write!(f, "SETNX {key} {value}"),
            Self::SetNxPx(key, value, ttl) => write!(f, "SET {key} {value} PX {ttl} NX"),
            Self::SetXxPx(key, value, ttl) => write!(f, "SET {key} {value} PX {ttl} XX"),
            Self::SetPx(key, value, ttl) => write!(f, "SET {key} {value} PX {ttl}"),
            Self::Get(key) => write!(f, "GET {key}"),
            Self::GetSet(key, value) => write!(f, "GETSET {key} {value}"),
            Self::Del(key) => write!(f, "DEL {key}"),
            Self::Expire(key, ttl) => write!(f, "EXPIRE {key} {ttl}"),
            Self::ExpireNow(key) => write!(f, "EXPIRE {key} 0"),
            Self::Ttl(key) => write!(f, "TTL {key}"),
            Self::Watch(key) => write!(f, "WATCH {key}"),
            Self::ExecDel(key) => write!(f, "MULTI, DEL {key}, EXEC"),
            Self::ExecSetPx(key, value, ttl) => write!(f, "MULTI, SET {key} {value} PX {ttl}, EXEC"),
            Self::SetNxExpire(key, value, ttl) => write!(f, "script: SETNX {key} {value}, then EXPIRE {key} {ttl}"),
            Self::DelIf(key, value) => write!(f, "script: DEL {key} if it is {value}"),
            Self::ExpireIf(key, value, ttl) => write!(f, "script: EXPIRE {key} {ttl} if it is {value}"),
            Self::SetNxPxIncr(key, value, ttl) => write!(f, "script: SET {key} {value} PX {ttl} NX, then INCR {FENCE}"),
            Self::Count(key, value, n, _) => write!(f, "script: HINCRBY {key} {value} {n}"),
            Self::Enter { key, member, at, ttl, limit } => {
                write!(f, "script: drop from {key} what is older than {at} - {ttl}, add {member} if fewer than {limit}")
            }
            Self::Incr(key) => write!(f, "INCR {key}"),
            Self::Decr(key) => write!(f, "DECR {key}"),
            Self::TakeInTurn { key, member, at, .. } => {
                write!(
                    f,
                    "script: drop waiters whose time is over at {at}, SET {key} {member} if it is free and its turn, else queue"
                )
            }
            Self::Leave(key, value) => write!(f, "ZREM {key} {value}"),
            Self::Subscribe(key) => write!(f, "SUBSCRIBE {key}"),
            Self::DelIfPublish(key, value) => write!(f, "script: DEL {key} if it is {value}, then PUBLISH {key}"),
            Self::Wait => f.write_str("WAIT 1"),
            Self::Select(key) => write!(f, "SELECT version, ends FROM {key}"),
            Self::Update { key, version, ends } => {
                write!(f, "UPDATE {key} SET version = version + 1, ends = {ends} WHERE version = {version}")
            }
            Self::ReadLock(key, value, ttl) => write!(f, "script: add {value} to the readers of {key}, EXPIRE {ttl} for all"),
            Self::Stamp(stamp) => stamp.fmt(f),
            Self::ReadUnlock(key, value) => write!(f, "script: remove {value} from the readers of {key}"),
            Self::WriteLock(key, value, ttl) => write!(f, "script: SET {key} {value} PX {ttl} if nobody reads or writes"),
        }
    }
}
