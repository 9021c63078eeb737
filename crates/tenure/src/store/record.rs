//! One name as a value: its holders, its waiters, and what each call makes of them.
//!
//! For authors of stores. Some stores only have compare-and-swap (a version column, `WATCH`,
//! memcached's `cas`) or a lock of their own. Such a store reads the [`Record`] of a name, lets one
//! call change it, and writes it back if nobody else did meanwhile. All that
//! [`Store::acquire`](crate::store::Store::acquire) promises about shares and queues is kept here,
//! once.
//!
//! This module neither reads a clock nor counts grants: both are the store's. Points in time are
//! [`Duration`]s since an epoch that the store chooses and keeps, on one clock for all users of the
//! record.
//!
//! A change may serve waiters. [`Change::served`] lists them, so that the store can push to them
//! **after** it has written the record. Each [`Waiter`] carries a text of the store's own by which
//! it finds their process.
//!
//! ```
//! use std::time::Duration;
//! use tenure::store::Request;
//! use tenure::store::record::{Answer, Record};
//! use tenure::{Owner, Share};
//!
//! let now = Duration::from_secs(7); // the store's clock
//! let mut counter = 41; // kept beside the record
//! let (name, owner) = ("door".parse()?, Owner::generate("me")?);
//! let request = Request::new(name, owner, Share::MUTEX, Duration::from_secs(30));
//! let mut record = Record::default();
//! let change = record.acquire(&request, "", now, &mut || { counter += 1; counter })?;
//! assert!(matches!(change.answer, Answer::Granted(grant) if grant.fence.unwrap().counter() == 42));
//! # Ok::<(), tenure::Error>(())
//! ```

mod holders;
mod listeners;
mod queue;
#[cfg(test)]
mod tests;
mod text;

use std::time::Duration;

pub use self::holders::Held;
use self::holders::Holders;
pub use self::listeners::Listeners;
pub use self::queue::Waiter;
use self::queue::{Queue, end};
use crate::store::{AcquireReply, Busy, Enqueue, Grant, ReleaseReply, RenewReply, Request};
use crate::{Entry, Error, Fence, Holder, Name, Owner, Queued};

/// Largest number of waiters that one call serves. The next call goes on.
const SERVED_AT_ONCE: usize = 128;

/// Holders and waiters of one name.
///
/// A call costs the logarithm of the number of holders and waiters, besides what it drops and
/// serves. To drop an entry in the middle of the queue moves up to half of the waiters.
#[derive(Clone, Debug, Default)]
pub struct Record {
    holders: Holders,
    queue: Queue,
}

/// Result of a call on a record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "the waiters that were served have to be notified"]
pub struct Change<T> {
    /// Answer for the caller.
    pub answer: T,
    /// Waiters, other than the caller, that hold now.
    pub served: Vec<Served>,
    /// Something was released and is left over: clients that wait without an entry should poll.
    pub freed: bool,
    /// The caller was granted its share.
    pub taken: bool,
}

impl Change<Answer> {
    /// Returns the change of a granted request; `None` for another.
    pub fn granted(self) -> Option<Change<Grant>> {
        let Answer::Granted(answer) = self.answer else { return None };
        Some(Change { answer, served: self.served, freed: self.freed, taken: self.taken })
    }
}

/// A waiter that was handed its share.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Served {
    /// Its owner token.
    pub owner: Owner,
    /// Number of the grant.
    pub counter: u64,
    /// Ttl of the lease, until it is renewed or asked for again.
    pub handoff_ttl: Duration,
    /// Text by which the store finds the waiter.
    pub wake: String,
}

/// Answer of [`Record::acquire`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The owner has the share.
    Granted(Grant),
    /// The owner does not have it.
    Busy {
        /// Number of waiters in front of the owner's entry; `None` if it has none.
        position: Option<u32>,
        /// The holder whose lease ends first.
        holder: Option<Holder>,
    },
}

impl Answer {
    /// Makes the answer of a store. `poll_interval` and `grant_seq` are those of [`Busy`].
    pub fn acquired(self, poll_interval: Duration, grant_seq: Option<u64>) -> AcquireReply {
        match self {
            Self::Granted(grant) => AcquireReply::Granted(grant),
            Self::Busy { position, holder } => AcquireReply::Busy(Busy { position, poll_interval, grant_seq, holder }),
        }
    }
}

impl Record {
    /// Makes a record from the rows that a store kept, in any order.
    pub fn new(holders: impl IntoIterator<Item = Held>, waiters: impl IntoIterator<Item = Waiter>) -> Self {
        Self { holders: holders.into_iter().collect(), queue: waiters.into_iter().collect() }
    }

    /// Returns the holders, also those whose lease has ended and that no call has dropped yet.
    pub fn holders(&self) -> impl Iterator<Item = &Held> {
        self.holders.iter()
    }

