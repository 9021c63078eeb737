//! Scripts of Redisson, as commands of the modelled server and of a real one.

use std::fmt;

use super::command::{FENCE, Value, Writer};
use super::program::Tick;

/// The task of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Task {
    /// Takes an `RFencedLock`; the token, or 0.
    Fenced,
    /// Prolongs an `RLock`, as the watchdog does.
    Renew,
    /// Takes an `RReadWriteLock` for a writer.
    Write,
    /// Joins its readers. A writer may read as well.
    Read,
    ReadUnlock,
    WriteUnlock,
    /// Prolongs a writer's hold, as the watchdog does.
    RenewWrite,
    /// Takes a permit of an `RSemaphore`.
    Permit,
}

/// One call of a script, at the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Redisson {
    pub(crate) task: Task,
    /// For which client and thread.
    pub(crate) owner: Value,
    pub(crate) ttl: Tick,
}

impl Redisson {
    /// The script, and its arguments behind the key of the lock.
    pub(crate) fn script(self, writer: &impl Writer) -> (&'static str, Vec<String>) {
        let lua = match self.task {
            Task::Fenced => FENCED,
            Task::Renew => RENEW,
            Task::Write => WRITE,
            Task::Read => READ,
            Task::ReadUnlock => READ_UNLOCK,
            Task::WriteUnlock => WRITE_UNLOCK,
            Task::RenewWrite => RENEW_WRITE,
            Task::Permit => PERMIT,
        };
        (lua, vec![writer.text(self.owner), writer.ttl(self.ttl), FENCE.to_owned()])
    }
}

impl fmt::Display for Redisson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner, ttl, .. } = self;
        match self.task {
            Task::Fenced => write!(f, "script: HINCRBY lock {owner} 1 if nobody else has it, INCR {FENCE}, EXPIRE lock {ttl}"),
            Task::Renew => write!(f, "script: EXPIRE lock {ttl} if {owner} has it"),
            Task::Write => write!(f, "script: {owner} writes if lock is free, EXPIRE lock {ttl}"),
            Task::Read => write!(f, "script: {owner} reads unless another writes, EXPIRE lock {ttl}"),
            Task::ReadUnlock => write!(f, "script: {owner} reads no more"),
            Task::WriteUnlock => write!(f, "script: {owner} writes no more"),
            Task::RenewWrite => write!(f, "script: EXPIRE lock {ttl} if {owner} writes"),
            Task::Permit => f.write_str("script: DECR lock if it is above 0"),
        }
    }
}

const FENCED: &str = "if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
local token = redis.call('INCR', ARGV[3])
redis.call('HINCRBY', KEYS[1], ARGV[1], 1) redis.call('PEXPIRE', KEYS[1], ARGV[2])
return token";
const RENEW: &str = "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])";
const RENEW_WRITE: &str = "if redis.call('HEXISTS', KEYS[1], ARGV[1] .. ':write') == 0 then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])";
const WRITE: &str = "if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'mode', 'write', ARGV[1] .. ':write', 1)
return redis.call('PEXPIRE', KEYS[1], ARGV[2])";
const READ: &str = "local mode = redis.call('HGET', KEYS[1], 'mode')
if mode == 'write' and redis.call('HEXISTS', KEYS[1], ARGV[1] .. ':write') == 0 then return 0 end
if not mode then redis.call('HSET', KEYS[1], 'mode', 'read') end
local hold = redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
redis.call('SET', '{' .. KEYS[1] .. '}:' .. ARGV[1] .. ':rwlock_timeout:' .. hold, 1, 'PX', ARGV[2])
return redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), ARGV[2]))";
const READ_UNLOCK: &str = "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
local function hold_of(owner, number) return '{' .. KEYS[1] .. '}:' .. owner .. ':rwlock_timeout:' .. number end
local left = redis.call('HINCRBY', KEYS[1], ARGV[1], -1)
if left == 0 then redis.call('HDEL', KEYS[1], ARGV[1]) end
redis.call('DEL', hold_of(ARGV[1], left + 1))
local longest = 0
for _, owner in ipairs(redis.call('HKEYS', KEYS[1])) do
  for number = 1, tonumber(redis.call('HGET', KEYS[1], owner)) or 0 do
    longest = math.max(longest, redis.call('PTTL', hold_of(owner, number)))
  end
end
if longest > 0 then redis.call('PEXPIRE', KEYS[1], longest)
elseif redis.call('HGET', KEYS[1], 'mode') == 'read' then redis.call('DEL', KEYS[1]) end
return 1";
const WRITE_UNLOCK: &str = "if redis.call('HDEL', KEYS[1], ARGV[1] .. ':write') == 0 then return 0 end
if redis.call('HLEN', KEYS[1]) == 1 then redis.call('DEL', KEYS[1]) else redis.call('HSET', KEYS[1], 'mode', 'read') end
return 1";
const PERMIT: &str = "if tonumber(redis.call('GET', KEYS[1]) or 0) < 1 then return 0 end
redis.call('DECR', KEYS[1]) return 1";
