//! Commands and values: in words, on the wire, and in the model.

use std::fmt;

use super::memcached::Memcached;
use super::program::Tick;
use super::redisson::Redisson;
use super::timestamp::Timestamp;
use super::zookeeper::ZooKeeper;

/// The key that is the lock, in every scheme.
pub(crate) const LOCK: &str = "lock";
/// Where grants are counted, in schemes that do.
pub(crate) const FENCE: &str = "fence";

/// A value that is stored, sent or answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[rustfmt::skip]
pub(crate) enum Value {
    #[default]
    Nil,
    Int(i16),
    /// A text that is the same for all.
    Word(&'static str),
    /// Random bits of one take of one client.
    Token { who: u8, take: u8 },
    /// A point in time, by its writer's wall clock.
    At(Tick),
    /// A row of a table: its version counts its updates, and its lease ends by its writer's wall
    /// clock.
    Row { version: i16, ends: Tick },
    /// The take of a client, whose lease ends by its wall clock.
    Record { who: u8, take: u8, ends: Tick },
    /// Nodes that ZooKeeper numbered, a bit each.
    Nodes(u8),
    /// No reply came: the connection broke.
    Broken,
}

/// The answer of a won `SETNX`, a deleted key and so on.
pub(crate) const ONE: Value = Value::Int(1);
/// The answer of a lost one.
pub(crate) const ZERO: Value = Value::Int(0);
/// The answer of a command that has nothing to say.
pub(crate) const OK: Value = Value::Word("OK");

impl Value {
    /// A point in time, or the end of the lease in a row or a record, that lies before `wall`.
    pub(crate) fn is_past(self, wall: Tick) -> bool {
        matches!(self, Self::At(at) | Self::Row { ends: at, .. } | Self::Record { ends: at, .. } if at < wall)
    }

    /// The first of some nodes.
    pub(crate) const fn first(nodes: u8) -> Self {
        Self::Nodes(nodes & nodes.wrapping_neg())
    }
}

type Key = &'static str;

/// One command, executed in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[rustfmt::skip]
pub(crate) enum Command {
    SetNx(Key, Value),
    SetNxPx(Key, Value, Tick),
    SetXxPx(Key, Value, Tick),
    SetPx(Key, Value, Tick),
    Get(Key),
    GetSet(Key, Value),
    Del(Key),
    Expire(Key, Tick),
    /// An expiry of less than a second, in whole seconds.
    ExpireNow(Key),
    /// As a number of steps, -1 for a key that stays, -2 for none.
    Ttl(Key),
    Watch(Key),
    ExecDel(Key),
    ExecSetPx(Key, Value, Tick),
    Incr(Key),
    Decr(Key),
    Leave(Key, Value),
    Subscribe(Key),
    /// How many replicas have what this connection wrote.
    Wait,
    SetNxExpire(Key, Value, Tick),
    DelIf(Key, Value),
    DelIfPublish(Key, Value),
    ExpireIf(Key, Value, Tick),
    /// The fence, or 0.
    SetNxPxIncr(Key, Value, Tick),
    /// Counts the holds of one owner up or down (a re-entrant lock); deletes the field at 0.
    Count(Key, Value, i8, Tick),
    /// A semaphore: forgets members with a score before `at - ttl`, adds one if fewer than `limit`
    /// are left; 1 or 0.
    Enter { key: Key, member: Value, at: Tick, ttl: Tick, limit: u8 },
    /// Drops from the queue's head each member that is late at `at`, then takes the name if it is
    /// free and nobody waits in front, or queues for `patience` longer than those in front; 1 if it
    /// has it.
    TakeInTurn { key: Key, member: Value, at: Tick, ttl: Tick, patience: Tick },
    /// Joins the readers unless a writer is there, and lets the set live for a ttl.
    ReadLock(Key, Value, Tick),
    ReadUnlock(Key, Value),
    /// Takes the name unless anybody is there.
    WriteLock(Key, Value, Tick),
    Select(Key),
    /// Of this version of the row only; the number of rows.
    Update { key: Key, version: i16, ends: Tick },
    /// A script of ours, at a lock whose value is a timestamp.
    Timestamp(Timestamp),
    Redisson(Redisson),
    Memcached(Memcached),
    ZooKeeper(ZooKeeper),
}

/// How values are written.
pub(crate) trait Writer {
    fn text(&self, value: Value) -> String;

    /// A ttl for the server.
    fn ttl(&self, ticks: Tick) -> String;

    /// A span by the clocks of clients.
    fn span(&self, ticks: Tick) -> String;
}

/// Writes in words and steps.
struct Words;

impl Writer for Words {
    fn text(&self, value: Value) -> String {
        value.to_string()
    }

