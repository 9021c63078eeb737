//! Fence, or fencing token: the number by which the guarded resource refuses a stale holder.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A *fencing token*: a number that is larger for every later exclusive holder of a name.
///
/// Send it to the guarded resource with each write. The resource remembers the largest that it has
/// seen, and refuses smaller ones.
///
/// It is a grant counter times 1024, plus the index of a handoff within a process. It is always
/// below 2^63, so that it fits a `BIGINT`. As JSON it is a string, because many JSON readers are
/// exact only up to 2^53.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fence(u64);

impl Fence {
    /// Largest counter: 2^53 - 1, so that servers which count in doubles count exactly.
    pub const MAX_COUNTER: u64 = (1 << 53) - 1;
    const HANDOVERS: u64 = 1024;

    /// Makes the fence of a grant, before any handoff. `None` for a counter of 0 or above
    /// [`Fence::MAX_COUNTER`].
    pub const fn from_counter(counter: u64) -> Option<Self> {
        if counter == 0 || counter > Self::MAX_COUNTER {
            return None;
        }
        Some(Self(counter * Self::HANDOVERS))
    }

    /// Makes a fence of a number that clients of other libraries count as well, as it is: so the
    /// resource can compare the numbers of all. It leaves no room for handoffs. `None` for 0 and above
    /// `i64::MAX`.
    pub const fn from_token(token: u64) -> Option<Self> {
        if token == 0 || token > i64::MAX as u64 { None } else { Some(Self(token)) }
    }

    /// Returns the fence after the next handoff within the process. `None` if this grant has no
    /// more: then the lease has to go through the store, which gives a new counter.
    pub const fn next(self) -> Option<Self> {
        if self.0 % Self::HANDOVERS == Self::HANDOVERS - 1 {
            return None;
        }
        Some(Self(self.0 + 1))
    }

    /// Last fence of the same grant. Only for a fence that has room for handoffs.
    pub(crate) const fn last_of_grant(self) -> Self {
        Self(self.0 | (Self::HANDOVERS - 1))
    }

    /// Grant counter of the fence.
    pub const fn counter(self) -> u64 {
        self.0 / Self::HANDOVERS
    }

    /// The number itself.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Fence {
    type Err = ParseIntError;

    fn from_str(digits: &str) -> Result<Self, ParseIntError> {
        digits.parse::<i64>().and_then(|_| digits.parse()).map(Self)
    }
}

impl TryFrom<String> for Fence {
    type Error = ParseIntError;

    fn try_from(digits: String) -> Result<Self, ParseIntError> {
        digits.parse()
    }
}

/// The number for a `BIGINT` column.
impl From<Fence> for i64 {
    fn from(fence: Fence) -> Self {
        fence.0.cast_signed()
    }
}

impl From<Fence> for String {
    fn from(fence: Fence) -> Self {
        fence.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_order_fences_and_fit_a_bigint() {
        let last = Fence::from_counter(Fence::MAX_COUNTER).unwrap();
        assert_eq!(i64::try_from(last.get()), Ok(i64::from(last)));
        assert!(Fence::from_counter(Fence::MAX_COUNTER - 1).unwrap() < last);
        assert_eq!(last.counter(), Fence::MAX_COUNTER);
        assert_eq!(Fence::MAX_COUNTER, 9_007_199_254_740_991, "what a double counts to");
        assert_eq!(Fence::from_counter(3).unwrap().get(), 3 * 1_024);
        assert_eq!(Fence::from_counter(Fence::MAX_COUNTER + 1), None);
        assert_eq!(Fence::from_counter(0), None);
    }

    #[test]
    fn a_token_of_others_is_taken_as_it_is() {
        let tokens = [0, 1, i64::MAX as u64, 1 << 63].map(|token| Fence::from_token(token).map(Fence::get));
        assert_eq!(tokens, [None, Some(1), Some(i64::MAX as u64), None]);
    }

    #[test]
    fn a_grant_has_room_for_a_thousand_hand_overs() {
        let first = Fence::from_counter(7).unwrap();
        let all: Vec<Fence> = std::iter::successors(Some(first), |fence| fence.next()).collect();
        assert_eq!(all.len(), 1_024);
        assert!(all.windows(2).all(|pair| pair[0] < pair[1]) && all.iter().all(|fence| fence.counter() == 7));
        assert!(*all.last().unwrap() < Fence::from_counter(8).unwrap());
        assert!(all.iter().all(|fence| fence.last_of_grant() == *all.last().unwrap()));
    }

    #[test]
    fn json_keeps_every_digit() {
        let fence = Fence::from_counter(Fence::MAX_COUNTER).unwrap();
        let json = serde_json::to_string(&fence).unwrap();
        assert_eq!(json, format!("\"{}\"", fence.get()));
        assert_eq!(format!("{fence} {fence:?}"), "9223372036854774784 9223372036854774784");
        assert_eq!(serde_json::from_str::<Fence>(&json).unwrap(), fence);
        assert!(serde_json::from_str::<Fence>("\"-1\"").is_err());
        assert!(serde_json::from_str::<Fence>("\"9223372036854775808\"").is_err());
    }
}
