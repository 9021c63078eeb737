//! The keys of a name as a queue: the first ones hold.

use tenure::store::Request;
use tenure::{Entry, Error, Fence, Holder, Name, Owner, Queued, Share};

use crate::keys::{Layout, Phase, Value};
use crate::proto::{Header, KeyValue, RangeResponse};

/// A key in the queue.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Value,
    pub(crate) lease: i64,
    pub(crate) modified: i64,
}

impl Slot {
    /// A key without a value of ours is that of another client, which asks for a mutex. It is shown by
    /// its key.
    fn new(kv: KeyValue) -> Self {
        let KeyValue { key, value, lease, mod_revision, .. } = kv;
        let value = Value::read(&value).unwrap_or_else(|| {
            let owner = Owner::from_bytes(key.clone());
            Value { phase: Phase::Joined, share: Share::MUTEX, ttl: 0, term: 0, owner, granted: None }
        });
        Self { key, value, lease, modified: mod_revision }
    }

    /// The lease that goes with the key. 0 for another client's: its session may have other keys.
    pub(crate) fn own_lease(&self) -> i64 {
        if self.value.ttl == 0 { 0 } else { self.lease }
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.value.owner
    }

    /// The holder of this key, without its ttl.
    pub(crate) fn holder(&self) -> Holder {
        let mut holder = Holder::new(self.owner().clone(), self.value.share);
        holder.fence = match self.value.phase {
            Phase::Holds => fence(self.value.granted.unwrap_or(self.modified)),
            // It may have begun with the deletion of another key.
            Phase::Joined | Phase::Lingers => None,
        };
        holder
    }
}

/// All keys of a name at one revision.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) revision: i64,
    /// Term of the members, as the answer has it.
    pub(crate) term: u64,
    pub(crate) slots: Vec<Slot>,
    /// Number of slots at the front that hold.
    held: usize,
    /// Weight that they have together.
    taken: u64,
}

impl Queue {
    pub(crate) fn read(range: RangeResponse, layout: &Layout, name: &Name) -> Self {
        let header = range.header.unwrap_or_default();
        let kvs = range.kvs.into_iter().filter(|kv| layout.is_of(name, kv));
        Self::new(&header, kvs)
    }

    /// Of the keys of one name, in the order in which they were made.
    pub(crate) fn new(header: &Header, kvs: impl Iterator<Item = KeyValue>) -> Self {
        let &Header { revision, raft_term: term, .. } = header;
        Self { revision, term, slots: kvs.map(Slot::new).collect(), held: 0, taken: 0 }.counted()
    }

    /// Counts those that hold.
    fn counted(mut self) -> Self {
        (self.held, self.taken) = (0, 0);
        while let Some(next) = self.slots.get(self.held)
            && self.fits(next.value.share)
        {
            self.taken += u64::from(next.value.share.counted().weight());
            self.held += 1;
        }
        self
    }

    /// Whether a share fits beside those that hold. One of another kind does not.
    fn fits(&self, share: Share) -> bool {
        let (share, first) = (share.counted(), self.slots.first().map(|slot| slot.value.share.counted()));
        let capacity = u64::from(share.capacity());
        self.held == 0
            || (first.is_some_and(|first| first.capacity() == share.capacity())
                && self.taken + u64::from(share.weight()) <= capacity)
    }

    /// Whether a new key for this share would hold at once.
    pub(crate) fn has_room_for(&self, share: Share) -> bool {
        self.held == self.slots.len() && self.fits(share)
    }

    pub(crate) fn position(&self, owner: &Owner) -> Option<usize> {
        self.slots.iter().position(|slot| slot.owner() == owner)
    }