    fn ttl(&self, ticks: Tick) -> String {
        ticks.to_string()
    }

    fn span(&self, ticks: Tick) -> String {
        ticks.to_string()
    }
}

impl Command {
    /// The words of a command that is no script; several commands have `, ` between them.
    pub(crate) fn plain(self, writer: &impl Writer) -> Option<String> {
        let text = |value| writer.text(value);
        let ttl = |ticks| writer.ttl(ticks);
        Some(match self {
            Self::SetNx(key, value) => format!("SETNX {key} {}", text(value)),
            Self::SetNxPx(key, value, ticks) => format!("SET {key} {} PX {} NX", text(value), ttl(ticks)),
            Self::SetXxPx(key, value, ticks) => format!("SET {key} {} PX {} XX", text(value), ttl(ticks)),
            Self::SetPx(key, value, ticks) => format!("SET {key} {} PX {}", text(value), ttl(ticks)),
            Self::Get(key) => format!("GET {key}"),
            Self::GetSet(key, value) => format!("GETSET {key} {}", text(value)),
            Self::Del(key) => format!("DEL {key}"),
            Self::Expire(key, ticks) => format!("PEXPIRE {key} {}", ttl(ticks)),
            Self::ExpireNow(key) => format!("EXPIRE {key} 0"),
            Self::Ttl(key) => format!("PTTL {key}"),
            Self::Watch(key) => format!("WATCH {key}"),
            Self::ExecDel(key) => format!("MULTI, DEL {key}, EXEC"),
            Self::ExecSetPx(key, value, ticks) => format!("MULTI, SET {key} {} PX {}, EXEC", text(value), ttl(ticks)),
            Self::Incr(key) => format!("INCR {key}"),
            Self::Decr(key) => format!("DECR {key}"),
            Self::Leave(key, value) => format!("ZREM {key} {}", text(value)),
            Self::ReadUnlock(key, value) => format!("SREM {key} {}", text(value)),
            Self::Subscribe(key) => format!("SUBSCRIBE {key}"),
            Self::Wait => "WAIT 1 1".to_owned(),
            _ => return None,
        })
    }

    /// A script, with its key and arguments; none is played of the table, nor of ours.
    pub(crate) fn script(self, writer: &impl Writer) -> Option<(&'static str, Key, Vec<String>)> {
        let text = |value| writer.text(value);
        let ttl = |ticks| writer.ttl(ticks);
        Some(match self {
            Self::SetNxExpire(key, value, ticks) | Self::WriteLock(key, value, ticks) => {
                (SETNX_EXPIRE, key, vec![text(value), ttl(ticks)])
            }
            Self::SetNxPxIncr(key, value, ticks) => (SET_INCR, key, vec![text(value), ttl(ticks), FENCE.to_owned()]),
            Self::DelIf(key, value) => (DEL_IF, key, vec![text(value)]),
            Self::DelIfPublish(key, value) => (DEL_PUBLISH, key, vec![text(value)]),
            Self::ExpireIf(key, value, ticks) => (EXPIRE_IF, key, vec![text(value), ttl(ticks)]),
            Self::Count(key, value, n, ticks) => (COUNT, key, vec![text(value), n.to_string(), ttl(ticks)]),
            Self::Enter { key, member, at, ttl, limit } => {
                let (now, oldest) = (text(Value::At(at)), text(Value::At(at - ttl)));
                (ENTER, key, vec![text(member), now, oldest, limit.to_string()])
            }
            Self::TakeInTurn { key, member, at, ttl: ticks, patience } => {
                (TAKE_IN_TURN, key, vec![text(member), text(Value::At(at)), ttl(ticks), writer.span(patience)])
            }
            Self::ReadLock(key, value, ticks) => (READ_LOCK, key, vec![text(value), ttl(ticks)]),
            Self::Redisson(call) => {
                let (lua, arguments) = call.script(writer);
                (lua, LOCK, arguments)
            }
            _ => return None,
        })
    }
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
            Self::Record { who, take, ends } => write!(f, "({} until t{ends})", Self::Token { who: *who, take: *take }),
            Self::Nodes(0) => f.write_str("nothing"),
            Self::Nodes(nodes) => {
                let names = (0..8).filter(|n| nodes & (1 << n) != 0).map(|n| format!("n{n}"));
                f.write_str(&names.collect::<Vec<_>>().join(" "))
            }
            Self::Broken => f.write_str("no reply"),
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetNxExpire(key, value, ttl) => write!(f, "script: SETNX {key} {value}, then EXPIRE {key} {ttl}"),
            Self::DelIf(key, value) => write!(f, "script: DEL {key} if it is {value}"),
            Self::DelIfPublish(key, value) => write!(f, "script: DEL {key} if it is {value}, then PUBLISH {key}"),
            Self::ExpireIf(key, value, ttl) => write!(f, "script: EXPIRE {key} {ttl} if it is {value}"),
            Self::SetNxPxIncr(key, value, ttl) => write!(f, "script: SET {key} {value} PX {ttl} NX, then INCR {FENCE}"),
            Self::Count(key, value, n, _) => write!(f, "script: HINCRBY {key} {value} {n}"),
            Self::Enter { key, member, at, ttl, limit } => {
                write!(f, "script: drop from {key} what is older than t{at} - {ttl}, add {member} if fewer than {limit}")
            }
            Self::TakeInTurn { key, member, at, .. } => {
                write!(
                    f,
                    "script: drop waiters whose time is over at t{at}, SET {key} {member} if it is free and its turn, else queue"
                )
            }
            Self::ReadLock(key, value, ttl) => write!(f, "script: add {value} to the readers of {key}, EXPIRE {ttl} for all"),
            Self::ReadUnlock(key, value) => write!(f, "script: remove {value} from the readers of {key}"),
            Self::WriteLock(key, value, ttl) => write!(f, "script: SET {key} {value} PX {ttl} if nobody reads or writes"),
            Self::Select(key) => write!(f, "SELECT version, ends FROM {key}"),
            Self::Update { key, version, ends } => {
                write!(f, "UPDATE {key} SET version = version + 1, ends = t{ends} WHERE version = {version}")
            }
            Self::Timestamp(call) => call.fmt(f),
            Self::Redisson(call) => call.fmt(f),
            Self::Memcached(call) => call.fmt(f),
            Self::ZooKeeper(call) => call.fmt(f),
            Self::Wait => f.write_str("WAIT 1"),
            // Played in milliseconds, told in steps.
            Self::Expire(key, ttl) => write!(f, "EXPIRE {key} {ttl}"),
            Self::Ttl(key) => write!(f, "TTL {key}"),
            plain => f.write_str(&plain.plain(&Words).unwrap_or_default()),
        }
    }
}

