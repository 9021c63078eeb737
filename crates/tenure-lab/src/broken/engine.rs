//! The engines that schemes run on: a real server of each, and the times of a story on it.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tenure_testkit::{MemcachedServer, RedisServer, ZooKeeperServer};

use super::command::LOCK;

/// The kind of server that keeps the locks of a scheme.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Engine {
    #[default]
    Redis,
    /// A table of SQLite, which has no server.
    Table,
    Memcached,
    ZooKeeper,
}

impl Engine {
    /// How long a step of a played story is at first.
    ///
    /// memcached counts in whole seconds, and its clock is up to two seconds behind. An item for
    /// 8 s is gone after 6 s to 9 s. So with steps of 5 s it is there in the step after its own,
    /// and gone in the one after that.
    ///
    /// ZooKeeper ends a session up to a tick of 0.2 s late, and counts from the last ping. Steps of
    /// 3 s leave room for both.
    pub(crate) const fn step(self) -> Duration {
        match self {
            Self::Redis | Self::Table => Duration::from_millis(120),
            Self::Memcached => Duration::from_secs(5),
            Self::ZooKeeper => Duration::from_secs(3),
        }
    }

    /// How long the moves of a step may take, if half a step is too long.
    pub(crate) const fn patience(self) -> Duration {
        match self {
            Self::Memcached => Duration::from_secs(1),
            Self::Redis | Self::Table | Self::ZooKeeper => Duration::MAX,
        }
    }
}

/// A real server, for one story.
pub(crate) enum Server {
    Redis(RedisServer),
    Table,
    Memcached(MemcachedServer),
    ZooKeeper(ZooKeeperServer),
}

impl Server {
    /// Starts one. `jumps`: its clock is to be set.
    pub(crate) fn start(engine: Engine, jumps: bool) -> Self {
        assert!(!jumps || engine == Engine::Redis, "only the clock of Redis can be set");
        match engine {
            Engine::Redis if jumps => Self::Redis(RedisServer::builder().shifted_clock().start()),
            Engine::Redis => Self::Redis(RedisServer::start()),
            Engine::Table => Self::Table,
            // As small as it can be, so that it is soon full.
            Engine::Memcached => Self::Memcached(
                ["-m", "1", "-I", "512k"].iter().fold(MemcachedServer::builder(), |how, arg| how.arg(arg)).start(),
            ),
            Engine::ZooKeeper => Self::ZooKeeper(ZooKeeperServer::start()),
        }
    }

    /// Where it listens.
    pub(crate) fn addr(&self) -> SocketAddr {
        match self {
            Self::Redis(server) => server.addr(),
            Self::Table => (Ipv4Addr::LOCALHOST, 0).into(),
            Self::Memcached(server) => server.addr(),
            Self::ZooKeeper(server) => server.addr(),
        }
    }

    /// The Redis, for what can be done to no other server.
    pub(crate) fn redis(&self) -> &RedisServer {
        match self {
            Self::Redis(server) => server,
            _ => panic!("this can be played on Redis alone"),
        }
    }

    /// Kills it, and starts it again without its data.
    pub(crate) fn restart_empty(&self) {
        match self {
            Self::Memcached(server) => server.restart(),
            other => {
                other.redis().kill();
                other.redis().restart_empty();
            }
        }
    }

    /// Fills it with other items until it evicts the lock.
    pub(crate) fn evict(&self) {
        match self {
            Self::Memcached(server) => server.evict(LOCK),
            _ => panic!("only memcached evicts what has an end"),
        }
    }
}
