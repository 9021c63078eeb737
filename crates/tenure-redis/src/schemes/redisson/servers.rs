//! Where the keys of a name are: at one server, or at a node of a cluster.

use std::time::Duration;

use tenure::{Error, Name};

use crate::native::cluster::Cluster;
use crate::native::store::RedisStore;

/// The server that has all names, or the nodes that share them.
pub(crate) enum Servers {
    One(RedisStore),
    Cluster(Cluster),
}

impl Servers {
    /// The store, or that at one of the nodes.
    pub(super) fn any(&self) -> &RedisStore {
        match self {
            Self::One(redis) => redis,
            Self::Cluster(cluster) => &cluster.redis,
        }
    }

    /// Makes a call where all keys of `name` are.
    pub(super) async fn at<T, F>(&self, name: &Name, ttl: Duration, call: impl Fn(RedisStore) -> F + Sync) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        match self {
            Self::One(redis) => call(redis.clone()).await,
            Self::Cluster(cluster) => cluster.at_one_node(name, cluster.redis.end(ttl), call).await,
        }
    }

    /// The command that publishes on a channel of a name.
    pub(super) const fn publish(&self) -> &'static [u8] {
        match self {
            Self::One(_) => b"PUBLISH",
            Self::Cluster(_) => b"SPUBLISH",
        }
    }
}
