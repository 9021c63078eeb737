//! The commands of the schemes as bytes for a real server, and its replies as values.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_testkit::Reply;

use super::command::{Command, FENCE, Value};
use super::program::Tick;

/// How the steps of a story are laid out in real time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Scale {
    /// When step 0 begins, in nanoseconds since boot.
    pub start: u64,
    /// How long a step is.
    pub step: Duration,
    /// What the wall clock of a right host says at step 0, in milliseconds.
    pub wall: i64,
    /// Keeps the tokens of one run apart from those of another.
    pub nonce: u64,
}

impl Scale {
    /// Nanoseconds since boot at which a step begins.
    pub(super) fn at(&self, tick: Tick) -> u64 {
        self.start.saturating_add_signed(self.nanos(tick))
    }

    /// When a belief ends that was to end at `until` and is learnt of in step `now`: half a step before, as leases do at the server.
    pub(super) fn end(&self, learnt: u64, now: Tick, until: Tick) -> u64 {
        learnt.saturating_add_signed(self.nanos(until - now)) - self.half()
    }

    fn nanos(&self, ticks: Tick) -> i64 {
        i64::from(ticks) * i64::try_from(self.step.as_nanos()).expect("steps are short")
    }

    /// Half a step, in nanoseconds.
    pub(super) fn half(&self) -> u64 {
        u64::try_from(self.step.as_nanos() / 2).expect("steps are short")
    }

    /// A ttl for the server: half a step short, so that what ends at a step has ended when the step is played.
    fn ttl(&self, ticks: Tick) -> String {
        let step = self.step.as_millis();
        (u128::from(ticks.unsigned_abs()) * step - step / 2).to_string()
    }

    /// A span by the clocks of clients, in milliseconds.
    fn span(&self, ticks: Tick) -> String {
        (u128::from(ticks.unsigned_abs()) * self.step.as_millis()).to_string()
    }

    /// What a wall clock says, in milliseconds.
    pub(super) fn milliseconds(&self, at: Tick) -> i64 {
        self.wall + i64::from(at) * i64::try_from(self.step.as_millis()).expect("steps are short")
    }

    /// The step of a time on a wall clock.
    pub(super) fn ticks(&self, milliseconds: i64) -> Tick {
        let step = i64::try_from(self.step.as_millis()).expect("steps are short");
        Tick::try_from((milliseconds - self.wall).div_euclid(step)).unwrap_or(Tick::MIN)
    }

    fn text(&self, value: Value) -> String {
        match value {
            Value::At(at) => self.milliseconds(at).to_string(),
            Value::Token { who, take } => format!("token-{who}-{take}-{:x}", self.nonce),
            other => other.to_string(),
        }
    }

