//! Keys and fields of Redisson, and the name of a lock of it where ours is asked for, so that people
//! need not guess.

use std::borrow::Cow;
use std::time::Duration;

use redis::Value;
use tenure::{Error, ErrorKind, Kind, Name, Share};

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

/// A key of Redisson beside another. Braces are put around that unless it has some.
pub(crate) fn before_of_redisson(what: &str, key: &str) -> String {
    if key.contains('{') { format!("{what}:{key}") } else { format!("{what}:{{{key}}}") }
}

/// The same with the other key in front.
pub(crate) fn behind_of_redisson(key: &str, what: &str) -> String {
    if key.contains('{') { format!("{key}:{what}") } else { format!("{{{key}}}:{what}") }
}

/// The key that a share has beside `key`: of the one hold of a reader, or of the ends of permits. Empty
/// for a mutex, which has none.
pub(crate) fn beside_share(key: &str, owner: &[u8], share: Share) -> Vec<u8> {
    match share.kind() {
        Kind::Mutex => Vec::new(),
        Kind::ReadWrite => [behind_of_redisson(key, "").as_bytes(), owner, b":rwlock_timeout:1"].concat(),
        Kind::Semaphore(_) => behind_of_redisson(key, "timeout").into_bytes(),
    }
}

/// Word for a share in the scripts about Redisson's: the number of its permits, if it has any.
pub(crate) fn what_of(share: Share) -> Cow<'static, str> {
    match share {
        Share::READ => "read".into(),
        Share::WRITE => "write".into(),
        permits => permits.weight().to_string().into(),
    }
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
        let what = if has(|field| field == MODE) { "an RReadWriteLock" } else { "an RLock" };
        let fix = "add scheme=redisson to the store URL to share it, or use another name";
        error.context(format_args!("{name:?} is {what} of Redisson")).with_hint(fix)
    }
}
