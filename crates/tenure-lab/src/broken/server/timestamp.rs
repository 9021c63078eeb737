//! Timestamp values, as our scripts take, renew and delete them. A second key says whose the value
//! is, or since when it was seen without an end.

use super::{Data, Server};
use crate::broken::command::{LOCK, ONE, Value, ZERO};
use crate::broken::program::Tick;
use crate::broken::schemes::TTL;
use crate::broken::timestamp::{Task, Timestamp, Unit};

/// The note beside the lock.
const BESIDE: &str = "beside";
/// For how long a key must be seen without an end before it is taken, in steps.
pub(crate) const UNENDED: Tick = 1;
/// How much longer than the lease what stands beside is kept.
const SLACK: Tick = 1;
/// How much longer the note of a key without ttl is kept than that key is watched.
const NOTED: Tick = 4;

/// The lock as it stands.
struct Found {
    /// Whose it is; the value itself, where it is of another.
    who: Option<Value>,
    value: Value,
    /// For ever, where there is none.
    left: Option<Tick>,
}

impl Server {
    pub(crate) fn call(&mut self, call: Timestamp, now: Tick) -> Value {
        let found = self.found(call, now);
        let mine = found.as_ref().is_some_and(|found| found.who == Some(call.owner));
        match (call.task, found) {
            (Task::Take | Task::Renew, Some(found)) if mine => self.prolong(call, &found, now),
            (Task::Release, _) if mine => {
                self.delete(BESIDE);
                self.delete(LOCK)
            }
            (Task::Take, found) if self.is_nobodys(call, found.as_ref(), now) => {
                let apart = (call.clock - now).abs();
                if call.rules.clocks_agree && call.unit == Unit::End && apart > TTL / 3 {
                    return Value::Word("the clocks are apart");
                }
                self.give(call, found.map(|found| found.value), now)
            }
            (Task::Put, found) => self.give(call, found.map(|found| found.value), now),
            _ => ZERO,
        }
    }

    /// Whose the lock is by what stands beside it.
    pub(crate) fn stamped_for(&self) -> Option<Value> {
        match self.keys.get(BESIDE).map(|entry| &entry.data) {
            Some(Data::Owner(value, owner)) if *value == self.text(LOCK) => Some(*owner),
            _ => None,
        }
    }

    fn found(&self, call: Timestamp, now: Tick) -> Option<Found> {
        let entry = self.keys.get(LOCK)?;
        let value = self.text(LOCK);
        let noted = match self.keys.get(BESIDE).map(|entry| &entry.data) {
            Some(Data::Owner(_, owner)) if !call.rules.changed_is_lost => Some(*owner),
            _ if call.rules.owner_beside => self.stamped_for(),
            _ => None,
        };
        let who = noted.unwrap_or(value);
        Some(match (call.unit, value) {
            (Unit::End, Value::At(end)) => Found { who: (end > now).then_some(who), value, left: Some(end - now) },
            _ => Found { who: Some(who), value, left: entry.until.map(|until| until - now) },
        })
    }

    fn is_nobodys(&mut self, call: Timestamp, found: Option<&Found>, now: Tick) -> bool {
        match found {
            None | Some(Found { who: None, .. }) => true,
            Some(Found { who: Some(who), value: Value::At(end), left: None }) if *who == Value::At(*end) => {
                self.is_unended(call, *end, now)
            }
            Some(_) => false,
        }
    }

    /// Whether a key without ttl is to be taken over; if not yet, it is noted since when it was
    /// seen.
    fn is_unended(&mut self, call: Timestamp, end: Tick, now: Tick) -> bool {
        let since = match self.keys.get(BESIDE).map(|entry| &entry.data) {
            Some(Data::Seen(value, since)) if *value == Value::At(end) => *since,
            _ => now,
        };
        let by_value = if call.rules.value_passed { end } else { now };
        let due = if call.rules.seen_long { by_value.max(since + UNENDED) } else { by_value };
        if due > now {
            self.put(BESIDE, Data::Seen(Value::At(end), since), Some(due + NOTED));
        }
        due <= now
    }

    /// Makes the lock `call`'s, with another value than the last.
    fn give(&mut self, call: Timestamp, last: Option<Value>, now: Tick) -> Value {
        let end = if last == Some(Value::At(now + TTL)) { now + TTL + 1 } else { now + TTL };
        let (value, until) = match call.unit {
            Unit::Php => (Value::At(end), now + TTL),
            Unit::End => (Value::At(end), end),
        };
        self.set(LOCK, value, (call.unit == Unit::Php).then_some(until));
        self.put(BESIDE, Data::Owner(value, call.owner), Some(until + SLACK));
        // Where nothing stands beside, its writer has to know the value.
        if call.rules.owner_beside { ONE } else { value }
    }

    fn prolong(&mut self, call: Timestamp, found: &Found, now: Tick) -> Value {
        if found.left.is_some_and(|left| left >= TTL) {
            return ONE;
        }
        if call.unit == Unit::End {
            return self.give(call, Some(found.value), now);
        }
        self.expire(BESIDE, now + TTL + SLACK);
        self.expire(LOCK, now + TTL)
    }
}
