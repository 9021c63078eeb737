//! Locks on Redis and Valkey: the [`tenure`] store for servers of 6.2 or newer.
//!
//! ```no_run
//! # async fn example() -> Result<(), tenure::Error> {
//! let locks = tenure_redis::connect("redis://127.0.0.1").await?;
//! let guard = locks.mutex("invoice/42").acquire().await?;
//! guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! [`Options`] has the URLs and their parameters. The native layout is the one that clients of `SET
//! NX PX` share: `<name>` holds the owner of a mutex, and `tenure:fence` the grant counter that
//! fences are made of. Readers, writers and permits are a sorted set at `<name>`. Waiters are in
//! `{<tag>}:q:<name>` and `{<tag>}:p:<name>`, the weights of shares in `{<tag>}:s:<name>`. The tag
//! leads to the slot of the name. In a cluster each slot has a counter, `{<tag>}:g:tenure:fence`. At a
//! node of a quorum each name has one, in `tenure:node`, and the processes that a release notifies
//! are in `{<tag>}:h:<name>`. All keys are under the prefix.
//!
//! On a server with access control, the user needs the keys under the prefix, the channels
//! `<prefix>tenure:wake:*` (in a cluster `<prefix>{*}:w:*` as well), and `MULTI`, `EXEC`, `SET`, `INCR`, `EXISTS`, `EVAL`, `EVALSHA` with
//! what the scripts call. `+@read +@write +@scripting +@transaction +@pubsub +@connection +time`
//! has all of it. `CLIENT KILL` and `CLIENT INFO` end predecessors, `SUBSCRIBE` and `PUBLISH` wake
//! waiters, and `FUNCTION LOAD` with `FCALL` save a quarter of the server's time for a hand-over.
//! Locks work without these as well: `GUARANTEES.md` says how. Each version of the functions is a
//! library `tenure_<digest>`, which stays on the server with its data. `FUNCTION DELETE` of one
//! does no harm.
//!
//! Tenure can keep locks as other libraries do, or programs that send the commands themselves: see
//! [`Scheme`] and [`Options::profile`]. Waiters of some profiles use `CLIENT TRACKING` and `CLIENT
//! CACHING`, and poll without them. If the values of a scheme do not say who holds, the owner is in `{<tag>}:o:<name>`.

// Examples compile without a warning, except for a value that an example only shows.
#![doc(test(attr(deny(warnings), allow(dead_code, unused_variables))))]

mod cluster;
#[cfg(feature = "redis-1")]
mod external;
pub mod fenced;
mod native;
mod options;
mod schemes;
mod scripts;
mod transport;

pub use crate::cluster::ClusterStore;
#[cfg(feature = "redis-1")]
pub use crate::external::over;
pub use crate::native::advice::Advice;
pub use crate::native::durability::Durability;
pub use crate::native::node::RedisNode;
pub use crate::native::store::RedisStore;
pub use crate::options::Options;
pub use crate::schemes::scheme::Scheme;

/// Connects to the server at `url` and makes sure that it answers.
///
/// # Errors
/// [`Invalid`](tenure::ErrorKind::Invalid) for a bad URL,
/// [`Unreachable`](tenure::ErrorKind::Unreachable) if no server answers within 5 s,
/// [`Refused`](tenure::ErrorKind::Refused) if the server refuses the login.
pub async fn connect(url: &str) -> Result<tenure::Locker, tenure::Error> {
    Ok(tenure::Locker::new(Options::parse(url)?.open().await?))
}

/// The README's example is tested as the examples here are.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
