//! memcached in the model.

use super::{LOCK, ONE, Server, Tick, Value};
use crate::broken::memcached::{DELETED, EXISTS, Memcached, NOT_FOUND, NOT_STORED, STORED};

impl Server {
    pub(super) fn memcached(&mut self, from: (u8, u8), call: Memcached, now: Tick) -> Value {
        match call {
            Memcached::Add(value, ttl) => match self.set_new(LOCK, value, ttl.map(|ttl| now + ttl)) {
                ONE => STORED,
                _ => NOT_STORED,
            },
            Memcached::Get => self.text(LOCK),
            Memcached::Gets => {
                self.look(from, LOCK);
                self.text(LOCK)
            }
            Memcached::Cas(_) if !self.keys.contains_key(LOCK) => NOT_FOUND,
            Memcached::Cas(_) if !self.is_as_seen(from) => EXISTS,
            Memcached::Cas(value) => {
                self.set(LOCK, value, None);
                STORED
            }
            Memcached::Delete => match self.delete(LOCK) {
                ONE => DELETED,
                _ => NOT_FOUND,
            },
        }
    }

    /// Whether the lock is as the connection saw it last.
    fn is_as_seen(&self, from: (u8, u8)) -> bool {
        self.watches.get(&from).is_some_and(|(key, version)| self.keys.get(key).map(|entry| entry.version) == *version)
    }

    /// The lock is evicted, and the rest stays.
    pub(crate) fn evict(&mut self) {
        self.keys.remove(LOCK);
    }
}