    /// Returns the waiters in order, also those whose entry has lapsed and that no call has dropped
    /// yet.
    pub fn waiters(&self) -> impl Iterator<Item = &Waiter> {
        self.queue.iter()
    }

    /// Returns the holders and waiters at `now` as the entry of `name`, as
    /// [`Store::inspect`](crate::store::Store::inspect) does. `None` if there are none.
    pub fn inspect(&self, name: &Name, now: Duration) -> Option<Entry> {
        let holders = self.holders().filter(|held| held.until > now).map(|held| held.holder(now)).collect();
        let waiters = self.waiters().filter(|waiter| waiter.until > now);
        let waiters = waiters.map(|waiter| Queued::new(waiter.owner.clone(), waiter.share)).collect();
        Some(Entry::new(name.clone(), holders, waiters)).filter(Entry::is_in_use)
    }

    /// Drops leases that have ended and entries that have lapsed. Every other call does so first.
    pub fn expire(&mut self, now: Duration) {
        self.holders.expire(now);
        self.queue.expire(now);
    }

    /// Whether nobody holds and nobody waits: a store may drop the record then.
    pub fn is_empty(&self) -> bool {
        self.holders.first().is_none() && self.queue.is_empty()
    }

    /// Returns when the last holder and the last waiter are gone; `None` if there are none.
    pub fn last_end(&self) -> Option<Duration> {
        self.holders().map(|held| held.until).chain(self.waiters().map(|waiter| waiter.until)).max()
    }

    /// Asks for a share, as [`Store::acquire`](crate::store::Store::acquire) says. By `wake` the
    /// store finds the client if it waits. `next` gives the number of the next grant.
    ///
    /// A supplied owner token is never queued: two clients with the same token would have one
    /// entry.
    ///
    /// # Errors
    /// [`Mismatch`](crate::ErrorKind::Mismatch) for another kind of lock than is held or waited for.
    /// [`Invalid`](crate::ErrorKind::Invalid) for a larger share than the owner holds or waits for, or for
    /// the share of a read/write lock where it has a mutex. Nobody is served then.
    pub fn acquire(
        &mut self,
        request: &Request,
        wake: &str,
        now: Duration,
        next: &mut dyn FnMut() -> u64,
    ) -> Result<Change<Answer>, Error> {
        self.expire(now);
        self.check(request)?;
        if request.enqueue != Enqueue::No {
            self.queue.refresh(&request.owner, wake, now);
        }
        let mut served = self.serve(now, next);
        let mut freed = false;
        let found = self.holders.get(&request.owner).filter(|_| request.generated).or_else(|| self.taken_over(request)).cloned();
        let granted = match found {
            Some(held) if !held.lingers => {
                served.retain(|served| served.owner != request.owner);
                let shrinks = held.owner == request.owner && request.share.weight() < held.share.weight();
                let again = self.again(request, held, now, next());
                if shrinks {
                    self.holders.put(again.clone());
                    served.extend(self.serve(now, next));
                    freed = self.has_room();
                }
                Some(again)
            }
            None if self.is_free_for(request) => Some(granted(request, now, next())),
            _ => None,
        };
        let taken = granted.is_some();
        let answer = match granted {
            Some(held) => self.grant(request, held),
            None => self.busy(request, wake, now),
        };
        Ok(Change { answer, served, freed, taken })
    }

    /// Renews the owner's lease, so that it lasts at least `ttl` from now.
    pub fn renew(&mut self, owner: &Owner, ttl: Duration, now: Duration) -> RenewReply {
        self.expire(now);
        match self.holders.get(owner).filter(|held| !held.lingers).cloned() {
            Some(held) => {
                self.holders.put(Held { until: held.until.max(end(now, ttl)), ..held });
                RenewReply::Renewed
            }
            None => RenewReply::Gone,
        }
    }

    /// Releases the owner's share and entry, and serves the waiters. With a `linger` the share
    /// stays taken that long, by nobody. A release of its [`lingering`](Owner::lingering) value
    /// ends that.
    pub fn release(
        &mut self,
        owner: &Owner,
        linger: Duration,
        now: Duration,
        next: &mut dyn FnMut() -> u64,
    ) -> Change<ReleaseReply> {
        self.expire(now);
        let left = self.queue.leave(owner);
        let held = self.holders.remove(owner);
        let gave_up = left || held.is_some();
        let answer = if gave_up || self.lingers_after(owner) { ReleaseReply::Released } else { ReleaseReply::NotHeld };
        if let Some(held) = held.filter(|held| !held.lingers && !linger.is_zero()) {
            self.holders.put(Held { owner: owner.lingering(), until: end(now, linger), lingers: true, ..held });
        }
        let served = self.serve(now, next);
        Change { answer, served, freed: gave_up && self.has_room(), taken: false }
    }

