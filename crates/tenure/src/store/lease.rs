//! Values that a store keeps of a name: leases, holders and waiters.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::setters::setters;
use crate::{Fence, Holder, Name, Owner, Share};

/// A lease as plain data, which can be logged, renewed in batches and handed to another process.
///
/// It says who may renew or release. Only the store knows whether the lease still stands; a
/// [`Guard`](crate::Guard) knows until when it is valid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Lease {
    /// Name of the lock.
    pub name: Name,
    /// Owner token.
    pub owner: Owner,
    /// Share of the name.
    pub share: Share,
    /// Time to live, counted from each renewal.
    #[serde(rename = "ttl_ms", with = "millis")]
    pub ttl: Duration,
    /// Fencing token, if the store counts grants.
    pub fence: Option<Fence>,
}

impl Lease {
    /// Makes a lease without a fence.
    pub const fn new(name: Name, owner: Owner, share: Share, ttl: Duration) -> Self {
        Self { name, owner, share, ttl, fence: None }
    }
}

setters! { Lease:
    with_name(name: Name),
    with_owner(owner: Owner),
    with_share(share: Share),
    with_ttl(ttl: Duration),
    with_fence(fence: impl Into<Option<Fence>>),
}

mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(ttl: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

/// Answer of [`Store::inspect`](super::Store::inspect) for one name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// Name of the lock.
    pub name: Name,
    /// Its holders.
    pub holders: Vec<Holder>,
    /// Its waiters at the store, in order.
    pub waiters: Vec<Queued>,
}

impl Entry {
    /// Makes the entry of a name.
    pub const fn new(name: Name, holders: Vec<Holder>, waiters: Vec<Queued>) -> Self {
        Self { name, holders, waiters }
    }

    /// Whether somebody holds or waits.
    pub const fn is_in_use(&self) -> bool {
        !self.holders.is_empty() || !self.waiters.is_empty()
    }
}

/// A waiter in the queue of a name. One entry stands for all waiters of a process that want the
/// same.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Queued {
    /// Owner token that it will hold with.
    pub owner: Owner,
    /// Share that it waits for.
    pub share: Share,
}

impl Queued {
    /// Makes a waiter.
    pub const fn new(owner: Owner, share: Share) -> Self {
        Self { owner, share }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_survives_as_json() {
        let (name, owner) = (Name::new("door").unwrap(), Owner::generate("web-1").unwrap());
        let ttl = Duration::from_millis(2_500);
        let lease = Lease::new(name, owner, Share::MUTEX, ttl).with_fence(Fence::from_counter(7));
        let json = serde_json::to_string(&lease).unwrap();
        assert!(json.contains("\"ttl_ms\":2500"), "{json}");
        assert_eq!(serde_json::from_str::<Lease>(&json).unwrap(), lease);
    }
}
