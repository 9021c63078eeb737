//! The cut: a store makes one attempt; waiting, renewing and retrying stand above it.

pub(crate) mod memory;
pub mod record;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use serde::{Deserialize, Serialize};

use crate::setters::setters;
use crate::{Error, Fence, Name, Owner, Share, format_duration};

/// A place where names are held: a Redis, a file, a table.
///
/// This is the contract between tenure and those who write stores or wrap them; users talk to [`Locker`](crate::Locker).
/// Every method is one shot: it neither waits for a holder nor retries a refusal, and it has no default body, so that a
/// wrapper cannot forget one. A call may be repeated after an unknown outcome with the same effect as one call.
///
/// # Cancel safety
/// Any of these futures may be dropped at any point. What was sent may still run; the caller clears up with
/// [`release`](Store::release).
#[async_trait]
pub trait Store: fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// What this store can promise, as far as it knows now.
    fn features(&self) -> Features;

    /// Asks for a share of a name, once.
    ///
    /// What a store does in one atomic step: leases that have ended and places that have lapsed are dropped; those who wait are
    /// served in order for as long as their shares fit, each with the `claim` of its own place; then the request is looked at.
    /// It is granted where its share fits and nobody waits in front of it. An owner that holds already is granted again, for no
    /// shorter than before, because it may be a late repetition; with a smaller share it is a downgrade, with a larger one it is
    /// refused. An owner that was served is granted for its full ttl. A place that has lapsed, or was served and given up, is not
    /// made again for a [`Enqueue::Heartbeat`]: it is answered busy without an [`position`](Busy::position), and its token is used up.
    ///
    /// # Errors
    /// [`Mismatch`](crate::ErrorKind::Mismatch) when the name is held or waited for as another kind of lock.
    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error>;

    /// Asks for shares of several names, all or none, in one atomic step; the grants in the order of the requests.
    ///
    /// None where one of them was not to be had, or where the store cannot take several in one step: then nothing was taken, and
    /// the caller takes one after another. The requests are alike but for name and owner, for different names, repeatable, and
    /// leave no place and no one to take over from.
    ///
    /// # Errors
    /// As [`acquire`](Store::acquire); a mismatch says at which name, and comes before a name that is busy.
    async fn acquire_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error>;

    /// Makes each lease that is still its owner's last at least its ttl from the moment the store executes it.
    ///
    /// A renewal never shortens a lease: one that runs late, or is for a shorter ttl, must not end what its holder believes. The
    /// answers stand in the order of the leases. A lease that is gone, or is another's, is left alone.
    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>>;

    /// Gives up a share or a place, if it is still this owner's, and serves those who wait.
    ///
    /// With a `linger` the name stays taken that long, by nobody: no renewal and no acquisition of the owner matches it.
    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error>;

    /// A stream of hints that the request's name is worth another look; armed when the call returns.
    ///
    /// A store that cannot push answers with a stream that stays silent: the caller looks again by itself in any case.
    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error>;

    /// Who holds `name` and how many wait; without a name, every name the store can tell to be a lock.
    ///
    /// For people and tests: what it says may be over when it arrives. A free name is not listed.
    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error>;
}

#[async_trait]
impl<S: Store + ?Sized> Store for Arc<S> {
    fn features(&self) -> Features {
        (**self).features()
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        (**self).acquire(request).await
    }

    async fn acquire_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        (**self).acquire_all(requests).await
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        (**self).renew(leases).await
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        (**self).release(lease, linger).await
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        (**self).watch(request).await
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        (**self).inspect(name).await
    }
}

/// What a store can promise.
#[allow(clippy::struct_excessive_bools, reason = "a list of independent promises")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Features {
    /// Grants carry a fence.
    pub fence: bool,
    /// Shares other than a mutex are kept.
    pub shares: bool,
    /// Waiters queue at the store and are served in order.
    pub queue: bool,
    /// A lease may pass from task to task of one process without the store knowing: its value names the process's claim, and its
    /// fence leaves room for a hand-over's index.
    pub cohort: bool,
    /// [`Store::watch`] says when to look.
    pub push: bool,
    /// Leases end by the store's own clock, not by that of its clients.
    pub server_clock: bool,
    /// A command whose reply was lost may still run after a later command was answered. Clean-ups are then repeated until
    /// the ttl of what they clear up has passed.
    pub late_commands: bool,
    /// The shortest ttl the store can keep.
    pub min_ttl: Duration,
    /// The longest name the store can keep, in bytes.
    pub max_name: usize,
    /// How long one call may take; `None` is [`operation_timeout`].
    pub operation_timeout: Option<Duration>,
}

