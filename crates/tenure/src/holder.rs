//! Holder of a name, as far as its store tells.

use std::fmt;
use std::time::Duration;

use crate::setters::setters;
use crate::{Fence, Owner, Share, format_duration};

/// A holder of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Its owner token.
    pub owner: Owner,
    /// Its share.
    pub share: Share,
    /// Its fence, if the store keeps it.
    pub fence: Option<Fence>,
    /// Time until its lease ends; `None` for a lease that never ends by itself.
    pub ttl: Option<Duration>,
    /// Time for which it has held, at least; `None` if unknown.
    pub age: Option<Duration>,
    /// It holds for as long as its session at the store lives, which has no end that the store tells.
    pub of_session: bool,
    /// It holds or it does not: fewer servers of a quorum know it than it needs, and the others do not answer or do not vote.
    pub in_doubt: bool,
}

impl Holder {
    /// Makes a holder of which only the share is known.
    pub const fn new(owner: Owner, share: Share) -> Self {
        Self { owner, share, fence: None, ttl: None, age: None, of_session: false, in_doubt: false }
    }
}

setters! { Holder:
    with_fence(fence: impl Into<Option<Fence>>),
    with_ttl(ttl: impl Into<Option<Duration>>),
    with_age(age: impl Into<Option<Duration>>),
    with_of_session(of_session: bool),
    with_in_doubt(in_doubt: bool),
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gone = self.owner.lingers_after();
        if gone.is_some() {
            f.write_str("nobody, kept taken for its shortest hold after ")?;
        }
        match gone.as_ref().unwrap_or(&self.owner).label() {
            Some("") => f.write_str("an owner without a label")?,
            Some(label) => f.write_str(label)?,
            None if self.of_session => write!(f, "{}", self.owner)?,
            None => write!(f, "another client (value {:?})", self.owner.to_string())?,
        }
        if self.in_doubt {
            f.write_str(", perhaps: too few servers could be asked")?;
        }
        if let Some(age) = self.age {
            write!(f, ", for {}", format_duration(age))?;
        }
        match self.ttl {
            Some(ttl) if gone.is_some() => write!(f, ", free in {}", format_duration(ttl)),
            Some(ttl) => write!(f, ", ending in {} unless renewed", format_duration(ttl)),
            None if self.of_session => f.write_str(", until its session ends"),
            None => f.write_str(", without an expiry: it never ends by itself"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(owner: &Owner, ttl: Option<u64>, age: Option<u64>) -> Holder {
        let millis = |value: Option<u64>| value.map(Duration::from_millis);
        Holder::new(owner.clone(), Share::MUTEX).with_ttl(millis(ttl)).with_age(millis(age))
    }

    #[test]
    fn a_holder_is_told_in_words() {
        let (ours, nameless) = (Owner::generate("web-1").unwrap(), Owner::generate("").unwrap());
        for (holder, words) in [
            (holder(&ours, Some(2_500), Some(1_000)), "web-1, for 1s, ending in 2.5s unless renewed"),
            (holder(&ours, Some(2_500), Some(99)), "web-1, for 99ms, ending in 2.5s unless renewed"),
            (holder(&nameless, Some(2_500), None), "an owner without a label, ending in 2.5s unless renewed"),
            (
                holder(&Owner::from_bytes(&b"1"[..]), None, None),
                "another client (value \"1\"), without an expiry: it never ends by itself",
            ),
            (
                holder(&Owner::from_bytes(&b"connection 5, app@h:1"[..]), None, None).with_of_session(true),
                "connection 5, app@h:1, until its session ends",
            ),
            (
                holder(&ours.lingering(), Some(2_500), Some(1_000)),
                "nobody, kept taken for its shortest hold after web-1, for 1s, free in 2.5s",
            ),
        ] {
            assert_eq!(holder.to_string(), words);
        }
    }
}