const SETNX_EXPIRE: &str = "if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return 1";
const SET_INCR: &str = "if not redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') then return 0 end
return redis.call('INCR', ARGV[3])";
const DEL_IF: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end return redis.call('DEL', KEYS[1])";
const DEL_PUBLISH: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('PUBLISH', KEYS[1], 'free') return redis.call('DEL', KEYS[1])";
const EXPIRE_IF: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])";
const COUNT: &str = "local mine = redis.call('HEXISTS', KEYS[1], ARGV[1])
if (tonumber(ARGV[2]) > 0 and redis.call('HLEN', KEYS[1]) > mine) or (tonumber(ARGV[2]) < 0 and mine == 0) then return false end
local n = redis.call('HINCRBY', KEYS[1], ARGV[1], ARGV[2])
if n > 0 then redis.call('PEXPIRE', KEYS[1], ARGV[3]) else redis.call('HDEL', KEYS[1], ARGV[1]) end
return n";
const ENTER: &str = "redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[3])
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[4]) then return 0 end
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1]) return 1";
const TAKE_IN_TURN: &str = "local queue, ends, me, now = KEYS[1] .. ':queue', KEYS[1] .. ':ends', ARGV[1], tonumber(ARGV[2])
local head = redis.call('LINDEX', queue, 0)
while head and tonumber(redis.call('ZSCORE', ends, head)) <= now do
  redis.call('LPOP', queue) redis.call('ZREM', ends, head)
  head = redis.call('LINDEX', queue, 0)
end
if redis.call('EXISTS', KEYS[1]) == 0 and (not head or head == me) then
  redis.call('LPOP', queue) redis.call('ZREM', ends, me)
  for _, other in ipairs(redis.call('LRANGE', queue, 0, -1)) do redis.call('ZINCRBY', ends, -ARGV[4], other) end
  redis.call('SET', KEYS[1], me, 'PX', ARGV[3]) return 1
end
if not redis.call('ZSCORE', ends, me) then
  local last = redis.call('LINDEX', queue, -1)
  local left = last and tonumber(redis.call('ZSCORE', ends, last)) - now or math.max(redis.call('PTTL', KEYS[1]), 0)
  redis.call('ZADD', ends, now + left + ARGV[4], me) redis.call('RPUSH', queue, me)
end
return 0";
const READ_LOCK: &str = "if redis.call('TYPE', KEYS[1]).ok == 'string' then return 0 end
redis.call('SADD', KEYS[1], ARGV[1]) redis.call('PEXPIRE', KEYS[1], ARGV[2]) return 1";
