//! What is asked of a store, and what it answers.

use std::time::Duration;

use crate::setters::setters;
use crate::{Fence, Holder, Lease, Name, Owner, Share};

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
