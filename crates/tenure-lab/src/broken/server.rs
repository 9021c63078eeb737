//! A model of one server, as far as the schemes use it: of Redis, and of the other engines.

mod memcached;
mod redisson;
mod timestamp;
mod zookeeper;

use std::collections::{BTreeMap, BTreeSet};

use super::command::{Command, FENCE, LOCK, OK, ONE, Value, ZERO};
use super::program::Tick;
pub(crate) use timestamp::UNENDED;

/// A server with its data. Its clock is the world's plus what it was set forward or back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    keys: BTreeMap<&'static str, Entry>,
    /// Who watches which key, and what it was then.
    watches: BTreeMap<(u8, u8), (&'static str, Option<u8>)>,
    writes: u8,
    /// Who hears what is published.
    listeners: BTreeSet<(u8, &'static str)>,
    /// Who has a message that it has not read.
    pub(crate) mail: BTreeSet<u8>,
    /// Who waits at the lock, and until when.
    line: Vec<(Value, Tick)>,
    /// Connections that have written what no replica has.
    unreplicated: BTreeSet<(u8, u8)>,
    /// Clients of which nothing is heard, and since when.
    silent: BTreeMap<u8, Tick>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    data: Data,
    until: Option<Tick>,
    version: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Data {
    Text(Value),
    /// A hash of counts, or a sorted set by score.
    Members(BTreeMap<Value, Tick>),
    ReadWrite(redisson::ReadWrite),
    /// Whose the lock is, for as long as it has this value.
    Owner(Value, Value),
    /// Since when the lock was seen with this value and without an end.
    Seen(Value, Tick),
}

/// The state of the lock, for an observer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AtLock {
    /// The value; nothing where there is no key.
    pub(crate) value: Value,
    /// Which write that was.
    pub(crate) version: Option<u8>,
    /// The key has no ttl.
    pub(crate) endless: bool,
}

impl Server {
    /// Everything is gone: a flush, a restart without persistence, a replica that had nothing.
    pub(crate) fn forget(&mut self) {
        *self = Self { listeners: std::mem::take(&mut self.listeners), ..Self::default() };
    }

    pub(crate) fn disconnect(&mut self, who: u8) {
        self.watches.retain(|(other, _), _| *other != who);
        self.deafen(who);
        self.mail.remove(&who);
    }

    /// A connection is gone, and what it watched with it.
    pub(crate) fn hang_up(&mut self, connection: (u8, u8)) {
        self.watches.remove(&connection);
    }

    pub(crate) fn at_lock(&self, now: Tick) -> AtLock {
        let entry = self.get(LOCK, now);
        let value = entry.map_or(Value::Nil, |_| self.text(LOCK));
        AtLock { value, version: entry.map(|entry| entry.version), endless: entry.is_some_and(|entry| entry.until.is_none()) }
    }

    /// Whether the lock is taken, by anybody. A timestamp that has passed is nobody's.
    pub(crate) fn is_taken(&self, now: Tick) -> bool {
        let is_nobodys = |entry: &Entry| matches!(entry.data, Data::Text(value) if value.is_past(now));
        self.get(LOCK, now).is_some_and(|entry| !is_nobodys(entry))
    }

    /// Whether the lock is taken and nothing will ever end that.
    pub(crate) fn is_taken_forever(&self) -> bool {
        let ends = |entry: &Entry| {
            entry.until.is_some() || matches!(entry.data, Data::Text(Value::At(_) | Value::Row { .. } | Value::Record { .. }))
        };
        self.keys.get(LOCK).is_some_and(|entry| !ends(entry))
    }

    /// Whether a client hears what is published, and has nothing unread.
    pub(crate) fn listens(&self, who: u8) -> bool {
        self.listeners.iter().any(|(other, _)| *other == who) && !self.mail.contains(&who)
    }

    /// A client hears no more, and does not know.
    pub(crate) fn deafen(&mut self, who: u8) {
        self.listeners.retain(|(other, _)| *other != who);
    }

    /// Whether the lock is taken for this take.
    pub(crate) fn is_taken_by(&self, owner: Value, now: Tick) -> bool {
        self.get(LOCK, now).is_some_and(|entry| match &entry.data {
            Data::Text(value) => *value == owner,
            Data::Members(members) => members.contains_key(&owner),
            Data::ReadWrite(_) | Data::Owner(..) | Data::Seen(..) => false,
        }) || (self.get(LOCK, now).is_some() && self.stamped_for() == Some(owner))
    }

    /// Executes a command of connection `from`.
    pub(crate) fn run(&mut self, from: (u8, u8), command: Command, now: Tick) -> Value {
        self.keys.retain(|_, entry| entry.until.is_none_or(|until| now < until));
        match command {
            Command::Get(key) => self.text(key),
            Command::Ttl(key) => self.ttl(key, now),
            Command::Select(key) => {
                let (version, ends) = self.row(key);
                Value::Row { version, ends }
            }
            Command::Watch(key) => {
                self.look(from, key);
                OK
            }
            Command::Subscribe(key) => {
                self.listeners.insert((from.0, key));
                OK
            }
            Command::Wait => Value::Int(i16::from(!self.unreplicated.contains(&from))),
            Command::Memcached(call) => self.memcached(from, call, now),
            Command::ZooKeeper(call) => self.zookeeper(from.0, call),
            write => {
                self.unreplicated.insert(from);
                self.write(from, write, now)
            }
        }
    }

    fn write(&mut self, from: (u8, u8), command: Command, now: Tick) -> Value {
        match command {
            Command::SetNx(key, value) => self.set_new(key, value, None),
            Command::SetNxPx(key, value, ttl) => match self.set_new(key, value, Some(now + ttl)) {
                ONE => OK,
                _ => Value::Nil,
            },
            Command::SetNxExpire(key, value, ttl) | Command::WriteLock(key, value, ttl) => {
                self.set_new(key, value, Some(now + ttl))
            }
            Command::SetNxPxIncr(key, value, ttl) => match self.set_new(key, value, Some(now + ttl)) {
                ONE => self.add(FENCE, 1),
                none => none,
            },
            Command::SetXxPx(key, ..) if !self.keys.contains_key(key) => Value::Nil,
            Command::GetSet(key, value) => {
                let before = self.text(key);
                self.set(key, value, None);
                before
            }
            Command::DelIf(key, value) | Command::DelIfPublish(key, value) | Command::ExpireIf(key, value, _)
                if self.text(key) != value =>
            {
                ZERO
            }
            Command::ExecDel(_) | Command::ExecSetPx(..) if !self.unwatched(from) => Value::Nil,
            Command::SetPx(key, value, ttl) | Command::SetXxPx(key, value, ttl) | Command::ExecSetPx(key, value, ttl) => {
                self.set(key, value, Some(now + ttl))
            }
            Command::Del(key) | Command::ExpireNow(key) | Command::DelIf(key, _) | Command::ExecDel(key) => self.delete(key),
            Command::DelIfPublish(key, _) => self.delete_and_tell(key),
            Command::Expire(key, ttl) | Command::ExpireIf(key, _, ttl) => self.expire(key, now + ttl),
            Command::Count(key, field, n, ttl) => self.count(key, field, Tick::from(n), now + ttl),
            Command::Enter { key, member, at, ttl, limit } => self.enter(key, member, at, ttl, limit),
            Command::Incr(key) => self.add(key, 1),
            Command::Decr(key) => self.add(key, -1),
            Command::TakeInTurn { key, member, at, ttl, patience } => self.take_in_turn(key, member, at, (ttl, patience), now),
            Command::Leave(key, member) | Command::ReadUnlock(key, member) => self.leave(key, member),
            Command::Timestamp(call) => self.call(call, now),
            Command::Redisson(call) => self.redisson(call, now),
            Command::Update { key, version, ends } => self.update(key, version, ends),
            Command::ReadLock(key, member, ttl) => self.read_lock(key, member, now + ttl),
            _ => ZERO,
        }
    }

    fn get(&self, key: &str, now: Tick) -> Option<&Entry> {
        self.keys.get(key).filter(|entry| entry.until.is_none_or(|until| now < until))
    }

    fn text(&self, key: &str) -> Value {
        match self.keys.get(key).map(|entry| &entry.data) {
            Some(Data::Text(value)) => *value,
            _ => Value::Nil,
        }
    }

    fn ttl(&self, key: &str, now: Tick) -> Value {
        Value::Int(match self.keys.get(key) {
            None => -2,
            Some(Entry { until: None, .. }) => -1,
            Some(Entry { until: Some(until), .. }) => until - now,
        })
    }

    fn put(&mut self, key: &'static str, data: Data, until: Option<Tick>) {
        self.writes = self.writes.wrapping_add(1);
        self.keys.insert(key, Entry { data, until, version: self.writes });
    }

    fn set(&mut self, key: &'static str, value: Value, until: Option<Tick>) -> Value {
        self.put(key, Data::Text(value), until);
        OK
    }

    fn set_new(&mut self, key: &'static str, value: Value, until: Option<Tick>) -> Value {
        if self.keys.contains_key(key) {
            return ZERO;
        }
        self.set(key, value, until);
        ONE
    }

    fn delete(&mut self, key: &str) -> Value {
        Value::Int(i16::from(self.keys.remove(key).is_some()))
    }

    fn delete_and_tell(&mut self, key: &'static str) -> Value {
        let told = self.listeners.iter().filter(|(_, heard)| *heard == key).map(|(who, _)| *who);
        self.mail.extend(told);
        self.delete(key)
    }

    fn expire(&mut self, key: &str, until: Tick) -> Value {
        match self.keys.get_mut(key) {
            Some(entry) => {
                entry.until = Some(until);
                ONE
            }
            None => ZERO,
        }
    }

    fn add(&mut self, key: &'static str, n: i16) -> Value {
        let number = match self.text(key) {
            Value::Int(number) => number + n,
            _ => n,
        };
        self.set(key, Value::Int(number), None);
        Value::Int(number)
    }

    /// Remembers what a connection sees at a key.
    fn look(&mut self, from: (u8, u8), key: &'static str) {
        self.watches.insert(from, (key, self.keys.get(key).map(|entry| entry.version)));
    }

    /// Whether what the connection watches is as it was; it watches nothing afterwards.
    fn unwatched(&mut self, from: (u8, u8)) -> bool {
        self.watches.remove(&from).is_none_or(|(key, version)| self.keys.get(key).map(|entry| entry.version) == version)
    }

    fn members(&mut self, key: &'static str) -> BTreeMap<Value, Tick> {
        match self.keys.get(key).map(|entry| &entry.data) {
            Some(Data::Members(members)) => members.clone(),
            _ => BTreeMap::new(),
        }
    }

    fn keep(&mut self, key: &'static str, members: BTreeMap<Value, Tick>, until: Option<Tick>) {
        if members.is_empty() {
            self.keys.remove(key);
        } else {
            self.put(key, Data::Members(members), until);
        }
    }

    /// Counts a field up or down; nothing where another field is counted. The count.
    fn count(&mut self, key: &'static str, field: Value, n: Tick, until: Tick) -> Value {
        let mut members = self.members(key);
        if (n > 0 && members.keys().any(|other| *other != field)) || (n < 0 && !members.contains_key(&field)) {
            return Value::Nil;
        }
        let count = members.get(&field).copied().unwrap_or(0) + n;
        if count > 0 {
            members.insert(field, count)
        } else {
            members.remove(&field)
        };
        self.keep(key, members, Some(until));
        Value::Int(count)
    }

    fn enter(&mut self, key: &'static str, member: Value, at: Tick, ttl: Tick, limit: u8) -> Value {
        let mut members = self.members(key);
        members.retain(|_, score| *score > at - ttl);
        let room = members.len() < usize::from(limit);
        if room {
            members.insert(member, at);
        }
        self.keep(key, members, None);
        Value::Int(i16::from(room))
    }

    fn take_in_turn(&mut self, key: &'static str, member: Value, at: Tick, spans: (Tick, Tick), now: Tick) -> Value {
        let (ttl, patience) = spans;
        while self.line.first().is_some_and(|(_, until)| *until <= at) {
            self.line.remove(0);
        }
        if !self.keys.contains_key(key) && self.line.first().is_none_or(|(head, _)| *head == member) {
            self.line.retain(|(other, _)| *other != member);
            self.line.iter_mut().for_each(|(_, until)| *until -= patience);
            self.set(key, member, Some(now + ttl));
            return ONE;
        }
        if self.line.iter().all(|(other, _)| *other != member) {
            let left = match (self.line.last(), self.ttl(key, now)) {
                (Some((_, until)), _) => until - at,
                (None, Value::Int(left)) => left.max(0),
                _ => 0,
            };
            self.line.push((member, at + left + patience));
        }
        ZERO
    }

    fn leave(&mut self, key: &'static str, member: Value) -> Value {
        let mut members = self.members(key);
        let was = members.remove(&member).is_some();
        let until = self.keys.get(key).and_then(|entry| entry.until);
        self.keep(key, members, until);
        Value::Int(i16::from(was))
    }

    /// A row that nobody has touched yet has ended long ago.
    fn row(&self, key: &str) -> (i16, Tick) {
        match self.text(key) {
            Value::Row { version, ends } => (version, ends),
            _ => (0, -1),
        }
    }

    fn update(&mut self, key: &'static str, expected: i16, ends: Tick) -> Value {
        let version = self.row(key).0;
        if version != expected {
            return ZERO;
        }
        self.set(key, Value::Row { version: version + 1, ends }, None);
        ONE
    }

    fn read_lock(&mut self, key: &'static str, member: Value, until: Tick) -> Value {
        if self.text(key) != Value::Nil {
            return ZERO;
        }
        let mut members = self.members(key);
        members.insert(member, 0);
        self.keep(key, members, Some(until));
        ONE
    }
}
