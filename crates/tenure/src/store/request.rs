//! Requests to a store, and its answers.

use std::time::Duration;

use crate::setters::setters;
use crate::{Fence, Holder, Lease, Name, Owner, Share};

/// Request of [`Store::acquire`](super::Store::acquire).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// Name of the lock.
    pub name: Name,
    /// Owner token of this attempt.
    pub owner: Owner,
    /// Share of the name.
    pub share: Share,
    /// Time to live of the lease, counted from its execution at the store.
    pub ttl: Duration,
    /// Action if the name is busy.
    pub enqueue: Enqueue,
    /// The owner token was generated for this attempt alone, so finding it in place is success. A
    /// supplied token in place is busy: another client may have the same one.
    pub generated: bool,
    /// Owner to take the lease over from, in one checked step and with a new fence. If another
    /// owner holds the name, or nobody does, the answer is busy.
    pub from: Option<Owner>,
}

impl Request {
    /// Makes a request with a generated owner token, for one attempt: it joins no queue and takes
    /// over from nobody.
    pub const fn new(name: Name, owner: Owner, share: Share, ttl: Duration) -> Self {
        Self { name, owner, share, ttl, enqueue: Enqueue::No, generated: true, from: None }
    }

    /// Returns the lease that a grant of this request gives, without its fence.
    pub fn lease(&self) -> Lease {
        Lease::new(self.name.clone(), self.owner.clone(), self.share, self.ttl)
    }

    /// Returns the request that gives the lease back to the owner from whom this one takes it over.
    pub(crate) fn handed_back(&self) -> Option<Self> {
        let from = self.from.clone()?;
        Some(Self::new(self.name.clone(), from, self.share, self.ttl).with_from(self.owner.clone()))
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

/// Action of a request that finds the name busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueue {
    /// Leaves nothing behind.
    No,
    /// Joins the queue with an entry that lapses without a heartbeat within `entry_ttl`. A lease
    /// that the store hands to it lasts `handoff_ttl` until renewed.
    Join {
        /// Lifetime of the entry without a heartbeat.
        entry_ttl: Duration,
        /// Ttl of a lease that is handed to this waiter.
        handoff_ttl: Duration,
    },
    /// Keeps an entry alive, and never makes one.
    Heartbeat,
}

/// Answer to [`Store::acquire`](super::Store::acquire).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireReply {
    /// The owner has the name.
    Granted(Grant),
    /// Another owner has it.
    Busy(Busy),
    /// The store grants nothing for now, e.g. after it may have forgotten leases.
    Refused {
        /// Time until it does, from now.
        until: Duration,
        /// Reason, for people.
        why: String,
    },
}

/// A grant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// Fencing token, if the store counts grants.
    pub fence: Option<Fence>,
    /// Ttl in force: the requested one, or what the store made of it.
    pub ttl: Duration,
    /// Copies that the store has confirmed, if it was asked to.
    pub durability: Option<Durable>,
}

/// Copies of a grant that a store has confirmed beyond the memory of its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Durable {
    /// Number of replicas that have it.
    pub replicas: u32,
    /// The server's own disk has it.
    pub on_disk: bool,
}

impl Durable {
    /// Makes the report of a grant that so many replicas have, and the server's disk or not.
    pub const fn new(replicas: u32, on_disk: bool) -> Self {
        Self { replicas, on_disk }
    }
}

setters! { Grant:
    with_durability(durability: impl Into<Option<Durable>>),
}

impl Grant {
    /// Makes a grant for `ttl`, with its fence if the store counts grants.
    pub const fn new(fence: Option<Fence>, ttl: Duration) -> Self {
        Self { fence, ttl, durability: None }
    }
}

/// A busy name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Busy {
    /// Number of waiters in front of this owner's entry; `None` if it has none.
    pub position: Option<u32>,
    /// Time until the next poll if no notice arrives. The caller adds jitter.
    pub poll_interval: Duration,
    /// Grant counter at this answer. A pushed grant that is not above it is an old one.
    pub grant_seq: Option<u64>,
    /// One of the holders, if the store tells.
    pub holder: Option<Holder>,
}

impl Busy {
    /// Makes the answer for an owner without a queue entry, to be polled again after
    /// `poll_interval`.
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

/// Answer of [`Store::renew`](super::Store::renew) for one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewReply {
    /// It lasts for its full ttl from now, or longer.
    Renewed,
    /// It is not this owner's any more.
    Gone,
}

/// Answer of [`Store::release`](super::Store::release).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseReply {
    /// It was the owner's and is released.
    Released,
    /// It was not the owner's.
    NotHeld,
}

/// Notice of [`Store::watch`](super::Store::watch).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Something changed: poll the name.
    Changed,
    /// The name was handed to this owner.
    Granted {
        /// Its token.
        owner: Owner,
        /// Its fencing token.
        fence: Fence,
        /// Ttl of the lease, until it is renewed.
        handoff_ttl: Duration,
    },
}
