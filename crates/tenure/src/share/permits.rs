//! The share of one who asks for permits.

use super::Share;
use crate::Error;

impl Share {
    /// Makes `weight` of the `capacity` permits of a semaphore. With one permit it is a
    /// [mutex](Share::MUTEX).
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for no permits, more than there are, or more than
    /// [`Share::MAX_PERMITS`].
    pub fn permits(weight: u32, capacity: u32) -> Result<Self, Error> {
        Self::from_parts(weight, capacity).filter(|_| capacity <= Self::MAX_PERMITS).ok_or_else(|| {
            let what = format!("{weight} of {capacity} permits is not a share of a semaphore");
            Error::invalid(what).with_hint(format!("ask for 1 to N of N permits, N at most {}", Self::MAX_PERMITS))
        })
    }
}
