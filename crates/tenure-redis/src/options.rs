//! URLs of Redis servers, and their parameters.

mod open;
mod parameters;
mod sentinel;
mod server;
mod topology;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure::Error;
use tenure::store::Credentials;

use self::sentinel::Group;
use self::server::Server;
use self::topology::{Topology, servers};
use crate::native::advice::{Advice, Listener};
use crate::native::durability::Durability;
use crate::native::foreign::is_parted;
use crate::native::keys::check_hash_tag;
use crate::schemes::scheme::{Profile, Scheme};
use crate::schemes::timestamp::Unit;

/// Settings of a connection to one Redis or Valkey server, read from a URL.
///
/// | form | meaning |
/// |---|---|
/// | `redis://[user:password@]host[:port][/db]` | plain TCP; `valkey://` is the same |
/// | `rediss://...` | TLS; `valkeys://` is the same |
/// | `redis+unix:///path` | a unix socket; `valkey+unix://` and `unix://` are the same |
/// | `redis+cluster://[user:password@]host:port,host:port,...` | a [Redis Cluster](crate::ClusterStore), by one or more of its nodes; `rediss+cluster://` with TLS |
/// | `redis+sentinel://[user:password@]host[:port],host[:port],.../service[/db]` | the master that Sentinels name; `rediss+sentinel://` with TLS |
/// | `quorum+redis://[user:password@]host:port,host:port,...` | a [quorum](tenure::compose::quorum::Quorum) of independent servers; `quorum+rediss://` with TLS |
///
/// The parameters are [`PARAMETERS`](Self::PARAMETERS). More about some of them is at [`Durability`], [`Advice`],
/// [`Scheme`] and [`Options::profile`].
#[derive(Clone)]
pub struct Options {
    /// One; the nodes of a quorum; or some of a cluster.
    servers: Vec<Server>,
    topology: Topology,
    /// If there is one, it says where the one server is.
    group: Option<Group>,
    /// For the nodes of a quorum.
    node_timeout: Option<Duration>,
    prefix: String,
    timeout: Option<Duration>,
    poll_interval: Duration,
    durability: Durability,
    scheme: Scheme,
    profile: Option<Profile>,
    /// The unit of the values of [`Scheme::Getset`].
    unit: Unit,
    /// A parameter of the URL that only that scheme has.
    getset: Option<&'static str>,
    advice: Option<Listener>,
    /// Nobody is to hear of settings that endanger locks.
    quiet: bool,
}

