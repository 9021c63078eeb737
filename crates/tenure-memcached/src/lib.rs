//! Locks in memcached: a store of tenure, for teams that run one and nothing else.
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
//! let locks = tenure_memcached::connect("memcached://127.0.0.1").await?;
//! let guard = locks.mutex("invoice/42").acquire().await?;
//! guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! # Guarantees
//! - Every kind of lock, and waiters that are served in order. Nobody notifies a waiter: it polls.
//! - Leases end by the server's clock alone. A lease lasts at least its ttl there, and up to 5.5
//!   seconds longer, because memcached counts whole seconds. A sleep of the server's machine counts
//!   for nothing.
//! - Each later exclusive holder has a larger fence, in one life of the server and over its restarts.
//!
//! # Limits
//! - **memcached forgets.** It drops items when it needs memory, all of them at `flush_all`, and with
//!   its process. A lock that was dropped is free at once. Its holder learns it at the next renewal,
//!   and only the fence protects until then. Give locks a memcached of their own, with `-M`: then it
//!   refuses new locks instead of dropping old ones.
//! - The fence of a restarted server counts from the wall clock at its start. It falls back if that
//!   clock was set back, or if the server was started twice within a second.
//! - Several servers are no quorum. Each name is at one of them. If that is lost, the name cannot be
//!   locked until it is back. Do not take it off the list: the name would move, with smaller fences.
//! - An address is one server. Behind a balancer, clients find one name at different servers.

// Examples are code that users copy: they compile without a warning, but for a value that an example only shows.
#![doc(test(attr(deny(warnings), allow(dead_code, unused_variables))))]

mod clock;
mod connection;
mod dial;
mod item;
mod link;
mod list;
mod options;
mod protocol;
mod servers;
mod store;

use tenure::{Error, Locker};

pub use crate::options::{Options, Scheme};
pub use crate::store::{Items, MemcachedStore};

/// Returns a [`Locker`] on the store at `url`; see [`Options`].
///
/// # Errors
/// As [`Options::parse`] and [`Options::open`].
pub async fn connect(url: &str) -> Result<Locker, Error> {
    Options::parse(url)?.connect().await
}