    /// Serves the heads of the queue while their shares fit. One that does not fit blocks all
    /// behind it, so that a stream of small shares cannot starve a large one.
    fn serve(&mut self, now: Duration, next: &mut dyn FnMut() -> u64) -> Vec<Served> {
        let mut served = Vec::new();
        while served.len() < SERVED_AT_ONCE
            && let Some(Waiter { owner, share, handoff_ttl, wake, .. }) = self.queue.next_if(|head| self.holders.fits(head.share))
        {
            let counter = next();
            self.holders.put(Held {
                owner: owner.clone(),
                share,
                counter,
                since: now,
                until: end(now, handoff_ttl),
                lingers: false,
            });
            served.push(Served { owner, counter, handoff_ttl, wake });
        }
        served
    }

    /// Refuses a request that could never be granted, however free the name is.
    fn check(&self, request: &Request) -> Result<(), Error> {
        let Request { name, owner, share, .. } = request;
        let known = self.holders.first().map(|held| held.share).or_else(|| self.queue.first().map(|waiter| waiter.share));
        if let Some(known) = known.filter(|known| known.counted().capacity() != share.counted().capacity()) {
            return Err(Error::other_kind(name, known.kind(), share.kind()));
        }
        let has = self.holders.get(owner).map(|held| held.share).or_else(|| self.queue.get(owner).map(|waiter| waiter.share));
        match has.filter(|has| request.generated && !has.covers(*share)) {
            Some(has) => Err(Error::invalid(format!("an owner with {has:?} of {name:?} cannot ask for {share:?}"))
                .with_hint("release it first and take the other share, or take that from the start")),
            None => Ok(()),
        }
    }

    /// Returns the lease that the request takes over.
    fn taken_over(&self, request: &Request) -> Option<&Held> {
        let from = self.holders.get(request.from.as_ref()?);
        from.filter(|from| from.share.capacity() == request.share.capacity() && self.is_new(&request.owner))
    }

    /// Returns the new state of a lease that the request's owner has, or takes over.
    fn again(&mut self, request: &Request, held: Held, now: Duration, counter: u64) -> Held {
        if held.owner == request.owner {
            let until = held.until.max(end(now, request.ttl));
            return Held { share: request.share, counter, until, ..held };
        }
        self.holders.remove(&held.owner);
        Held { share: held.share, ..granted(request, now, counter) }
    }

    fn grant(&mut self, request: &Request, held: Held) -> Answer {
        let fence = Fence::from_counter(held.counter);
        self.queue.leave(&held.owner);
        self.holders.put(held);
        Answer::Granted(Grant::new(fence, request.ttl))
    }

    fn busy(&mut self, request: &Request, wake: &str, now: Duration) -> Answer {
        if let Enqueue::Join { entry_ttl, handoff_ttl } = request.enqueue
            && self.may_join(request)
        {
            let (owner, share, until) = (request.owner.clone(), request.share, end(now, entry_ttl));
            self.queue.join(Waiter { number: 0, owner, share, entry_ttl, handoff_ttl, until, wake: wake.to_owned() });
        }
        let position = self.queue.position_of(&request.owner);
        Answer::Busy { position, holder: self.holders.first().map(|held| held.holder(now)) }
    }

    /// A heartbeat gets only what its entry was handed. Without an entry its token is used up.
    fn is_free_for(&self, request: &Request) -> bool {
        let asks = request.from.is_none() && request.enqueue != Enqueue::Heartbeat;
        asks && self.queue.is_empty() && self.holders.fits(request.share) && self.is_new(&request.owner)
    }

    fn may_join(&self, request: &Request) -> bool {
        let asks = request.from.is_none() && request.generated;
        asks && self.queue.get(&request.owner).is_none() && self.is_new(&request.owner)
    }

    /// Whether something is left that nobody queues for.
    fn has_room(&self) -> bool {
        self.queue.is_empty()
            && self.holders.first().is_none_or(|held| self.holders.taken() < held.share.counted().capacity().into())
    }

    /// Whether the owner neither holds nor has a lingering share.
    fn is_new(&self, owner: &Owner) -> bool {
        self.holders.get(owner).is_none() && !self.lingers_after(owner)
    }

    fn lingers_after(&self, owner: &Owner) -> bool {
        self.holders.any_lingers() && self.holders.get(&owner.lingering()).is_some_and(|held| held.lingers)
    }
}

fn granted(request: &Request, now: Duration, counter: u64) -> Held {
    let Request { owner, share, ttl, .. } = request;
    Held { owner: owner.clone(), share: *share, counter, since: now, until: end(now, *ttl), lingers: false }
}
