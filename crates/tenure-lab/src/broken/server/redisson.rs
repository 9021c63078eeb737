//! Locks and semaphores of Redisson, as its scripts take, renew and give them up.

use std::collections::BTreeMap;

use super::{Data, Server};
use crate::broken::command::{FENCE, LOCK, ONE, Value, ZERO};
use crate::broken::program::Tick;
use crate::broken::redisson::{Redisson, Task};

/// The hash of an `RReadWriteLock`, and the keys of its readers' holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ReadWrite {
    writer: Option<Value>,
    /// When the hold of each reader ends. Nobody reads twice here.
    readers: BTreeMap<Value, Tick>,
}

impl Server {
    pub(super) fn redisson(&mut self, Redisson { task, owner, ttl }: Redisson, now: Tick) -> Value {
        let (until, before) = (now + ttl, self.keys.get(LOCK).and_then(|entry| entry.until));
        let mut lock = self.read_write();
        let (done, until) = match task {
            Task::Fenced => {
                return match self.count(LOCK, owner, 1, until) {
                    Value::Int(_) => self.add(FENCE, 1),
                    _ => ZERO,
                };
            }
            Task::Renew => return if self.is_taken_by(owner, now) { self.expire(LOCK, until) } else { ZERO },
            Task::RenewWrite => return if lock.writer == Some(owner) { self.expire(LOCK, until) } else { ZERO },
            Task::Permit => {
                let free = matches!(self.text(LOCK), Value::Int(free) if free > 0);
                return if free { (self.add(LOCK, -1), ONE).1 } else { ZERO };
            }
            Task::Write => (before.is_none() && lock.writer.replace(owner).is_none(), Some(until)),
            Task::Read => {
                let joins = lock.writer.is_none_or(|writer| writer == owner);
                if joins {
                    lock.readers.insert(owner, until);
                }
                (joins, before.max(Some(until)))
            }
            Task::ReadUnlock => {
                let read = lock.readers.remove(&owner).is_some();
                let longest = lock.readers.values().copied().max().filter(|until| *until > now);
                if longest.is_none() && lock.writer.is_none() {
                    lock.readers.clear();
                }
                (read, longest.or(before))
            }
            Task::WriteUnlock => (lock.writer.take_if(|writer| *writer == owner).is_some(), before),
        };
        if !done {
            return ZERO;
        }
        if lock == ReadWrite::default() {
            self.delete(LOCK);
        } else {
            self.put(LOCK, Data::ReadWrite(lock), until);
        }
        ONE
    }

    fn read_write(&self) -> ReadWrite {
        match self.keys.get(LOCK).map(|entry| &entry.data) {
            Some(Data::ReadWrite(lock)) => lock.clone(),
            _ => ReadWrite::default(),
        }
    }
}