impl Options {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`Invalid`](tenure::ErrorKind::Invalid) naming what is wrong, never the password.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.contains('#') {
            // Not shown: what follows may be the rest of a password.
            let what = "the store URL has a #, and what follows one means nothing here";
            return Err(Error::invalid(what).with_hint("leave it out, or write %23 for a # that is part of a name or password"));
        }
        let (topology, servers, group, parameters) = match Group::read(text)? {
            Some((group, server, parameters)) => (Topology::One, vec![server], Some(group), parameters),
            None => servers(text).map(|(topology, servers, parameters)| (topology, servers, None, parameters))?,
        };
        let mut options = Self {
            servers,
            topology,
            group,
            node_timeout: None,
            prefix: String::new(),
            timeout: None,
            poll_interval: Duration::from_millis(100),
            durability: Durability::None,
            scheme: Scheme::Native,
            profile: None,
            unit: Unit::Millis,
            getset: None,
            advice: None,
            quiet: false,
        };
        options.set_all(&parameters)?;
        options.machines().try_for_each(|server| server.check())?;
        options.check_databases()?;
        options.check_scheme()?;
        Ok(options)
    }

    /// All that a connection is made to.
    fn machines(&mut self) -> impl Iterator<Item = &mut Server> {
        self.servers.iter_mut().chain(self.group.iter_mut().flat_map(|group| &mut group.sentinels))
    }

    /// Whether the URL names the nodes of a quorum.
    fn is_quorum(&self) -> bool {
        self.topology == Topology::Quorum
    }

    fn check_databases(&self) -> Result<(), Error> {
        let odd = |server: &&Server| self.topology == Topology::Cluster && server.address().is_none();
        self.servers.iter().find(odd).map_or(Ok(()), |server| {
            let what = format!("{server} can be no node of a cluster");
            Err(Error::invalid(what).with_hint("name nodes by host and port, without a database: a cluster has one"))
        })
    }

    fn check_scheme(&self) -> Result<(), Error> {
        let of_redisson = matches!(self.scheme, Scheme::Redisson | Scheme::RedissonFair);
        if self.topology == Topology::Cluster {
            check_hash_tag(&self.prefix)?;
        }
        if self.topology == Topology::Cluster && of_redisson && is_parted(&format!("{}x", self.prefix)) {
            let what = format!("prefix={} has braces by which Redisson keeps the keys of one name in two slots", self.prefix);
            return Err(Error::invalid(what).with_hint("leave them out, or put a pair around some of it, as in {app}:"));
        }
        let serves = self.topology == Topology::One || self.topology == Topology::Cluster && of_redisson;
        if !serves && self.scheme != Scheme::Native {
            let (scheme, places) = (self.scheme.name(), if of_redisson { "one server or a cluster" } else { "one server" });
            let what = format!("scheme={scheme} is for {places}, and the store URL names a {}", self.topology);
            return Err(Error::invalid(what).with_hint(format!("leave it out, or name {places}")));
        }
        if self.durability != Durability::None && (self.topology != Topology::One || self.scheme != Scheme::Native) {
            let what = format!("durability={} is for the native scheme on one server or a Sentinel group", self.durability);
            return Err(
                Error::invalid(what).with_hint("leave it out: a quorum keeps a grant on a majority, and others have none")
            );
        }
        if let Some(key) = self.getset.filter(|_| self.scheme != Scheme::Getset) {
            let what = format!("{key}= is for scheme=getset, and the store URL has another");
            return Err(Error::invalid(what).with_hint("add scheme=getset"));
        }
        match self.profile {
            Some(_) if self.scheme != Scheme::SetNx => {
                Err(Error::invalid("profile= is for scheme=set-nx, and the store URL has another").with_hint("add scheme=set-nx"))
            }
            Some(profile) => profile.prefixes(&self.prefix).map(drop),
            None => Ok(()),
        }
    }

    /// Sets the scheme, instead of the URL's.
    #[must_use]
    pub fn scheme(mut self, scheme: Scheme) -> Self {
        self.scheme = scheme;
        self
    }

    /// For [`Scheme::Getset`]: values are in seconds, not in milliseconds.
    #[must_use]
    pub fn seconds(mut self) -> Self {
        self.unit = Unit::Seconds;
        self
    }

    /// Keeps locks with [`Scheme::SetNx`] at the keys of this library, e.g. `redis-py` or
    /// `pottery`. Some have a prefix of their own: for `shedlock` it is the environment, for
    /// `spring` the registry key. `rueidislock` takes two of three keys, as it ships;
    /// `rueidislock-one` is for clients that are set to a majority of one.
    ///
    /// Tenure and a library then exclude each other if the library uses one server. They do not if
    /// it takes a majority of several servers (RedLock). A release wakes the waiters of `spring`,
    /// `python-redis-lock` and `rueidislock`, and tenure's waiters are woken by theirs.
    ///
    /// # Errors
    /// [`Invalid`](tenure::ErrorKind::Invalid) for a library whose keys are not known; the error
    /// lists those that are.
    pub fn profile(mut self, library: &str) -> Result<Self, Error> {
        (self.scheme, self.profile) = (Scheme::SetNx, Some(library.parse()?));
        self.check_scheme()?;
        Ok(self)
    }

    /// Sets how to log in, at each server. What these credentials lack is taken from the URL.
    #[must_use]
    pub fn credentials(mut self, credentials: impl Into<Credentials>) -> Self {
        let credentials = credentials.into();
        self.servers.iter_mut().for_each(|server| server.credentials = credentials.or(&server.credentials));
        self
    }

    /// Sets the copies that have to be confirmed before a grant or a renewal counts, instead of the
    /// URL's. [`connect`](Options::connect) and [`open`](Options::open) refuse it for a quorum and
    /// for other schemes than the native one.
    #[must_use]
    pub fn durability(mut self, level: Durability) -> Self {
        self.durability = level;
        self
    }

    /// Has `listener` hear once of settings of a server that endanger locks, with the server's name, and logs
    /// them as warnings of `tracing`. The server is asked beside the first calls, which do not wait for it, with
    /// `INFO` and `CONFIG GET`. A user who may not send them hears nothing. Of a cluster, each master is asked
    /// when it is first used. A server of a quorum may [forget](Advice::Forgets): it does not vote for a while.
    #[must_use]
    pub fn on_advice(mut self, listener: impl Fn(&str, Advice) + Send + Sync + 'static) -> Self {
        self.advice = Some(Listener(Arc::new(listener)));
        self
    }

    /// Sets how to log in at the Sentinels of a `redis+sentinel://` URL. They are not sent the login of the servers.
    #[must_use]
    pub fn sentinel_credentials(mut self, credentials: impl Into<Credentials>) -> Self {
        let credentials = credentials.into();
        self.group.iter_mut().for_each(|group| group.log_in(&credentials));
        self
    }
}