impl Features {
    /// The least a store can be: it keeps mutexes, by the clocks of its clients, and promises nothing more. Leases last 10 ms or
    /// longer, and every name fits.
    pub const fn basic() -> Self {
        Self {
            fence: false,
            shares: false,
            queue: false,
            cohort: false,
            push: false,
            server_clock: false,
            late_commands: false,
            min_ttl: Duration::from_millis(10),
            max_name: Name::MAX_BYTES,
            operation_timeout: None,
        }
    }

    /// How long one call about a lease of `ttl` may take. A look hangs on no lease: its ttl is [`Duration::MAX`].
    pub fn limit(&self, ttl: Duration) -> Duration {
        self.operation_timeout.unwrap_or_else(|| operation_timeout(ttl))
    }
}

setters! { Features:
    with_fence(fence: bool),
    with_shares(shares: bool),
    with_queue(queue: bool),
    with_cohort(cohort: bool),
    with_push(push: bool),
    with_server_clock(server_clock: bool),
    with_late_commands(late_commands: bool),
    with_min_ttl(min_ttl: Duration),
    with_max_name(max_name: usize),
    with_operation_timeout(operation_timeout: impl Into<Option<Duration>>),
}

/// How long one call to a store may take where nothing else was said: a sixth of the ttl, at most a second.
pub fn operation_timeout(ttl: Duration) -> Duration {
    (ttl / 6).min(Duration::from_secs(1))
}

/// What is asked of [`Store::acquire`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// What is locked.
    pub name: Name,
    /// For whom.
    pub owner: Owner,
    /// How much of it.
    pub share: Share,
    /// For how long after the store executes it.
    pub ttl: Duration,
    /// What to do when it is busy.
    pub enqueue: Enqueue,
    /// The owner's bits were made for this attempt alone, so finding it in place already is success. For a value that the
    /// caller gave it is busy: another may have given the same.
    pub generated: bool,
    /// Take the tenure over from this owner in one checked step, with a new fence; anything else in place is busy, and so
    /// is a free name.
    pub from: Option<Owner>,
}

impl Request {
    /// Asks for a share with a generated owner token, once: it joins no queue and takes over from nobody.
    pub const fn new(name: Name, owner: Owner, share: Share, ttl: Duration) -> Self {
        Self { name, owner, share, ttl, enqueue: Enqueue::No, generated: true, from: None }
    }

    /// The lease that a grant of this request gives, without its fence.
    pub fn lease(&self) -> Lease {
        Lease::new(self.name.clone(), self.owner.clone(), self.share, self.ttl)
    }
}

setters! { Request:
    with_name(name: Name),
    with_owner(owner: Owner),
    with_share(share: Share),
    with_ttl(ttl: Duration),
    with_enqueue(enqueue: Enqueue),
    with_generated(generated: bool),
    with_from(from: impl Into<Option<Owner>>),
}

/// What a request that finds the name busy does about the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueue {
    /// Leaves nothing behind.
    No,
    /// Takes a place that lapses unless it is looked after within `keep`; a grant handed to it lasts `claim` until renewed.
    Join {
        /// How long the place lives without a heartbeat.
        entry_ttl: Duration,
        /// The ttl of a lease handed to this waiter.
        handoff_ttl: Duration,
    },
    /// Looks after a place it has, and never makes one.
    Heartbeat,
}

/// The answer to [`Store::acquire`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireReply {
    /// The name is the owner's.
    Granted(Grant),
    /// Another has it.
    Busy(Busy),
    /// The store takes no part for now, e.g. after it may have forgotten leases.
    Refused {
        /// How long, from now.
        until: Duration,
        /// Why, for people.
        why: String,
    },
}

/// A name that was given.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// The number of this tenure, where the store counts.
    pub fence: Option<Fence>,
    /// The ttl in force: the one asked for, or what the store made of it.
    pub ttl: Duration,
}

impl Grant {
    /// A grant for `ttl`, with its fence where the store counts.
    pub const fn new(fence: Option<Fence>, ttl: Duration) -> Self {
        Self { fence, ttl }
    }
}

/// A name that another has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Busy {
    /// How many wait in front of the place this owner has; `None` where it has none.
    pub position: Option<u32>,
    /// When to look again if nothing is heard. The caller adds jitter.
    pub poll_interval: Duration,
    /// The grant counter when this was answered: a pushed grant that is not above it is an old one.
    pub grant_seq: Option<u64>,
    /// One of those who hold it, where the store tells.
    pub holder: Option<Holder>,
}

impl Busy {
    /// The answer to one who has no entry in a queue, and is to look again after `poll_interval`.
    pub const fn new(poll_interval: Duration) -> Self {
        Self { position: None, poll_interval, grant_seq: None, holder: None }
    }
}

