//! Locks on Redis and Valkey: the [`tenure`] store for one server, 6.2 or newer.
//!
//! ```no_run
//! # async fn example() -> Result<(), tenure::Error> {
//! let locks = tenure_redis::connect("redis://127.0.0.1").await?;
//! let guard = locks.mutex("invoice/42").acquire().await?;
//! guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! URLs and their parameters are told at [`Options`]. The layout is the one that clients of `SET NX PX` share: `<name>` holds the
//! owner of a mutex, `tenure:fence` the grant counter that fences are made of. Readers, writers and permits are a sorted set at
//! `<name>`. Those who wait are in `{<tag>}:q:<name>` and `{<tag>}:p:<name>`, the weights of shares in `{<tag>}:s:<name>`, where the
//! tag leads to the slot of the name. All of it is under the prefix.
//!
//! What a user needs of a server with access control: the keys under the prefix, the channels `<prefix>tenure:wake:*`, and `MULTI`, `EXEC`,
//! `SET`, `INCR`, `EXISTS`, `EVAL`, `EVALSHA` with what the scripts call (`+@read +@write +@scripting +@transaction +@pubsub +@connection
//! +time` has all of it). `CLIENT KILL` and `CLIENT INFO` end predecessors, `SUBSCRIBE` and `PUBLISH` wake waiters, and `FUNCTION LOAD` with `FCALL`
//! save a quarter of a hand-over's time at the server; without one of these locks work, as told in `GUARANTEES.md`. Each version of the
//! functions is a library `tenure_<digest>` that stays on the server, with its data; `FUNCTION DELETE` of one does no harm.
//!
//! Locks of other libraries, and of programs that send the commands themselves, are taken as they have them: see [`Scheme`]. In those whose values do
//! not say who holds, that is in `{<tag>}:o:<name>`.

// Examples are code that users copy: they compile without a warning, but for a value that an example only shows.
#![doc(test(attr(deny(warnings), allow(dead_code, unused_variables))))]

mod commands;
mod connection;
mod counter;
mod dial;
mod failure;
mod frame;
mod handshake;
mod inspect;
mod keys;
mod link;
mod multiplex;
mod native;
mod optimistic;
mod options;
mod plain;
mod push;
mod renew;
mod reply;
mod scheme;
mod script;
mod stamp;

#[cfg(feature = "redis-1")]
mod brought;

#[cfg(feature = "redis-1")]
pub use crate::brought::over;
pub use crate::native::RedisStore;
pub use crate::options::Options;
pub use crate::scheme::Scheme;

/// Connects to the server at `url` and makes sure that it answers.
///
/// # Errors
/// [`Invalid`](tenure::ErrorKind::Invalid) for a bad URL, [`Unreachable`](tenure::ErrorKind::Unreachable) when nobody answers within
/// 5 s, [`Refused`](tenure::ErrorKind::Refused) when the server does not let us in.
pub async fn connect(url: &str) -> Result<tenure::Locker, tenure::Error> {
    Ok(tenure::Locker::new(Options::parse(url)?.open().await?))
}

/// The README's example is tested as the examples here are.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