/// The server without secrets, for messages.
impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(group) = &self.group {
            write!(f, "{group}")?;
        }
        for (at, server) in self.servers.iter().enumerate().filter(|_| self.group.is_none()) {
            let between = match at {
                0 if self.is_quorum() => "quorum of ",
                0 if self.topology == Topology::Cluster => "the cluster of ",
                0 => "",
                _ => ", ",
            };
            write!(f, "{between}{server}")?;
        }
        if self.scheme == Scheme::Native { Ok(()) } else { write!(f, "?scheme={}", self.scheme.name()) }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Options({self})")
    }
}

#[cfg(test)]
mod tests {
    use tenure::store::Login;

    use super::*;

    #[test]
    fn reads_the_forms() {
        for (url, shown) in [
            ("redis://h", "redis://h:6379"),
            ("valkey://h:7/3", "redis://h:7/3"),
            ("rediss://u:secret@h?ca=/ca.pem", "rediss://h:6379"),
            ("redis://[::1]:7000", "redis://[::1]:7000"),
            ("redis+unix:///run/redis@1.sock?db=2", "redis+unix:///run/redis@1.sock"),
            ("unix:///run/redis.sock", "redis+unix:///run/redis.sock"),
            ("redis+cluster://u:secret@h:1,h:2", "the cluster of redis://h:1, redis://h:2"),
            ("valkeys+cluster://h", "the cluster of rediss://h:6379"),
            ("redis+sentinel://u:secret@a,b:1,[::1]/my%20master/2", "redis+sentinel://a:26379,b:1,[::1]:26379/my master"),
            ("valkeys+sentinel://a/m?db=2&sentinel_password=secret&ca=/ca.pem", "rediss+sentinel://a:26379/m"),
        ] {
            assert_eq!(Options::parse(url).unwrap().to_string(), shown, "{url}");
        }
    }

    #[test]
    fn reads_what_is_encoded_and_the_parameters() {
        let options = Options::parse("redis://app:p%40ss@h/1?prefix=app:&timeout=250ms&poll_interval=2").unwrap();
        assert_eq!(options.servers[0].credentials.fixed(), Some(Login::new("app", "p@ss")));
        assert_eq!(
            (&*options.prefix, options.timeout, options.poll_interval),
            ("app:", Some(Duration::from_millis(250)), Duration::from_secs(2))
        );
    }

