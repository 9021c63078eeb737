//! From options to a store that is connected.

use std::sync::Arc;

use tenure::Error;
use tenure::compose::quorum::{Node, Quorum};
use tenure::store::Store;

use super::Options;
use super::server::Server;
use super::topology::Topology;
use crate::cluster::ClusterStore;
use crate::native::advice::Listener;
use crate::native::cluster::Cluster;
use crate::native::durability::Durability;
use crate::native::first_contact::first_contact;
use crate::native::node::{RedisNode, Runs};
use crate::native::store::{RedisStore, Settings};
use crate::schemes::majority::MajorityStore;
use crate::schemes::optimistic::Watched;
use crate::schemes::redisson::{RedissonStore, Servers};
use crate::schemes::scheme::{Prefixes, Scheme};
use crate::schemes::set_nx::SetNxStore;
use crate::schemes::timestamp::{TimestampStore, Unit};
use crate::transport::address::Address;
use crate::transport::nodes::Nodes;

impl Options {
    /// Connects with the native scheme, and makes sure that the server answers.
    ///
    /// # Errors
    /// [`Unreachable`](tenure::ErrorKind::Unreachable) if no server answers within 5 s,
    /// [`Refused`](tenure::ErrorKind::Refused) if it refuses the login,
    /// [`Invalid`](tenure::ErrorKind::Invalid) if a TLS file cannot be used, or for another scheme.
    pub async fn connect(self) -> Result<RedisStore, Error> {
        if self.scheme != Scheme::Native {
            return Err(Error::invalid(format!("{:?} is not the native scheme", self.scheme)).with_hint("use Options::open"));
        }
        if self.topology != Topology::One {
            return Err(Error::invalid(format!("the store URL names a {}", self.topology)).with_hint("use Options::open"));
        }
        RedisStore::connect(&self.settings(&self.servers[0], self.prefix.clone())?).await
    }

    /// Makes a node of a [quorum](tenure::compose::quorum::Quorum), which connects with its first
    /// call.
    ///
    /// # Errors
    /// [`Invalid`](tenure::ErrorKind::Invalid) if a TLS file cannot be used, or for another scheme.
    pub fn node(self) -> Result<Arc<RedisNode>, Error> {
        let is_native = self.scheme == Scheme::Native && self.durability == Durability::None;
        if !is_native || self.topology != Topology::One || self.group.is_some() {
            return Err(Error::invalid(format!("{self} is no node")).with_hint("name one server, without scheme="));
        }
        RedisNode::connect_later(&self.settings(&self.servers[0], self.prefix.clone())?, &Runs::default())
    }

    /// Connects as [`connect`](Options::connect) does, for any scheme.
    ///
    /// # Errors
    /// As [`connect`](Options::connect).
    pub async fn open(self) -> Result<Arc<dyn Store>, Error> {
        self.check_scheme()?;
        let prefixes = match (self.scheme, self.profile) {
            (Scheme::SetNx, Some(profile)) => profile.prefixes(&self.prefix)?,
            (Scheme::Php, _) => Prefixes::of(format!("{}Lock:", self.prefix)),
            _ => Prefixes::of(self.prefix.clone()),
        };
        match self.topology {
            Topology::One => {}
            Topology::Quorum => return Ok(Arc::new(self.quorum().await?)),
            Topology::Cluster => {
                let cluster = self.nodes().await?;
                return Ok(match self.scheme {
                    Scheme::Redisson | Scheme::RedissonFair => {
                        Arc::new(RedissonStore::new(Servers::Cluster(cluster), self.scheme == Scheme::RedissonFair))
                    }
                    _ => Arc::new(ClusterStore::new(cluster)),
                });
            }
        }
        let settings = self.settings(&self.servers[0], prefixes.name.clone())?;
        let redis = RedisStore::connect(&settings).await?;
        Ok(match self.scheme {
            Scheme::Native => Arc::new(redis),
            Scheme::SetNx if !prefixes.further.is_empty() => Arc::new(MajorityStore::new(redis, prefixes)),
            Scheme::SetNx => Arc::new(SetNxStore::at(redis, prefixes)),
            Scheme::SetnxExpire | Scheme::SetnxExpireLua => Arc::new(SetNxStore::new(redis, true)),
            Scheme::Php => Arc::new(TimestampStore::new(redis, Unit::Php)),
            Scheme::Getset => Arc::new(TimestampStore::new(redis, self.unit)),
            Scheme::Redisson => Arc::new(RedissonStore::new(Servers::One(redis), false)),
            Scheme::RedissonFair => Arc::new(RedissonStore::new(Servers::One(redis), true)),
            Scheme::Watch => Arc::new(Watched::connect(redis, &settings).await?),
        })
    }

