//! A server of Redis, as far as the schemes use it, with our scripts at a timestamp.
//!
//! A note beside the lock says whose the value is, or since when it was seen without an end.

use std::collections::BTreeMap;

use super::command::{Command, OK, ONE, Task, Value, ZERO};
use super::rules::{Rules, TTL, Tick, UNENDED};

/// How much longer than the lease what stands beside is kept.
const SLACK: Tick = 1;
/// How much longer the note of a key without ttl is kept than that key is watched.
const NOTED: Tick = 4;

/// A server with its data. Its clock is the world's, and what that is ahead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Server {
    lock: Option<Entry<Value>>,
    beside: Option<Entry<Note>>,
    /// Which write of the lock each connection has seen that watches it.
    watches: BTreeMap<(u8, u8), Option<u8>>,
    writes: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Entry<T> {
    data: T,
    until: Option<Tick>,
    /// Which write that was.
    version: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Note {
    /// Whose the lock is, for as long as it has this value.
    Owner(Value, Value),
    /// Since when the lock was seen with this value and without an end.
    Seen(Value, Tick),
}

/// The state of the lock, for an observer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AtLock {
    /// The value; nothing where there is no key.
    pub(super) value: Value,
    /// Which write that was.
    pub(super) version: Option<u8>,
    /// The key has no ttl.
    pub(super) endless: bool,
}

/// The lock as a script finds it.
struct Found {
    /// Whose it is; the value itself, where it is of another.
    who: Option<Value>,
    value: Value,
    /// For ever, where there is none.
    left: Option<Tick>,
}

impl Server {
    pub(super) fn disconnect(&mut self, who: u8) {
        self.watches.retain(|(other, _), _| *other != who);
    }

    /// A connection is gone, and what it watched with it.
    pub(super) fn hang_up(&mut self, connection: (u8, u8)) {
        self.watches.remove(&connection);
    }

    pub(super) fn at_lock(&self, now: Tick) -> AtLock {
        let entry = self.lock.filter(|entry| entry.until.is_none_or(|until| now < until));
        AtLock {
            value: entry.map_or(Value::Nil, |entry| entry.data),
            version: entry.map(|entry| entry.version),
            endless: entry.is_some_and(|entry| entry.until.is_none()),
        }
    }

    /// Whether the lock is taken, by anybody. A timestamp that has passed is nobody's.
    pub(super) fn is_taken(&self, now: Tick) -> bool {
        let at = self.at_lock(now);
        at.version.is_some() && !at.value.is_past(now)
    }

    /// Whether the lock is taken for this owner.
    pub(super) fn is_taken_by(&self, owner: Value, now: Tick) -> bool {
        let at = self.at_lock(now);
        at.version.is_some() && (at.value == owner || self.stamped_for() == Some(owner))
    }

    /// Whose the lock is by what stands beside it.
    pub(super) fn stamped_for(&self) -> Option<Value> {
        match self.beside?.data {
            Note::Owner(value, owner) if value == self.value() => Some(owner),
            _ => None,
        }
    }

    fn value(&self) -> Value {
        self.lock.map_or(Value::Nil, |entry| entry.data)
    }

    /// Executes a command of connection `from`.
    pub(super) fn run(&mut self, rules: Rules, from: (u8, u8), command: Command, now: Tick) -> Value {
        self.lock.take_if(|entry| entry.until.is_some_and(|until| now >= until));
        self.beside.take_if(|entry| entry.until.is_some_and(|until| now >= until));
        match command {
            Command::Get => self.value(),
            Command::Ttl => Value::Int(self.lock.map_or(-2, |entry| entry.until.map_or(-1, |until| until - now))),
            Command::Watch => {
                self.watches.insert(from, self.lock.map(|entry| entry.version));
                OK
            }
            Command::SetNx(_) if self.lock.is_some() => ZERO,
            Command::SetNx(value) => {
                self.set(value, None);
                ONE
            }
            Command::GetSet(value) => {
                let before = self.value();
                self.set(value, None);
                before
            }
            Command::ExecDel | Command::ExecSetPx(_) if !self.unwatched(from) => Value::Nil,
            Command::SetPx(value) | Command::ExecSetPx(value) => self.set(value, Some(now + TTL)),
            Command::Del | Command::ExecDel => Value::Int(Tick::from(self.lock.take().is_some())),
            Command::Expire => self.expire(now + TTL),
            Command::Script(task, owner, clock) => self.script(rules, task, owner, clock, now),
        }
    }

