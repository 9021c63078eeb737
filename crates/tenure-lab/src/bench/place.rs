//! Where a benchmark runs: a server of its own, or a store that was named.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use redis::{Client, Connection};
use serde::{Deserialize, Serialize};
use tenure::store::{Credentials, Login, Store};
use tenure::{Error, Locker, Owner};
use tenure_stores::Options;
use tenure_testkit::RedisServer;

use crate::bench::count::{Monitor, listen};

/// How to reach a store. Sent to the processes of a hand-over through a pipe, never as an argument.
#[derive(Clone, Serialize, Deserialize)]
pub struct Address {
    /// As `--store` takes it: `sqlite:PATH`, `redis://...`
    pub url: String,
    /// The user to log in as, instead of the URL's.
    pub username: Option<String>,
    /// The password to log in with, instead of the URL's.
    pub password: Option<String>,
    /// The file that has the password, instead of the two.
    pub password_file: Option<PathBuf>,
    /// The password to log in with at sentinels, instead of the URL's.
    pub sentinel_password: Option<String>,
}

impl Address {
    /// As the URL has it, without anything of the environment.
    pub fn of(url: &str) -> Self {
        // A scheme may have capitals.
        let (scheme, rest) = url.split_at(url.find(':').unwrap_or(0));
        let url = scheme.to_ascii_lowercase() + rest;
        Self { url, username: None, password: None, password_file: None, sentinel_password: None }
    }

    /// Opens the store once more, with a connection of its own.
    ///
    /// # Errors
    /// The URL's or the store's.
    pub async fn open(&self) -> Result<Arc<dyn Store>, Error> {
        self.options()?.open().await
    }

    /// Kind of store, in words.
    fn topology(&self) -> String {
        match Options::parse(&self.url) {
            Ok(Options::Redis(_)) => self.redis_topology(),
            Ok(Options::Sqlite(_)) => "an SQLite file".to_owned(),
            Ok(Options::Memcached(_)) => "memcached".to_owned(),
            Ok(Options::Postgres(_)) => "PostgreSQL".to_owned(),
            Ok(Options::MySql(_)) => "MariaDB or MySQL".to_owned(),
            Ok(Options::ZooKeeper(_)) => "ZooKeeper".to_owned(),
            Ok(Options::Etcd(_)) => "etcd".to_owned(),
            _ => "a store".to_owned(),
        }
    }

    fn redis_topology(&self) -> String {
        if self.is_quorum() {
            let hosts = self.url.split_once('?').map_or(&*self.url, |(hosts, _)| hosts);
            return format!("a quorum of {} Redis servers", hosts.split(',').count());
        }
        let groups = [("+sentinel://", "the master of a Sentinel group"), ("+cluster://", "a Redis Cluster")];
        let known = groups.iter().find(|(mark, _)| self.url.contains(mark));
        known.map_or("one Redis server", |(_, what)| what).to_owned()
    }

    /// Whether it names one Redis server, or several.
    fn is_redis(&self) -> bool {
        matches!(Options::parse(&self.url), Ok(Options::Redis(_)))
    }

    /// Whether the scheme of the URL has this in it.
    fn has(&self, part: &str) -> bool {
        self.url.split("//").next().is_some_and(|scheme| scheme.contains(part))
    }

    /// Whether it names several servers, of which each would count some calls or all.
    fn names_several(&self) -> bool {
        ["quorum+", "+sentinel:", "+cluster:"].iter().any(|part| self.has(part))
    }

    /// Whether it names the servers of a quorum.
    pub(crate) fn is_quorum(&self) -> bool {
        self.url.starts_with("quorum+")
    }

    /// The settings of the store, with the login.
    pub(crate) fn options(&self) -> Result<Options, Error> {
        let mut options = Options::parse(&self.url)?;
        let login = Login { user: self.username.clone(), password: self.password.clone() };
        options = options.credentials(login);
        if let Some(file) = &self.password_file {
            options = options.credentials(Credentials::password_file(file));
        }
        Ok(match (options, &self.sentinel_password) {
            (Options::Redis(options), Some(password)) => {
                Options::Redis(options.sentinel_credentials(Login::of_password(password)))
            }
            (options, _) => options,
        })
    }