    #[test]
    fn refuses_the_rest_without_telling_secrets() {
        for (url, why) in [
            ("redis://", "host"),
            ("nonsense", "cannot be read"),
            ("http://u:hunter2@h", "http"),
            ("redis://u:hunter2@h/x", "database"),
            ("redis://u:hunter2@h/-1", "database"),
            ("redis://:hunter2@h?tiemout=1s", "tiemout="),
            ("redis://:hunter2@h?timeout=soon", "timeout="),
            ("redis://:hunter2@h?ca=/x", "rediss"),
            ("rediss://:hunter2@h?cert=/x", "both"),
            ("redis://:hunter2@h?scheme=redlock", "redlock"),
            ("redis://:hunter2@h?scheme=setnx", "set-nx"),
            ("redis://:hunter2@h?scheme=set-nx&profile=redislok", "redislock"),
            ("redis://:hunter2@h?scheme=set-nx&profile=spring", "prefix="),
            ("redis://:hunter2@h?profile=redis-py", "scheme=set-nx"),
            ("redis://:hunter2@h?scheme=getset&profile=pottery", "profile="),
            ("redis://:hunter2@h?scheme=set-nx&unit=s", "unit="),
            ("redis://:hunter2@h?scheme=php&win=past", "win="),
            ("redis://:hunter2@h?scheme=getset&unit=us", "unit=ms"),
            ("redis://:hunter2@h?scheme=getset&win=maybe", "win=equal"),
            ("redis://:hunter2@h?node_timeout=1s", "several servers"),
            ("redis+cluster://:hunter2@h:1,h:2?node_timeout=1s", "several servers"),
            ("redis+cluster://:hunter2@h:1,h:2?scheme=set-nx", "names a cluster"),
            ("redis+cluster://:hunter2@h:1,h:2/1", "can be no node of a cluster"),
            ("redis+cluster://:hunter2@h:1,h:2?db=1", "can be no node of a cluster"),
            ("redis+cluster://:hunter2@h:1,h:1", "twice"),
            ("redis://:hunter2@a,b", "several servers"),
            ("quorum+redis://:hunter2@a,b", "3 at least"),
            ("redis://u:hunter2@a,u:hunter2@b", "an @ too many"),
            ("unix+cluster:///x", "can be no node of a cluster"),
            ("redis+cluster://:hunter2@h?prefix=a{b:", "prefix=a{b:"),
            ("redis+cluster://:hunter2@h?scheme=redisson&prefix=a}:", "prefix=a}:"),
            ("redis://:hunter2@h?scheme=set-nx&scheme=php", "scheme= is given twice"),
            ("redis://:hunter2@h#prefix=app:", "#"),
            ("redis://u:1#hunter2@h", "%23"),
            ("redis://u:1?hunter2@h", "%3F"),
            ("redis://:hunter2@h?durability=replicas:0", "replicas:1"),
            ("redis://:hunter2@h?durability=majority&scheme=set-nx", "native scheme"),
            ("quorum+redis://:hunter2@a,b,c?durability=aof", "quorum"),
            ("redis+cluster://:hunter2@a?durability=aof", "Sentinel group"),
            ("redis://:hunter2@h?sentinel_password=hunter2", "names none"),
            ("redis+sentinel://:hunter2@a,b", "no service"),
            ("redis+sentinel://:hunter2@a,b,a/m", "twice"),
            ("redis+sentinel://:hunter2@a/m/x", "database"),
            ("redis+sentinel://:hunter2@a/m/1/2", "database"),
            ("redis+sentinel://:hunter2@a/m?ca=/x", "rediss"),
            ("redis+sentinel://:hunter2@/m", "host"),
            ("http+sentinel://:hunter2@a/m", "http"),
            ("redis+unix+sentinel://:hunter2@a/m", "unix"),
        ] {
            let error = Options::parse(url).unwrap_err();
            let text = format!("{error} {error:?}");
            assert!(text.contains(why) && !text.contains("hunter2"), "{url}: {text}");
        }
        let text = format!("{:?}", Options::parse("redis://u:hunter2@h").unwrap());
        assert!(!text.contains("hunter2"), "{text}");
    }
}
