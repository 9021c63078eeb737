//! A store of tenure in ZooKeeper: every kind of lock, a queue in order, and a fence.
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
//! let locks = tenure_zookeeper::connect("zookeeper://zk1,zk2,zk3/app").await?;
//! let guard = locks.mutex("invoice/42").acquire().await?;
//! guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! # Guarantees
//! - A mutex at a name and an `InterProcessMutex` of Curator at the same path exclude each other, and
//!   wait in one queue. So do readers and writers and an `InterProcessReadWriteLock`.
//! - Waiters are served in the order of their nodes. Each watches the one in front of it alone.
//! - A later exclusive holder has a larger fence. It is a transaction number of the ensemble (`zxid`).
//! - A lease ends with its process, because its node is ephemeral. The ensemble keeps the node for the
//!   ttl and up to three of its ticks.
//!
//! # Limits
//! - A server gives sessions a shortest and a longest timeout, by default 2 and 20 ticks: 4 s and 40 s.
//!   A shorter ttl is refused, and so is one above the longest, less a tick.
//! - The runtime in which a store was opened serves its sessions. While nobody drives it, calls from
//!   other runtimes fail. When it has ended, they go on.
//! - The password crosses the network as it is, and there is no TLS.
//! - No other process can renew or adopt a lease, and no name stays taken after its release.

// Examples are code that users copy: they compile without a warning, but for a value that an example only shows.
#![doc(test(attr(deny(warnings), allow(dead_code, unused_variables))))]

mod actor;
mod entry;
mod failure;
mod inner;
mod link;
mod login;
mod nodes;
mod options;
mod queue;
mod renew;
mod session;
mod sessions;
mod store;
mod wire;

use tenure::{Error, Locker};

pub use self::options::Options;
pub use self::store::ZooKeeperStore;

/// Connects to the ensemble of a store URL, as [`Options`] describes it.
///
/// # Errors
/// As [`Options::parse`] and [`Options::open`].
pub async fn connect(url: &str) -> Result<Locker, Error> {
    Options::parse(url)?.connect().await
}