    pub(crate) fn find(&self, owner: &Owner) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.owner() == owner)
    }

    /// The same queue without an owner.
    pub(crate) fn without(mut self, owner: &Owner) -> Self {
        self.slots.retain(|slot| slot.owner() != owner);
        self.counted()
    }

    /// The slot of an owner that holds.
    pub(crate) fn held_by(&self, owner: &Owner) -> Option<&Slot> {
        self.holders().iter().find(|slot| slot.owner() == owner)
    }

    pub(crate) fn holders(&self) -> &[Slot] {
        &self.slots[..self.held]
    }

    /// Number of waiters in front of the slot at `position`. `None` if that holds.
    pub(crate) fn waiters_before(&self, position: usize) -> Option<u32> {
        position.checked_sub(self.held).map(|ahead| u32::try_from(ahead).unwrap_or(u32::MAX))
    }

    /// Refuses a request that could never be granted, however free the name is.
    pub(crate) fn check(&self, request: &Request) -> Result<(), Error> {
        let Request { name, owner, share, .. } = request;
        let known = self.slots.iter().find(|slot| slot.owner() != owner).map(|slot| slot.value.share);
        if let Some(known) = known.filter(|known| known.counted().capacity() != share.counted().capacity()) {
            return Err(Error::other_kind(name, known.kind(), share.kind()));
        }
        let has = self.find(owner).filter(|_| request.generated).map(|slot| slot.value.share);
        match has.filter(|has| has.capacity() != share.capacity() || has.weight() < share.weight()) {
            Some(has) if has.counted().capacity() != share.counted().capacity() => {
                Err(Error::other_kind(name, has.kind(), share.kind()))
            }
            Some(has) => Err(Error::invalid(format!("an owner with {has:?} of {name:?} cannot ask for {share:?}"))
                .with_hint("release it first and take the other share, or take that from the start")),
            None => Ok(()),
        }
    }

    pub(crate) fn entry(&self, name: Name, holders: Vec<Holder>) -> Entry {
        let waiters = self.slots[self.held..].iter().map(|slot| Queued::new(slot.owner().clone(), slot.value.share));
        Entry::new(name, holders, waiters.collect())
    }
}

/// A revision as a fence.
pub(crate) fn fence(revision: i64) -> Option<Fence> {
    u64::try_from(revision).ok().and_then(Fence::from_counter)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(shares: &[Option<Share>]) -> Queue {
        let kv = |(i, share): (i64, &Option<Share>)| KeyValue {
            key: format!("door/{i:x}").into_bytes(),
            create_revision: i,
            mod_revision: i,
            value: share.map_or_else(Vec::new, |share| {
                Value {
                    phase: Phase::Joined,
                    share,
                    ttl: 2,
                    term: 1,
                    owner: Owner::from_bytes(i.to_string().into_bytes()),
                    granted: None,
                }
                .write()
            }),
            lease: i,
        };
        Queue::new(&Header { revision: 9, raft_term: 1, ..Header::default() }, (1..).zip(shares).map(kv))
    }

    #[test]
    fn the_first_ones_hold_while_they_fit() {
        let semaphore = |weight| Some(Share::permits(weight, 3).unwrap());
        let (read, write, mutex) = (Some(Share::READ), Some(Share::WRITE), Some(Share::MUTEX));
        for (shares, held) in [
            (&[][..], 0),
            (&[mutex, mutex], 1),
            (&[None, mutex], 1),
            (&[None, None], 1),
            (&[mutex, None], 1),
            (&[read, read, write, read], 2),
            (&[read, None, read], 1),
            (&[write, read, read], 1),
            (&[mutex, read], 1),
            (&[semaphore(2), semaphore(2), semaphore(1)], 1),
            (&[semaphore(1), semaphore(2), semaphore(1)], 2),
            // Made at the same time, of two kinds.
            (&[semaphore(1), mutex, semaphore(1)], 1),
        ] {
            assert_eq!(queue(shares).holders().len(), held, "{shares:?}");
        }
        assert!(queue(&[read, read]).has_room_for(Share::READ) && !queue(&[read, read]).has_room_for(Share::MUTEX));
        assert!(!queue(&[read, write]).has_room_for(Share::READ), "it would overtake the writer");
    }
}
