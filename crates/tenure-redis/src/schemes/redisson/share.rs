//! The share of a lock that a holder has, as Redisson writes it.

use tenure::{Error, ErrorKind, Holder, Kind, Share};

use super::owner::ours;
use crate::native::reply::holder;

/// Redisson keeps an entry for each permit. More at once would block the server.
const MOST_PERMITS: u32 = 1_000;

pub(super) fn check_weight(share: Share) -> Result<(), Error> {
    let weight = share.weight();
    if matches!(share.kind(), Kind::Semaphore(_)) && weight > MOST_PERMITS {
        let what = format!("Redisson keeps an entry for each permit, and {weight} at once are more than {MOST_PERMITS}");
        return Err(Error::new(ErrorKind::Unsupported, what).with_hint("ask for fewer permits at once"));
    }
    Ok(())
}

/// The share that one has of so many permits. Of an `RSemaphore` only a part of them may be known.
pub(super) fn permits_of(weight: u32, permits: i64) -> Option<Share> {
    Share::from_parts(weight, u32::try_from(permits.max(0)).ok()?.max(weight).max(2))
}

/// The share of one who holds in this mode of a hash.
pub(super) fn share_of(mode: &[u8]) -> Option<Share> {
    match mode {
        b"" | b"lock" => Some(Share::MUTEX),
        b"read" => Some(Share::READ),
        b"write" => Some(Share::WRITE),
        _ => None,
    }
}

/// The holder whose owner is this field.
pub(super) fn held_by(field: &[u8], ttl: i64, share: Share) -> Holder {
    let field = if share == Share::WRITE { field.strip_suffix(b":write").unwrap_or(field) } else { field };
    holder(ours(field).as_bytes(), ttl, share)
}
