//! How much of a name is asked for.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kind of a lock as data: a weight out of a capacity.
///
/// A mutex is all of one, a semaphore k of N, a reader one of very many and a writer all of those. Two kinds on one name are
/// refused by the store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Share {
    weight: u32,
    capacity: u32,
}

impl Share {
    /// The whole of a name that has one holder: a mutex.
    pub const MUTEX: Self = Self { weight: 1, capacity: 1 };

    /// What is asked for.
    pub const fn weight(self) -> u32 {
        self.weight
    }

    /// What there is.
    pub const fn capacity(self) -> u32 {
        self.capacity
    }

    /// Whether a holder of this share is alone. Only such a holder's fence may be remembered by the guarded resource.
    pub const fn is_exclusive(self) -> bool {
        self.weight == self.capacity
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.weight, self.capacity)
    }
}
