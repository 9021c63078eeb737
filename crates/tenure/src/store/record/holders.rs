//! Holders of a name: by owner, by the end of their leases, and the sum of their shares.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::setters::setters;
use crate::{Fence, Holder, Owner, Share};

/// A holder of a share, as a store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// Owner token. While the share lingers, the owner's [`lingering`](Owner::lingering) value.
    pub owner: Owner,
    /// Its share.
    pub share: Share,
    /// Number of the grant; 0 for a holder that the store did not count.
    pub counter: u64,
    /// Time of the grant.
    pub since: Duration,
    /// End of the lease; [`Duration::MAX`] for never.
    pub until: Duration,
    /// The share was released, and is kept taken by nobody.
    pub lingers: bool,
}

impl Held {
    /// Makes a holder that was granted its share at `since`, for until `until`.
    pub const fn new(owner: Owner, share: Share, counter: u64, since: Duration, until: Duration) -> Self {
        Self { owner, share, counter, since, until, lingers: false }
    }

    /// Returns the holder as [`Store::inspect`](crate::store::Store::inspect) shows it at `now`.
    pub fn holder(&self, now: Duration) -> Holder {
        Holder {
            owner: self.owner.clone(),
            share: self.share,
            fence: Fence::from_counter(self.counter),
            ttl: (self.until != Duration::MAX).then(|| self.until.saturating_sub(now)),
            age: (self.counter > 0).then(|| now.saturating_sub(self.since)),
            of_session: false,
            in_doubt: false,
        }
    }
}

setters! { Held:
    with_owner(owner: Owner),
    with_share(share: Share),
    with_until(until: Duration),
    with_lingers(lingers: bool),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Holders {
    by_owner: BTreeMap<Owner, Held>,
    by_end: BTreeSet<(Duration, Owner)>,
    /// Sum of all weights, as the name counts them.
    taken: u64,
    lingering: usize,
}

impl Holders {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Held> {
        self.by_owner.values()
    }

    pub(super) fn get(&self, owner: &Owner) -> Option<&Held> {
        self.by_owner.get(owner)
    }

    /// Returns the holder whose lease ends first.
    pub(super) fn first(&self) -> Option<&Held> {
        self.by_end.first().and_then(|(_, owner)| self.by_owner.get(owner))
    }

    pub(super) fn any_lingers(&self) -> bool {
        self.lingering > 0
    }

    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    pub(super) fn fits(&self, share: Share) -> bool {
        let share = share.counted();
        self.taken + u64::from(share.weight()) <= u64::from(share.capacity())
    }

    /// Puts a holder in, instead of what its owner had.
    pub(super) fn put(&mut self, held: Held) {
        self.remove(&held.owner);
        self.taken += u64::from(held.share.counted().weight());
        self.lingering += usize::from(held.lingers);
        self.by_end.insert((held.until, held.owner.clone()));
        self.by_owner.insert(held.owner.clone(), held);
    }

    pub(super) fn remove(&mut self, owner: &Owner) -> Option<Held> {
        let held = self.by_owner.remove(owner)?;
        self.taken -= u64::from(held.share.counted().weight());
        self.lingering -= usize::from(held.lingers);
        self.by_end.remove(&(held.until, held.owner.clone()));
        Some(held)
    }

    pub(super) fn expire(&mut self, now: Duration) {
        while let Some(ended) = self.first().filter(|held| held.until <= now).map(|held| held.owner.clone()) {
            self.remove(&ended);
        }
    }
}

impl FromIterator<Held> for Holders {
    fn from_iter<I: IntoIterator<Item = Held>>(all: I) -> Self {
        let mut holders = Self::default();
        for held in all {
            holders.put(held);
        }
        holders
    }
}
