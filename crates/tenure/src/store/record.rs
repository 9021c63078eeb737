//! One name as a value: who holds it, who waits for it, and what each call makes of that.
//!
//! For authors of stores. A store that only has compare-and-swap (a version column, `WATCH`, memcached's `cas`) or a lock of its
//! own reads the [`Record`] of a name, lets one call change it, and writes it back if nobody else did meanwhile; all that
//! [`Store::acquire`](crate::store::Store::acquire) promises about shares and queues is kept here, once. Nothing in this module looks at a
//! clock or counts grants: both are the store's. Points in time are [`Duration`]s since an epoch that the store chooses and
//! keeps, on one clock for everybody who uses the record.
//!
//! A change may serve waiters. They are told in [`Turn::served`], so that the store can push to them **after** it has written
//! the record; each [`Waiter`] carries a text of the store's own by which its process is found.
//!
//! ```
//! use std::time::Duration;
//! use tenure::store::Request;
//! use tenure::store::record::{Answer, Record};
//! use tenure::{Owner, Share};
//!
//! let now = Duration::from_secs(7); // the store's clock
//! let mut counter = 41; // kept beside the record
//! let request = Request::new("door".parse()?, Owner::generate("me")?, Share::MUTEX, Duration::from_secs(30));
//! let mut record = Record::default();
//! let turn = record.acquire(&request, "", now, &mut || { counter += 1; counter })?;
//! assert!(matches!(turn.answer, Answer::Granted(grant) if grant.fence.unwrap().counter() == 42));
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
use self::queue::Queue;
pub use self::queue::Waiter;
use crate::store::{AcquireReply, Busy, Enqueue, Grant, ReleaseReply, RenewReply, Request};
use crate::{Error, ErrorKind, Fence, Holder, Owner};

/// One call serves no more waiters than this; the next call goes on.
const SERVED_AT_ONCE: usize = 128;

/// Who holds one name and who waits for it.
///
/// A call costs the logarithm of the number of holders and waiters, and what it drops and serves; to drop a place in the middle of the
/// queue moves up to half of those who wait.
#[derive(Clone, Debug, Default)]
pub struct Record {
    holders: Holders,
    queue: Queue,
}

/// What a call made of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "those who were served have to be told"]
pub struct Change<T> {
    /// For the caller.
    pub answer: T,
    /// Waiters, other than the caller, who hold now.
    pub served: Vec<Served>,
    /// Something was given up and is left over: worth a look for those who wait without a place.
    pub freed: bool,
}

impl Change<Answer> {
    /// The turn of a request that was granted; `None` for another.
    pub fn granted(self) -> Option<Change<Grant>> {
        let Answer::Granted(answer) = self.answer else { return None };
        Some(Change { answer, served: self.served, freed: self.freed })
    }
}

/// A waiter that was handed its share.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Served {
    /// To whom.
    pub owner: Owner,
    /// The number of the grant.
    pub counter: u64,
    /// For how long, until it is renewed or asked for again.
    pub handoff_ttl: Duration,
    /// How the store finds the waiter.
    pub wake: String,
}

/// What [`Record::acquire`] answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The share is the owner's.
    Granted(Grant),
    /// It is not.
    Busy {
        /// How many wait in front of the place this owner has; `None` where it has none.
        position: Option<u32>,
        /// Of those who hold, the one whose lease ends first.
        holder: Option<Holder>,
    },
}

impl Answer {
    /// The answer of a store; `poll_interval` and `grant_seq` are those of [`Busy`].
    pub fn acquired(self, recheck: Duration, mark: Option<u64>) -> AcquireReply {
        match self {
            Self::Granted(grant) => AcquireReply::Granted(grant),
            Self::Busy { position: ahead, holder } => {
                AcquireReply::Busy(Busy { position: ahead, poll_interval: recheck, grant_seq: mark, holder })
            }
        }
    }
}

impl Record {
    /// A record from what a store kept, in any order.
    pub fn new(holders: impl IntoIterator<Item = Held>, waiters: impl IntoIterator<Item = Waiter>) -> Self {
        Self { holders: holders.into_iter().collect(), queue: waiters.into_iter().collect() }
    }

    /// Those who hold, the dead that no call has met yet included.
    pub fn holders(&self) -> impl Iterator<Item = &Held> {
        self.holders.iter()
    }

    /// Those who wait, in order, the lapsed that no call has met yet included.
    pub fn waiters(&self) -> impl Iterator<Item = &Waiter> {
        self.queue.iter()
    }

    /// What [`Store::inspect`](crate::store::Store::inspect) tells: those who hold at `now`, and how many wait.
    pub fn inspect(&self, now: Duration) -> (Vec<Holder>, u64) {
        let holders = self.holders().filter(|held| held.until > now).map(|held| held.holder(now)).collect();
        (holders, self.waiters().filter(|waiter| waiter.until > now).map(|_| 1).sum())
    }

    /// Drops leases that have ended and places that have lapsed. Every other call does so first.
    pub fn expire(&mut self, now: Duration) {
        self.holders.expire(now);
        self.queue.expire(now);
    }

