//! Names of what stands at a key and is no lock of ours, so that people need not guess.

use std::time::Duration;

use redis::Value;
use tenure::{Error, ErrorKind, Name};

use crate::native::store::RedisStore;
use crate::transport::commands::Commands;
use crate::transport::connection::Repeat;
use crate::transport::link::Link;
use crate::transport::reply::{only, read};

/// Length of a UUID with its dashes, and where they are.
pub(crate) const UUID: usize = 36;
pub(crate) const DASHES: [usize; 4] = [8, 13, 18, 23];

/// The field by which a read/write lock of Redisson is known.
pub(crate) const MODE: &[u8] = b"mode";

/// Whether a field of a hash is an owner of Redisson's clients: `<uuid>:<thread>`.
pub(crate) fn is_owner_of_redisson(field: &[u8]) -> bool {
    field.split_at_checked(UUID).is_some_and(|(uuid, thread)| {
        let is_uuid = |(at, byte): (usize, &u8)| if DASHES.contains(&at) { *byte == b'-' } else { byte.is_ascii_hexdigit() };
        uuid.iter().enumerate().all(is_uuid) && thread.len() > 1 && thread.starts_with(b":")
    })
}

impl RedisStore {
    /// The refusal of a name, which says more if the key is a lock of Redisson.
    ///
    /// # Round trips
    /// 1 if the name was refused for what stands there, else none.
    pub(crate) async fn named(&self, error: Error, name: &Name) -> Error {
        if error.kind() != ErrorKind::Mismatch {
            return error;
        }
        let keys = self.layout.of(name);
        // Of a large hash a few fields are enough.
        let scan = |_: &Link| Commands::of_key(&keys.name(), b"HSCAN", &[b"0", b"COUNT", b"4"]);
        let Ok(found) = self.connection.exchange(self.end(Duration::MAX), Repeat::Freely, scan).await else { return error };
        let Ok((_, fields)) = only(found.answers).and_then(read::<(Value, Vec<Vec<u8>>)>) else { return error };
        let has = |is: fn(&[u8]) -> bool| fields.iter().step_by(2).any(|field| is(field));
        if !has(is_owner_of_redisson) {
            return error;
        }
        let (what, fix) = if has(|field| field == MODE) {
            ("an RReadWriteLock", "use another name: tenure shares no read/write locks of Redisson")
        } else {
            ("an RLock", "add scheme=redisson to the store URL to share it, or use another name")
        };
        error.context(format_args!("{name:?} is {what} of Redisson")).with_hint(fix)
    }
}