    /// A locker over the store, which shares nothing with any other.
    pub(super) async fn locker(&self) -> Result<Locker, Error> {
        Locker::builder(self.open().await?).build()
    }

    /// The URL of each server that it names; of the servers behind sentinels none.
    fn servers(&self) -> Vec<String> {
        if !self.is_redis() || self.has("+sentinel:") {
            return Vec::new();
        }
        if !self.names_several() {
            return vec![self.url.clone()];
        }
        let (scheme, rest) = self.url.split_once("://").unwrap_or_default();
        let scheme = scheme.trim_start_matches("quorum+").trim_end_matches("+cluster");
        let (authority, behind) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (login, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        hosts.split(',').map(|host| format!("{scheme}://{login}{host}{behind}")).collect()
    }

    /// A plain connection to a server, to ask it about itself.
    fn connect(&self, url: &str) -> Result<Connection, Error> {
        let unseen =
            |error: redis::RedisError| Error::unreachable("the server cannot be asked what it executes").with_source(error);
        let mut info = redis::IntoConnectionInfo::into_connection_info(url).map_err(unseen)?;
        let mut login = info.redis_settings().clone();
        if let Some(username) = &self.username {
            login = login.set_username(username);
        }
        if let Some(password) = &self.password {
            login = login.set_password(password);
        }
        info = info.set_redis_settings(login);
        Client::open(info).and_then(|client| client.get_connection()).map_err(unseen)
    }
}

/// Without the password.
impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address").finish_non_exhaustive()
    }
}

/// Where a benchmark runs.
#[derive(Debug)]
pub struct Place {
    pub(super) address: Address,
    /// Text that keeps the names of one run apart from those of others.
    run: String,
    /// Why the server cannot be asked what it executes.
    uncounted: Option<Error>,
    _server: Option<RedisServer>,
}

impl Place {
    /// Starts a redis-server for this benchmark alone.
    pub fn of_its_own() -> Result<Self, Error> {
        let server = RedisServer::start();
        let address = Address::of(&server.url());
        Self::new(address, Some(server))
    }

    /// Uses a store that is there. Whatever others send to it is counted as ours.
    pub fn at(address: Address) -> Result<Self, Error> {
        Self::new(address, None)
    }

    fn new(address: Address, server: Option<RedisServer>) -> Result<Self, Error> {
        let watched = |url: &String| address.connect(url).and_then(listen);
        let uncounted = if address.names_several() { None } else { address.servers().iter().find_map(|url| watched(url).err()) };
        Ok(Self { address, run: Owner::generate("")?.to_string(), uncounted, _server: server })
    }

    /// Kind of store that is measured, in words.
    pub fn topology(&self) -> String {
        self.address.topology()
    }

    /// Why commands are not counted though there is a server: it does not let us watch it.
    pub fn uncounted(&self) -> Option<&Error> {
        self.uncounted.as_ref()
    }

    pub(super) fn name(&self, what: &str) -> String {
        format!("tenure-bench{}/{what}", self.run)
    }

    /// A connection to each server, where all of them may be asked.
    pub(super) fn servers(&self) -> Vec<Connection> {
        let connected = || self.address.servers().iter().map(|url| self.address.connect(url)).collect::<Result<_, _>>();
        if self.uncounted.is_some() { Vec::new() } else { connected().unwrap_or_default() }
    }

    /// Begins to count what clients send, where there is one server, and it counts.
    pub(super) fn monitor(&self) -> Result<Option<Monitor>, Error> {
        if self.address.names_several() {
            return Ok(None);
        }
        self.servers().pop().zip(self.servers().pop()).map(|(listener, speaker)| Monitor::begin(listener, speaker)).transpose()
    }
}
