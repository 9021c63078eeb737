//! Distributed locks in [etcd](https://etcd.io), in one queue with `etcdctl lock`.
//!
//! ```no_run
//! # async fn example() -> Result<(), tenure::Error> {
//! let locks = tenure_etcd::connect("etcd://127.0.0.1").await?;
//! let guard = locks.mutex("invoice/42").acquire().await?;
//! let _released = guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! # Layout
//! Each holder and each waiter of a name has a key `<name>/<hex digits>`, with a lease of etcd of its
//! own. The order of their create revisions is the queue. Its first keys hold, for as long as their
//! shares fit; of mutexes that is one. A waiter watches the key in front of its own. This is the layout
//! of `etcdctl lock` and of the package `concurrency` of etcd's Go client. So they and tenure exclude
//! each other, and wait in one queue. Our keys have the owner token as their value; theirs are empty.
//!
//! # Fences
//! The fence is 1024 times a revision of etcd, so it rises with each write. A hold is confirmed by a write
//! to the key, or begins with the deletion of the key in front. `ETCD_LOCK_REV` of `etcdctl lock` is a
//! revision: a resource that both kinds of clients write to compares `TENURE_FENCE / 1024` with it.
//!
//! # Ttl
//! etcd counts in whole seconds, and keeps no lease for less than one and a half election timeouts: 2 s by
//! default. A ttl is rounded up to that. The grant says for how long.

mod confirm;
mod connection;
mod failure;
mod fresh;
mod grpc;
mod keys;
mod lease;
mod list;
mod login;
mod options;
mod proto;
mod queue;
mod release;
mod renew;
mod seen;
mod shared;
mod spare;
mod store;
mod take;
mod wait;
mod waits;
mod watch;

pub use self::options::Options;

/// Opens the store of a URL, and returns a [`Locker`](tenure::Locker) on it. [`Options`] has the URL's
/// parameters.
///
/// # Errors
/// As [`Options::open`].
pub async fn connect(url: &str) -> Result<tenure::Locker, tenure::Error> {
    Options::parse(url)?.connect().await
}
