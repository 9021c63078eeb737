//! Share of a name: the permits that a holder has, out of all permits.

mod permits;

use std::fmt;

use serde::{Deserialize, Serialize};

/// Permits of a name: a weight out of a capacity. This makes the kind of a lock plain data.
///
/// - A mutex has one permit, and its holder takes it.
/// - A holder of a semaphore takes k of N.
/// - A read/write lock has very many: a reader takes one, and a writer takes all.
///
/// A mutex is the writer of a read/write lock of the same name. Each keeps the other out, and they
/// wait in one queue. The store refuses any other two kinds on one name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Share {
    weight: u32,
    capacity: u32,
}

impl Share {
    /// The one permit of a mutex.
    pub const MUTEX: Self = Self { weight: 1, capacity: 1 };
    /// A reader: one of very many permits.
    pub const READ: Self = Self { weight: 1, capacity: u32::MAX };
    /// A writer: all permits that readers could have.
    pub const WRITE: Self = Self { weight: u32::MAX, capacity: u32::MAX };
    /// Largest number of permits of a semaphore. More would be a read/write lock.
    pub const MAX_PERMITS: u32 = u32::MAX - 1;

    /// Makes a share from the numbers that a store kept; `None` if they are none.
    pub const fn from_parts(weight: u32, capacity: u32) -> Option<Self> {
        if weight == 0 || weight > capacity { None } else { Some(Self { weight, capacity }) }
    }

    /// Number of permits that are taken.
    pub const fn weight(self) -> u32 {
        self.weight
    }

    /// Number of all permits.
    pub const fn capacity(self) -> u32 {
        self.capacity
    }

    /// Kind of lock that this is a share of. Of different kinds, only a mutex and a read/write lock
    /// can meet on one name.
    pub const fn kind(self) -> Kind {
        match self.capacity {
            1 => Kind::Mutex,
            u32::MAX => Kind::ReadWrite,
            permits => Kind::Semaphore(permits),
        }
    }

    /// Returns the share as its name counts it: a mutex as the writer of a read/write lock.
    ///
    /// Two shares can meet on one name if their counted capacities are equal.
    #[must_use]
    pub const fn counted(self) -> Self {
        if self.capacity == 1 { Self::WRITE } else { self }
    }

    /// Whether a holder of this share may ask for `other` with the same owner token.
    pub(crate) const fn covers(self, other: Self) -> bool {
        self.capacity == other.capacity && self.weight >= other.weight
    }

    /// Whether a holder of this share is alone. The guarded resource may remember the fence of such
    /// a holder only.
    pub const fn is_exclusive(self) -> bool {
        self.weight == self.capacity
    }
}

/// Kind of a lock, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// One holder.
    Mutex,
    /// Many readers or one writer.
    ReadWrite,
    /// This many permits.
    Semaphore(u32),
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mutex => f.write_str("a mutex"),
            Self::ReadWrite => f.write_str("a read/write lock"),
            Self::Semaphore(permits) => write!(f, "a semaphore of {permits} permits"),
        }
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.weight, self.capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_told_by_the_capacity() {
        assert_eq!(Share::MUTEX.kind(), Kind::Mutex);
        assert_eq!((Share::READ.kind(), Share::WRITE.kind()), (Kind::ReadWrite, Kind::ReadWrite));
        assert_eq!(Share::permits(2, 5).unwrap().kind().to_string(), "a semaphore of 5 permits");
        assert_eq!(Share::permits(1, 1).unwrap(), Share::MUTEX);
        assert!(Share::WRITE.is_exclusive() && !Share::READ.is_exclusive());
        assert!(Share::permits(5, 5).unwrap().is_exclusive());
    }

    #[test]
    fn impossible_shares_are_refused() {
        for (weight, capacity) in [(0, 1), (2, 1), (0, 0), (1, u32::MAX), (u32::MAX, u32::MAX)] {
            assert!(Share::permits(weight, capacity).is_err(), "{weight}/{capacity}");
        }
        assert!(Share::permits(1, Share::MAX_PERMITS).is_ok());
    }
}
