//! Locks over a connection that the application has already.

use std::time::Duration;

use redis::aio::ConnectionLike;

use crate::native::store::RedisStore;
use crate::transport::connection::Connection;
use crate::transport::link::Link;

/// Locks over a `redis` 1.x connection of the application's, such as a `MultiplexedConnection` or a `ConnectionManager`.
///
/// The connection is the application's to mend: where it does not reconnect by itself, locks are lost at their deadline when it
/// breaks. What it had under way when it broke may still run, so clean-ups are repeated until a ttl has passed. A connection with a
/// response timeout below tenure's operation timeout reports its own. Do not bring one that blocks in `BLPOP` or `WAIT`.
///
/// `prefix` is put in front of every key; empty for none.
pub fn over<C>(connection: C, prefix: &str) -> RedisStore
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let connection = Connection::external(Link::external(connection));
    RedisStore::over(connection, "a connection of the application's", prefix, None, Duration::from_millis(100))
}
