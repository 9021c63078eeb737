//! Distributed locks. Any number of processes agree which one may do a thing now. A holder notices
//! at once, by its own clock, when it has lost its lock. Every grant comes with a fence: a *fencing
//! token* by which the guarded resource refuses a stale holder.
//!
//! This crate is the core. [`MemoryStore`] is its only store. `tenure-redis` has a store on Redis
//! or Valkey, and `tenure-sql` one in an SQLite file. Each gives a [`Locker`].
//!
//! # In the words of other libraries
//! - *TTL*, *lease time*: every lock is a lease that ends by itself; see [`Acquire::ttl`].
//! - *Watchdog*, *auto-renewal*, *heartbeat*: one background task per locker renews what is held.
//! - *Lock timeout*, *wait time*: see [`Acquire::wait`] and [`Acquire::try_acquire`].
//! - *Fencing token*: see [`Fence`] and [`Guard::fence`].
//! - *Lock lost*: see [`Guard::lost`], [`Guard::run`] and [`Guard::cancellation`].
//!
//! # Guarantees
//! - One exclusive holder at a time, for every fault in which the store keeps its data and its
//!   clock.
//! - Some faults make that impossible: a holder paused for longer than its lease, a failover that
//!   lost the write. Then the later exclusive holder has the larger [`Fence`], and a resource that
//!   compares fences refuses the stale one.
//! - No running holder regards itself as the holder for longer than its lease: a local clock ends
//!   it, without waiting for a reply.
//! - After a crash, a cancelled wait or a lost reply a name is free again within its TTL.
//!
//! # Limits
//! A lock with a lease cannot stop a process that was paused in the middle of a write. Only the
//! resource can, by the fence.
//!
//! # Layers
//! A [`Store`](store::Store) makes one attempt and returns its result. Waiting, renewal and
//! clean-up stand above it, once for all stores. Programs without an async runtime use
//! [`blocking`].
//!
//! Numbers that no two processes get, without a request for each: [`ids`].
//!
//! # Coming from another lock
//! `docs/calls.md` has the calls of other locks beside ours: those of a PHP class, of Redisson, of
//! Spring and of `SET NX`. `docs/choosing.md` says which scheme to use beside which client.

// Users copy the examples, so an example must compile without a warning. It may leave a value
// unused.
#![doc(test(attr(deny(warnings), allow(dead_code, unused_variables))))]

mod client;
mod clock;
pub mod compose;
mod duration;
mod error;
mod fence;
mod holder;
mod lease;
mod name;
mod owner;
mod setters;
mod share;
pub mod store;
mod wait;

pub use crate::client::{
    Acquire, AcquireAll, Candidate, Election, Guards, Leader, Leadership, Locker, LockerBuilder, blocking, default_label, ids,
};
pub use crate::clock::{BootClock, BootTime, Clock};
pub use crate::duration::{format_duration, parse_duration};
pub use crate::error::{Error, ErrorKind};
pub use crate::fence::Fence;
pub use crate::holder::Holder;
pub use crate::lease::{EndReason, ReleaseOutcome, State};
pub use crate::name::Name;
pub use crate::owner::Owner;
pub use crate::share::{Kind, Share};
pub use crate::store::lease::{Entry, Lease, Queued};
pub use crate::store::memory::MemoryStore;
pub use crate::wait::{Guard, Waiting};
