//! Distributed locks: any number of processes agree who may do a thing now, learn at once when that ends, and get a fencing
//! number by which the guarded resource refuses a stale holder.
//!
//! This crate is the core and has no backend but [`MemoryStore`]. Take `tenure-redis` for Redis or `tenure-sql` for an embedded
//! file; all give a [`Locker`].
//!
//! # What is promised
//! - One holder at a time, for every fault in which the store keeps its data and its clock.
//! - Where that cannot be (a holder paused longer than its lease, a failover that lost the write), the later holder's
//!   [`Fence`] is larger, so a resource that compares refuses the stale one.
//! - Loss is told by a local clock: no running holder believes longer than its lease.
//! - After a crash, a cancelled wait or a lost reply a name is free again within its ttl.
//!
//! # What is not
//! A lock with a lease cannot stop a process that was paused in the middle of a write. Only the resource can, by the fence.
//!
//! # Layers
//! A [`Store`] makes one attempt and says what came of it. Waiting, renewal, clean-up and belief stand above it, once for all
//! stores. Programs without a runtime use [`blocking`].
//!
//! # Coming from another lock
//! `docs/calls.md` has the calls of others beside ours: those of a PHP class, of Redisson, of Spring and of `SET NX`. `docs/choosing.md`
//! says which scheme to use beside whom.

// Examples are code that users copy: they compile without a warning, but for a value that an example only shows.
#![doc(test(attr(deny(warnings), allow(dead_code, unused_variables))))]

mod client;
mod clock;
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

pub use crate::client::{Acquire, AcquireAll, Guards, Locker, LockerBuilder, blocking, default_label};
pub use crate::clock::{BootClock, BootTime, Clock};
pub use crate::duration::{format_duration, parse_duration};
pub use crate::error::{Error, ErrorKind};
pub use crate::fence::Fence;
pub use crate::holder::Holder;
pub use crate::lease::{EndReason, ReleaseOutcome, State};
pub use crate::name::Name;
pub use crate::owner::Owner;
pub use crate::share::{Kind, Share};
pub use crate::store::lease::{Entry, Lease};
pub use crate::store::memory::MemoryStore;
pub use crate::wait::{Guard, Waiting};
