//! The server of its own that a soak has, of each engine.

use super::server::OwnServer;
use super::{database, etcd, memcached, zookeeper};
use crate::soak::plan::Engine;

/// Starts a server for a soak.
pub(crate) fn own_server(engine: Engine) -> OwnServer {
    match engine {
        Engine::Etcd => etcd::own_server(),
        Engine::MariaDb => database::MARIADB.own_server(),
        Engine::Memcached => memcached::own_server(),
        Engine::Postgres => database::POSTGRES.own_server(),
        Engine::ZooKeeper => zookeeper::own_server(),
    }
}
