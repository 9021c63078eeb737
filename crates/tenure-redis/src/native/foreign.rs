//! Names of what stands at a key and is no lock of ours, so that people need not guess.

use redis::{Value, cmd, pipe};
use tenure::{Error, ErrorKind, Name};

use crate::native::store::RedisStore;
use crate::transport::connection::Repeat;
use crate::transport::reply::{only, read};

/// Length of a UUID with its dashes, and where they are.
pub(crate) const UUID: usize = 36;
pub(crate) const DASHES: [usize; 4] = [8, 13, 18, 23];

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
        let mut ask = pipe();
        // Of a large hash a few fields are enough.
        ask.add_command(cmd("HSCAN").arg(self.layout.of(name).name().concat()).arg(0).arg("COUNT").arg(4).to_owned());
        let Ok(found) = self.connection.exchange(self.end(std::time::Duration::MAX), Repeat::Freely, |_| ask.clone()).await
        else {
            return error;
        };
        let scanned: Result<(Value, Vec<Vec<u8>>), Error> = only(found.answers).and_then(read);
        let fields: Vec<Vec<u8>> = scanned.map_or_else(|_| Vec::new(), |(_, fields)| fields.into_iter().step_by(2).collect());
        let has_mode = fields.iter().any(|field| field == b"mode");
        let what = match fields.iter().any(|field| is_owner_of_redisson(field)) {
            false => return error,
            true if has_mode => "an RReadWriteLock",
            true => "an RLock",
        };
        let fix = if has_mode {
            "use another name: tenure shares no read/write locks of Redisson"
        } else {
            "add scheme=redisson to the store URL to share it, or use another name"
        };
        Error::new(ErrorKind::Mismatch, format!("{name:?} is {what} of Redisson")).with_hint(fix).with_source(error)
    }
}