    /// Whether the lock is as the connection saw it last, which is asked once.
    fn unwatched(&mut self, from: (u8, u8)) -> bool {
        let version = self.lock.map(|entry| entry.version);
        self.watches.remove(&from).is_none_or(|seen| seen == version)
    }

    fn entry<T>(&mut self, data: T, until: Option<Tick>) -> Entry<T> {
        self.writes = self.writes.wrapping_add(1);
        Entry { data, until, version: self.writes }
    }

    fn set(&mut self, value: Value, until: Option<Tick>) -> Value {
        self.lock = Some(self.entry(value, until));
        OK
    }

    fn expire(&mut self, until: Tick) -> Value {
        if let Some(entry) = &mut self.lock {
            entry.until = Some(until);
        }
        Value::Int(Tick::from(self.lock.is_some()))
    }

    fn script(&mut self, rules: Rules, task: Task, owner: Value, clock: Tick, now: Tick) -> Value {
        let found = self.found(rules, now);
        let mine = found.as_ref().is_some_and(|found| found.who == Some(owner));
        match (task, found) {
            (Task::Take | Task::Renew, Some(found)) if mine => self.prolong(rules, owner, &found, now),
            (Task::Release, _) if mine => {
                self.beside = None;
                Value::Int(Tick::from(self.lock.take().is_some()))
            }
            (Task::Take, found) if self.is_nobodys(rules, found.as_ref(), now) => {
                if rules.clocks_agree && rules.by_value && (clock - now).abs() > TTL / 3 {
                    return Value::Word("the clocks are apart");
                }
                self.give(rules, owner, found.map(|found| found.value), now)
            }
            (Task::Put, found) => self.give(rules, owner, found.map(|found| found.value), now),
            _ => ZERO,
        }
    }

    fn found(&self, rules: Rules, now: Tick) -> Option<Found> {
        let entry = self.lock?;
        let value = entry.data;
        let noted = match self.beside.map(|entry| entry.data) {
            Some(Note::Owner(_, owner)) if !rules.changed_is_lost => Some(owner),
            _ if rules.owner_beside => self.stamped_for(),
            _ => None,
        };
        let who = noted.unwrap_or(value);
        Some(match value {
            Value::At(end) if rules.by_value => Found { who: (end > now).then_some(who), value, left: Some(end - now) },
            _ => Found { who: Some(who), value, left: entry.until.map(|until| until - now) },
        })
    }

    fn is_nobodys(&mut self, rules: Rules, found: Option<&Found>, now: Tick) -> bool {
        match found {
            None | Some(Found { who: None, .. }) => true,
            Some(Found { who: Some(who), value: Value::At(end), left: None }) if *who == Value::At(*end) => {
                self.is_unended(rules, *end, now)
            }
            Some(_) => false,
        }
    }

    /// Whether a key without ttl is to be taken over; if not yet, it is noted since when it was
    /// seen.
    fn is_unended(&mut self, rules: Rules, end: Tick, now: Tick) -> bool {
        let since = match self.beside.map(|entry| entry.data) {
            Some(Note::Seen(value, since)) if value == Value::At(end) => since,
            _ => now,
        };
        let passed = if rules.value_passed { end } else { now };
        let due = if rules.seen_long { passed.max(since + UNENDED) } else { passed };
        if due > now {
            self.beside = Some(self.entry(Note::Seen(Value::At(end), since), Some(due + NOTED)));
        }
        due <= now
    }

    /// Makes the lock `owner`'s, with another value than the last.
    fn give(&mut self, rules: Rules, owner: Value, last: Option<Value>, now: Tick) -> Value {
        let end = if last == Some(Value::At(now + TTL)) { now + TTL + 1 } else { now + TTL };
        let until = if rules.by_value { end } else { now + TTL };
        let value = Value::At(end);
        self.set(value, (!rules.by_value).then_some(until));
        self.beside = Some(self.entry(Note::Owner(value, owner), Some(until + SLACK)));
        // Where nothing stands beside, its writer has to know the value.
        if rules.owner_beside { ONE } else { value }
    }

    fn prolong(&mut self, rules: Rules, owner: Value, found: &Found, now: Tick) -> Value {
        if found.left.is_some_and(|left| left >= TTL) {
            return ONE;
        }
        if rules.by_value {
            return self.give(rules, owner, Some(found.value), now);
        }
        if let Some(entry) = &mut self.beside {
            entry.until = Some(now + TTL + SLACK);
        }
        self.expire(now + TTL)
    }
}
