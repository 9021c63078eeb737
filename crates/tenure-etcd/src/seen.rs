//! A key of a lease, as this process has last seen it.

use tenure::{Name, Owner};

use crate::queue::Slot;

/// A lease at this store.
pub(crate) type Id = (Name, Owner);

/// A key as it was last seen.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) key: Vec<u8>,
    pub(crate) lease: i64,
    /// Granted ttl of the lease, in seconds.
    pub(crate) ttl: i64,
    pub(crate) modified: i64,
    /// The term of a lease that this process was granted, and with which it has written the key.
    pub(crate) own_term: Option<u64>,
}

impl From<&Slot> for Seen {
    fn from(slot: &Slot) -> Self {
        Self { key: slot.key.clone(), lease: slot.own_lease(), ttl: slot.value.ttl, modified: slot.modified, own_term: None }
    }
}