setters! { Busy:
    with_poll_interval(poll_interval: Duration),
    with_position(position: impl Into<Option<u32>>),
    with_grant_seq(grant_seq: impl Into<Option<u64>>),
    with_holder(holder: impl Into<Option<Holder>>),
}

/// One who holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The owner's bytes.
    pub owner: Owner,
    /// Its share.
    pub share: Share,
    /// Its fence, where the store keeps it.
    pub fence: Option<Fence>,
    /// What is left of its lease; `None` for a lease that never ends by itself.
    pub ttl: Option<Duration>,
    /// How long it has held, at least; `None` where nobody knows.
    pub age: Option<Duration>,
}

impl Holder {
    /// A holder of whom nothing but the share is known.
    pub const fn new(owner: Owner, share: Share) -> Self {
        Self { owner, share, fence: None, ttl: None, age: None }
    }
}

setters! { Holder:
    with_fence(fence: impl Into<Option<Fence>>),
    with_ttl(ttl: impl Into<Option<Duration>>),
    with_age(age: impl Into<Option<Duration>>),
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
            None => write!(f, "another client (value {:?})", self.owner.to_string())?,
        }
        if let Some(age) = self.age {
            write!(f, ", for {}", format_duration(age))?;
        }
        match self.ttl {
            Some(ttl) if gone.is_some() => write!(f, ", free in {}", format_duration(ttl)),
            Some(ttl) => write!(f, ", ending in {} unless renewed", format_duration(ttl)),
            None => f.write_str(", without an expiry: it never ends by itself"),
        }
    }
}

/// A tenure as plain data: it can be logged, renewed in batches and handed to another process.
///
/// It says who may renew or release, not that the tenure still stands: only the store knows that, and a
/// [`Guard`](crate::Guard) believes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Lease {
    /// What is held.
    pub name: Name,
    /// By whom.
    pub owner: Owner,
    /// How much of it.
    pub share: Share,
    /// For how long from each renewal.
    #[serde(rename = "ttl_ms", with = "millis")]
    pub ttl: Duration,
    /// The number of this tenure, where the store counts.
    pub fence: Option<Fence>,
}

impl Lease {
    /// A lease without a fence.
    pub const fn new(name: Name, owner: Owner, share: Share, ttl: Duration) -> Self {
        Self { name, owner, share, ttl, fence: None }
    }
}

setters! { Lease:
    with_name(name: Name),
    with_owner(owner: Owner),
    with_share(share: Share),
    with_ttl(ttl: Duration),
    with_fence(fence: impl Into<Option<Fence>>),
}

mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(ttl: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

/// The answer for one lease of [`Store::renew`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewReply {
    /// It lasts for its full ttl from now, or longer.
    Renewed,
    /// It is this owner's no longer.
    Gone,
}

/// The answer to [`Store::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseReply {
    /// It was the owner's and is given up.
    Released,
    /// It was not the owner's.
    NotHeld,
}

/// What [`Store::watch`] tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Something changed: look again.
    Changed,
    /// The name was handed to this owner.
    Granted {
        /// To whom.
        owner: Owner,
        /// With which number.
        fence: Fence,
        /// For how long, until it is renewed.
        handoff_ttl: Duration,
    },
}

/// What [`Store::inspect`] tells of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// What is held.
    pub name: Name,
    /// Those who hold it.
    pub holders: Vec<Holder>,
    /// How many wait at the store.
    pub waiters: u64,
}

impl Entry {
    /// A name with those who hold it and the number of those who wait.
    pub const fn new(name: Name, holders: Vec<Holder>, waiters: u64) -> Self {
        Self { name, holders, waiters }
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
                holder(&ours.lingering(), Some(2_500), Some(1_000)),
                "nobody, kept taken for its shortest hold after web-1, for 1s, free in 2.5s",
            ),
        ] {
            assert_eq!(holder.to_string(), words);
        }
    }

    #[test]
    fn a_lease_survives_as_json() {
        let (name, owner) = (Name::new("door").unwrap(), Owner::generate("web-1").unwrap());
        let ttl = Duration::from_millis(2_500);
        let lease = Lease::new(name, owner, Share::MUTEX, ttl).with_fence(Fence::from_counter(7));
        let json = serde_json::to_string(&lease).unwrap();
        assert!(json.contains("\"ttl_ms\":2500"), "{json}");
        assert_eq!(serde_json::from_str::<Lease>(&json).unwrap(), lease);
    }

    #[test]
    fn a_call_may_take_a_sixth_of_the_ttl_and_no_more_than_a_second() {
        for (ttl, limit) in [(600, 100), (3_000, 500), (6_000, 1_000), (60_000, 1_000)] {
            assert_eq!(operation_timeout(Duration::from_millis(ttl)), Duration::from_millis(limit));
        }
    }
}