    /// Connects to the servers of a `quorum+redis://` URL, as soon as a majority of them answers.
    ///
    /// # Errors
    /// As [`connect`](Options::connect), and [`Invalid`](tenure::ErrorKind::Invalid) for a URL of
    /// one server.
    pub async fn quorum(&self) -> Result<Quorum, Error> {
        let (quorum, nodes) = self.quorum_and_nodes()?;
        first_contact(nodes.clone()).await?;
        if let Some(listener) = self.listener() {
            for node in &nodes {
                listener.ask(node.connection(), &node.to_string(), true);
            }
        }
        Ok(quorum)
    }

    /// Makes the quorum of a `quorum+redis://` URL, which connects with its first call. It waits for no server.
    ///
    /// # Errors
    /// [`Invalid`](tenure::ErrorKind::Invalid) for a URL of one server, or a file that cannot be read.
    pub fn quorum_later(&self) -> Result<Quorum, Error> {
        Ok(self.quorum_and_nodes()?.0)
    }

    fn quorum_and_nodes(&self) -> Result<(Quorum, Vec<Arc<RedisNode>>), Error> {
        if !self.is_quorum() {
            return Err(Error::invalid(format!("{self} is one server")).with_hint("write quorum+redis://host,host,host"));
        }
        let runs = Runs::default();
        let node = |server| RedisNode::connect_later(&self.settings(server, self.prefix.clone())?, &runs);
        let nodes = self.servers.iter().map(node).collect::<Result<Vec<_>, Error>>()?;
        let quorum =
            Quorum::new(nodes.iter().map(|node| Arc::clone(node) as Arc<dyn Node>).collect())?.with_timeout(self.timeout);
        Ok((quorum.with_node_timeout(self.node_timeout).with_poll_interval(self.poll_interval), nodes))
    }

    /// Connects to a cluster, as soon as one of the nodes of a `redis+cluster://` URL answers.
    ///
    /// # Errors
    /// As [`connect`](Options::connect), and [`Invalid`](tenure::ErrorKind::Invalid) for another
    /// URL, or for a prefix by which keys of one name would be in different slots.
    pub async fn cluster(&self) -> Result<ClusterStore, Error> {
        if self.scheme != Scheme::Native {
            return Err(Error::invalid(format!("{:?} is not the native scheme", self.scheme)).with_hint("use Options::open"));
        }
        Ok(ClusterStore::new(self.nodes().await?))
    }

    /// The nodes of a cluster.
    async fn nodes(&self) -> Result<Cluster, Error> {
        let no_cluster = || Error::invalid(format!("{self} is no cluster")).with_hint("write redis+cluster://host,host");
        if self.topology != Topology::Cluster {
            return Err(no_cluster());
        }
        let seeds = self.servers.iter().map(|server| server.address().ok_or_else(no_cluster)).collect::<Result<Vec<_>, _>>()?;
        let like = self.servers[0].clone();
        let dial = Box::new(move |address: &Address| like.beside(address).peer());
        let nodes = Nodes::open(dial, seeds, &self.prefix).await.map_err(|error| error.context(self))?;
        Cluster::new(nodes, &self.prefix, &self.to_string(), self.timeout, self.poll_interval, self.listener())
    }

    /// Listener to settings that endanger locks, if anybody is to hear of them.
    fn listener(&self) -> Option<Listener> {
        self.advice.clone().filter(|_| !self.quiet)
    }

    fn settings(&self, server: &Server, prefix: String) -> Result<Settings, Error> {
        let (timeout, poll_interval) = (self.timeout, self.poll_interval);
        let shown = if self.is_quorum() { server.to_string() } else { self.to_string() };
        let peer = server.peer()?;
        let advice = self.listener();
        let sentinels = self.group.as_ref().map(|group| group.sentinels(&peer)).transpose()?;
        Ok(Settings { peer, sentinels, shown, prefix, timeout, poll_interval, durability: self.durability, advice })
    }
}