    /// Nobody holds and nobody waits: a store may forget it.
    pub fn is_empty(&self) -> bool {
        self.holders.first().is_none() && self.queue.is_empty()
    }

    /// Asks for a share, as [`Store::acquire`](crate::store::Store::acquire) says. `wake` is how the store finds the asker if it comes to
    /// wait, and `next` gives the number of the next grant.
    ///
    /// An owner that was given is never queued: two who gave the same would have one place.
    ///
    /// # Errors
    /// [`Mismatch`](ErrorKind::Mismatch) for another kind of lock than is held or waited for; [`Invalid`](ErrorKind::Invalid)
    /// for a larger share than the owner holds or waits for. Nobody is served then.
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
        let answer = match granted {
            Some(held) => self.grant(request, held),
            None => self.busy(request, wake, now),
        };
        Ok(Change { answer, served, freed })
    }

    /// Makes the owner's lease last at least `ttl` from now.
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

    /// Gives up the owner's share and place, and serves those who wait. With a `linger` the share stays taken that long, by
    /// nobody; releasing its [`lingering`](Owner::lingering) value ends that.
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
        Change { answer, served, freed: gave_up && self.has_room() }
    }

    /// Serves the heads of the queue while their shares fit. One that does not fit blocks all behind it, so that a stream of small
    /// shares cannot starve a large one.
    fn serve(&mut self, now: Duration, next: &mut dyn FnMut() -> u64) -> Vec<Served> {
        let mut served = Vec::new();
        while served.len() < SERVED_AT_ONCE
            && let Some(Waiter { owner, share, handoff_ttl: claim, wake, .. }) =
                self.queue.next_if(|head| self.holders.fits(head.share))
        {
            let counter = next();
            self.holders.put(Held { owner: owner.clone(), share, counter, since: now, until: end(now, claim), lingers: false });
            served.push(Served { owner, counter, handoff_ttl: claim, wake });
        }
        served
    }

    /// Refuses what could not be granted whoever came and went.
    fn check(&self, request: &Request) -> Result<(), Error> {
        let Request { name, owner, share, .. } = request;
        let known = self.holders.first().map(|held| held.share).or_else(|| self.queue.first().map(|waiter| waiter.share));
        if let Some(known) = known.filter(|known| known.counted().capacity() != share.counted().capacity()) {
            let what = format!("{name:?} is in use as {}, and cannot be {} as well", known.kind(), share.kind());
            return Err(Error::new(ErrorKind::Mismatch, what).with_hint("use one kind of lock for a name"));
        }
        let has = self.holders.get(owner).map(|held| held.share).or_else(|| self.queue.get(owner).map(|waiter| waiter.share));
        let grows = |has: &Share| has.capacity() == share.capacity() && has.weight() < share.weight();
        match has.filter(|has| request.generated && grows(has)) {
            Some(has) => Err(Error::invalid(format!("a share of {name:?} cannot grow from {has:?} to {share:?}"))
                .with_hint("release it first and take the larger share, or take that from the start")),
            None => Ok(()),
        }
    }

    /// The lease that the request names as the one to take over.
    fn taken_over(&self, request: &Request) -> Option<&Held> {
        self.holders.get(request.from.as_ref()?).filter(|_| self.is_new(&request.owner))
    }

    /// What becomes of a lease that the request's owner has, or takes over.
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
        Answer::Granted(Grant { fence, ttl: request.ttl })
    }

    fn busy(&mut self, request: &Request, wake: &str, now: Duration) -> Answer {
        if let Enqueue::Join { entry_ttl: keep, handoff_ttl: claim } = request.enqueue
            && self.may_join(request)
        {
            let (owner, share, until) = (request.owner.clone(), request.share, end(now, keep));
            self.queue.join(Waiter {
                number: 0,
                owner,
                share,
                entry_ttl: keep,
                handoff_ttl: claim,
                until,
                wake: wake.to_owned(),
            });
        }
        let ahead = self.queue.position_of(&request.owner);
        Answer::Busy { position: ahead, holder: self.holders.first().map(|held| held.holder(now)) }
    }

    /// A heartbeat gets nothing but what its place was handed: without a place its token is used up.
    fn is_free_for(&self, request: &Request) -> bool {
        let asks = request.from.is_none() && request.enqueue != Enqueue::Heartbeat;
        asks && self.queue.is_empty() && self.holders.fits(request.share) && self.is_new(&request.owner)
    }

    fn may_join(&self, request: &Request) -> bool {
        let asks = request.from.is_none() && request.generated;
        asks && self.queue.get(&request.owner).is_none() && self.is_new(&request.owner)
    }

    /// Nobody queues for what is left.
    fn has_room(&self) -> bool {
        self.queue.is_empty() && self.holders.first().is_none_or(|held| self.holders.taken() < held.share.counted().capacity().into())
    }

    /// Whether the owner neither holds nor is kept in mind by a lingering share.
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

/// The end of a span that begins now.
fn end(now: Duration, span: Duration) -> Duration {
    now.saturating_add(span)
}