    /// The words of a command, one list for each that is sent; their last reply counts.
    pub(super) fn words(&self, command: Command) -> Vec<Vec<String>> {
        let one = |words: &[&str]| vec![words.iter().map(ToString::to_string).collect::<Vec<_>>()];
        let text = |value| self.text(value);
        let script = |lua: &str, key: &str, arguments: &[String]| {
            let head = ["EVAL", lua, "1", key].map(str::to_owned);
            vec![head.into_iter().chain(arguments.iter().cloned()).collect()]
        };
        match command {
            Command::SetNx(key, value) => one(&["SETNX", key, &text(value)]),
            Command::SetNxPx(key, value, ttl) => one(&["SET", key, &text(value), "PX", &self.ttl(ttl), "NX"]),
            Command::SetXxPx(key, value, ttl) => one(&["SET", key, &text(value), "PX", &self.ttl(ttl), "XX"]),
            Command::SetPx(key, value, ttl) => one(&["SET", key, &text(value), "PX", &self.ttl(ttl)]),
            Command::Get(key) => one(&["GET", key]),
            Command::GetSet(key, value) => one(&["GETSET", key, &text(value)]),
            Command::Del(key) => one(&["DEL", key]),
            Command::Expire(key, ttl) => one(&["PEXPIRE", key, &self.ttl(ttl)]),
            Command::ExpireNow(key) => one(&["EXPIRE", key, "0"]),
            Command::Ttl(key) => one(&["PTTL", key]),
            Command::Watch(key) => one(&["WATCH", key]),
            Command::Wait => one(&["WAIT", "1", "1"]),
            Command::Subscribe(key) => one(&["SUBSCRIBE", key]),
            Command::Incr(key) => one(&["INCR", key]),
            Command::Decr(key) => one(&["DECR", key]),
            Command::TakeInTurn { key, member, at, ttl, patience } => {
                script(TAKE_IN_TURN, key, &[text(member), text(at), self.ttl(ttl), self.span(patience)])
            }
            Command::Leave(key, value) => one(&["ZREM", key, &text(value)]),
            Command::ReadUnlock(key, value) => one(&["SREM", key, &text(value)]),
            Command::ExecDel(key) => [one(&["MULTI"]), one(&["DEL", key]), one(&["EXEC"])].concat(),
            Command::ExecSetPx(key, value, ttl) => {
                [one(&["MULTI"]), one(&["SET", key, &text(value), "PX", &self.ttl(ttl)]), one(&["EXEC"])].concat()
            }
            Command::SetNxExpire(key, value, ttl) | Command::WriteLock(key, value, ttl) => {
                script(SETNX_EXPIRE, key, &[text(value), self.ttl(ttl)])
            }
            Command::SetNxPxIncr(key, value, ttl) => script(SET_INCR, key, &[text(value), self.ttl(ttl), FENCE.to_owned()]),
            Command::DelIf(key, value) => script(DEL_IF, key, &[text(value)]),
            Command::DelIfPublish(key, value) => script(DEL_PUBLISH, key, &[text(value)]),
            Command::ExpireIf(key, value, ttl) => script(EXPIRE_IF, key, &[text(value), self.ttl(ttl)]),
            Command::Count(key, value, n, ttl) => script(COUNT, key, &[text(value), n.to_string(), self.ttl(ttl)]),
            Command::Enter { key, member, at, ttl, limit } => {
                let Value::At(at) = at else { return Vec::new() };
                let now = self.milliseconds(at);
                let oldest = self.milliseconds(at - ttl);
                script(ENTER, key, &[text(member), now.to_string(), oldest.to_string(), limit.to_string()])
            }
            Command::ReadLock(key, value, ttl) => script(READ_LOCK, key, &[text(value), self.ttl(ttl)]),
            // Of the table, see the player; and of ours, which is played by nobody.
            Command::Stamp(_) | Command::Select(_) | Command::Update { .. } => Vec::new(),
        }
    }

    /// What the server's last reply to `command` says.
    pub(super) fn value(&self, command: Command, reply: &Reply) -> Value {
        match (command, reply) {
            (_, Reply::Nil) => Value::Nil,
            (Command::Ttl(_), Reply::Int(left)) if *left >= 0 => {
                // A lease is half a step short; what is left of it is rounded up to whole steps.
                let step = i64::try_from(self.step.as_millis()).expect("steps are short");
                Value::Int(Tick::try_from((left + step / 2 + step - 1) / step).unwrap_or(Tick::MAX))
            }
            (_, Reply::Int(number)) => Value::Int(Tick::try_from(*number).unwrap_or(Tick::MAX)),
            (Command::ExecDel(_) | Command::ExecSetPx(..), Reply::Array(all)) => {
                all.first().map_or(Value::Nil, |first| self.value(command, first))
            }
            (Command::Subscribe(_), Reply::Array(_)) => super::command::OK,
            (_, Reply::Bytes(bytes)) => self.read(&String::from_utf8_lossy(bytes)),
            (_, other) => panic!("{command}: the server answered {other:?}"),
        }
    }

    fn read(&self, text: &str) -> Value {
        if let Some((who, take)) = text.strip_prefix("token-").and_then(|rest| rest.split_once('-')) {
            let take = take.split('-').next().and_then(|take| take.parse().ok());
            return match (who.parse(), take) {
                (Ok(who), Some(take)) => Value::Token { who, take },
                _ => panic!("{text:?} is no token of ours"),
            };
        }
        match (text, text.parse::<i64>()) {
            ("1", _) => super::schemes::FIXED,
            ("OK", _) => super::command::OK,
            (_, Ok(milliseconds)) => Value::At(self.ticks(milliseconds)),
            _ => panic!("{text:?} is nothing that a scheme writes"),
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
