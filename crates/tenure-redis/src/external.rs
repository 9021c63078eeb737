//! Locks over an external connection.

use std::time::Duration;

use redis::aio::ConnectionLike;

use crate::native::keys::Layout;
use crate::native::store::RedisStore;
use crate::transport::connection::Connection;
use crate::transport::link::Link;

/// Returns a store over an external connection: a `redis` 1.x connection of the application, such
/// as a `MultiplexedConnection` or a `ConnectionManager`.
///
/// The application has to replace the connection when it breaks. If it does not reconnect by
/// itself, locks are lost at their deadlines. Commands that were sent when it broke may still run,
/// so clean-ups are repeated until a ttl has passed. If the connection has a response timeout below
/// tenure's operation timeout, its own applies. Do not use a connection that blocks in `BLPOP` or
/// `WAIT`.
///
/// `prefix` is put in front of every key. It may be empty.
pub fn over<C>(connection: C, prefix: &str) -> RedisStore
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let connection = Connection::external(Link::external(connection));
    let layout = Layout::new(prefix);
    RedisStore::over(connection.into(), layout, "a connection of the application's", None, Duration::from_millis(100))
}
