//! The engines of the stories: a real server of each, and the times of a story on it.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_testkit::{MemcachedServer, Proxy, RedisServer, ZooKeeperServer};

/// The name that is the lock, in every story.
pub(super) const LOCK: &str = "lock";

/// The kind of server that keeps a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Engine {
    Redis,
    /// A table of SQLite, which has no server.
    Table,
    Memcached,
    ZooKeeper,
}

impl Engine {
    /// How long a step of a story is at first.
    ///
    /// memcached counts in whole seconds, and its clock is up to two seconds behind. An item for
    /// 8 s is gone after 6 s to 9 s. With steps of 5 s it is there in the step after its own, and
    /// gone in the one after that.
    ///
    /// ZooKeeper ends a session up to a tick of 0.2 s late, and counts from the last ping. Steps of
    /// 3 s leave room for both.
    pub(super) const fn step(self) -> Duration {
        match self {
            Self::Redis | Self::Table => Duration::from_millis(120),
            Self::Memcached => Duration::from_secs(5),
            Self::ZooKeeper => Duration::from_secs(3),
        }
    }

    /// How long the parts of a step may take, if half a step is too long.
    pub(super) const fn patience(self) -> Duration {
        match self {
            Self::Memcached => Duration::from_secs(1),
            Self::Redis | Self::Table | Self::ZooKeeper => Duration::MAX,
        }
    }
}

/// A real server, for one story.
pub(super) enum Server {
    /// Behind it, where it is to take over, a replica.
    Redis(RedisServer, Option<Box<(RedisServer, Proxy)>>),
    Table,
    Memcached(MemcachedServer),
    ZooKeeper(ZooKeeperServer),
}

impl Server {
    /// Starts one. `jumps`: its clock is to be set. `fails_over`: a replica is to take over.
    pub(super) fn start(engine: Engine, jumps: bool, fails_over: bool) -> Self {
        match engine {
            Engine::Redis => {
                let server = RedisServer::builder();
                let server = if jumps { server.shifted_clock() } else { server }.start();
                let replica = fails_over.then(|| deaf_replica(&server));
                Self::Redis(server, replica)
            }
            Engine::Table => Self::Table,
            // As small as it can be, so that it is soon full.
            Engine::Memcached => Self::Memcached(
                ["-m", "1", "-I", "512k"].iter().fold(MemcachedServer::builder(), |how, arg| how.arg(arg)).start(),
            ),
            Engine::ZooKeeper => Self::ZooKeeper(ZooKeeperServer::start()),
        }
    }

    pub(super) fn addr(&self) -> SocketAddr {
        match self {
            Self::Redis(server, _) => server.addr(),
            Self::Table => (Ipv4Addr::LOCALHOST, 0).into(),
            Self::Memcached(server) => server.addr(),
            Self::ZooKeeper(server) => server.addr(),
        }
    }

    /// The Redis, for what can be done to no other server.
    pub(super) fn redis(&self) -> &RedisServer {
        match self {
            Self::Redis(server, _) => server,
            _ => panic!("this can be played on Redis alone"),
        }
    }

    /// Kills it, and starts it again without its data.
    pub(super) fn restart_empty(&self) {
        match self {
            Self::Memcached(server) => server.restart(),
            other => {
                other.redis().kill();
                other.redis().restart_empty();
            }
        }
    }

    /// Fills it with other items until it evicts the lock.
    pub(super) fn evict(&self) {
        match self {
            Self::Memcached(server) => server.evict(LOCK),
            _ => panic!("only memcached evicts what has an end"),
        }
    }

    /// Kills it, and its replica takes over. That gets a replica of its own, as after every
    /// failover.
    pub(super) fn fail_over(&mut self) {
        let Self::Redis(server, replica) = self else { panic!("only Redis has a replica") };
        let (promoted, _link) = *replica.take().expect("made at the beginning");
        server.kill();
        promoted.promote();
        *self = Self::Redis(promoted, None);
        let next = deaf_replica(self.redis());
        if let Self::Redis(_, replica) = self {
            *replica = Some(next);
        }
    }
}

/// A replica that has everything up to now, and hears nothing from now on, though its primary does
/// not know.
fn deaf_replica(primary: &RedisServer) -> Box<(RedisServer, Proxy)> {
    let link = Proxy::start_opaque(primary.addr());
    let replica = RedisServer::builder().replica_at(link.addr()).start();
    link.black_hole();
    Box::new((replica, link))
}
