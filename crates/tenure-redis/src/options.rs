//! Where a Redis is and how to talk to it: URLs and their parameters.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use redis::{
    ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo, TlsCertificates,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};
use tenure::store::Store;
use tenure::{Error, parse_duration};
use url::Url;

use crate::RedisStore;
use crate::optimistic::OptimisticStore;
use crate::plain::PlainStore;
use crate::scheme::{Profile, Scheme};
use crate::stamp::{Stamp, StampStore};

/// Settings of a connection to one Redis or Valkey server.
///
/// | form | meaning |
/// |---|---|
/// | `redis://[user:password@]host[:port][/db]` | plain TCP; `valkey://` is the same |
/// | `rediss://...` | TLS; `ca=`, `cert=` and `key=` name PEM files; `valkeys://` is the same |
/// | `redis+unix:///path[?db=N]` | a unix socket; `valkey+unix://` and `unix://` are the same |
///
/// | parameter | meaning |
/// |---|---|
/// | `prefix=` | put in front of every key |
/// | `timeout=` | per operation; a sixth of the ttl, at most 1 s, where it is not given |
/// | `poll_interval=` | how often a waiter looks again; 100 ms where it is not given |
/// | `scheme=` | `native`, or a dialect of others: `set-nx`, `setnx-expire`, `setnx-expire-lua`, `php`, `getset`, `watch`; see [`Scheme`] |
/// | `unit=` | with `scheme=getset`: `ms` or `s`, what the value of a key counts; `ms` where it is not given |
/// | `win=` | with `scheme=getset`: `equal` or `past`, what `GETSET` has to answer the other side for it to have won; ours takes a name in one step, so that both are the same |
/// | `profile=` | with `scheme=set-nx`: the library whose keys they are, e.g. `redis-py`; see [`Options::profile`] |
#[derive(Clone)]
pub struct Options {
    address: Address,
    username: Option<String>,
    password: Option<String>,
    db: i64,
    pub(crate) prefix: String,
    pub(crate) timeout: Option<Duration>,
    pub(crate) recheck: Duration,
    scheme: Scheme,
    profile: Option<Profile>,
    /// What the value of a key counts, and whether anything was said that only matters where it counts time.
    seconds: bool,
    timed: Option<&'static str>,
}

#[derive(Clone)]
enum Address {
    Tcp { host: String, port: u16 },
    Tls { host: String, port: u16, ca: Option<PathBuf>, cert: Option<PathBuf>, key: Option<PathBuf> },
    Unix(PathBuf),
}

const SCHEMES: &str = "redis://, rediss://, redis+unix:// and the same with valkey";

impl Options {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`Invalid`](tenure::ErrorKind::Invalid) naming what is wrong, never the password.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let url = Url::parse(text).map_err(|e| {
            Error::invalid("the store URL cannot be read").with_source(e).with_hint(format!("it looks like {SCHEMES}"))
        })?;
        if url.fragment().is_some() {
            // It is not shown: it may be the rest of a password.
            let what = "the store URL has a #, and what follows one means nothing here";
            return Err(Error::invalid(what).with_hint("leave it out, or write %23 for a # that is part of a name or password"));
        }
        let (tls, unix) = match url.scheme() {
            "redis" | "valkey" => (false, false),
            "rediss" | "valkeys" => (true, false),
            "redis+unix" | "valkey+unix" | "unix" => (false, true),
            other => {
                return Err(Error::invalid(format!("{other}: is no scheme of a Redis URL")).with_hint(format!("use {SCHEMES}")));
            }
        };
        let decoded = |text: &str| {
            percent_decode_str(text)
                .decode_utf8()
                .map(String::from)
                .map_err(|_| Error::invalid("the store URL has bytes that are not UTF-8"))
        };
        let username = Some(decoded(url.username())?).filter(|name| !name.is_empty());
        let password = url.password().map(decoded).transpose()?;
        let address = if unix {
            Address::Unix(decoded(url.path())?.into())
        } else {
            let host = url
                .host_str()
                .filter(|host| !host.is_empty())
                .ok_or_else(|| Error::invalid("the store URL has no host").with_hint("write e.g. redis://127.0.0.1"))?;
            let host = decoded(host.trim_start_matches('[').trim_end_matches(']'))?;
            let port = url.port().unwrap_or(6379);
            if tls { Address::Tls { host, port, ca: None, cert: None, key: None } } else { Address::Tcp { host, port } }
        };
        let db = if unix { 0 } else { database(url.path().trim_start_matches('/'))? };
        let recheck = Duration::from_millis(100);
        let (prefix, timeout, scheme, profile) = (String::new(), None, Scheme::Native, None);
        let (seconds, timed) = (false, None);
        let mut options = Self { address, username, password, db, prefix, timeout, recheck, scheme, profile, seconds, timed };
        let mut said = Vec::new();
        for (key, value) in url.query_pairs() {
            if said.contains(&key) {
                return Err(Error::invalid(format!("{key}= is said twice in the store URL")).with_hint("say it once"));
            }
            options.set(&key, &value)?;
            said.push(key);
        }
        options.check_tls_pair()?;
        options.check_scheme()?;
        Ok(options)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), Error> {
        let duration = || parse_duration(value).map_err(|e| e.context(format_args!("the parameter {key}= of the store URL")));
        match key {
            "prefix" => value.clone_into(&mut self.prefix),
            "timeout" => self.timeout = Some(positive(key, duration()?)?),
            "poll_interval" => self.recheck = positive(key, duration()?)?,
            "db" => self.db = database(value)?,
            "ca" | "cert" | "key" => self.set_tls_file(key, value)?,
            "scheme" => self.scheme = value.parse()?,
            "profile" => self.profile = Some(value.parse()?),
            "unit" => (self.seconds, self.timed) = (choice(key, value, ["ms", "s"])? == "s", Some("unit")),
            "win" => {
                choice(key, value, ["equal", "past"])?;
                self.timed = Some("win");
            }
            "node_timeout" => {
                return Err(Error::invalid("node_timeout= is for several servers, this URL names one").with_hint("use timeout="));
            }
            other => {
                let what = format!("{other}= is no parameter of a Redis URL");
                return Err(Error::invalid(what)
                    .with_hint("known are prefix, timeout, poll_interval, db, ca, cert, key, scheme, profile, unit and win"));
            }
        }
        Ok(())
    }

    fn set_tls_file(&mut self, key: &str, value: &str) -> Result<(), Error> {
        let Address::Tls { ca, cert, key: private, .. } = &mut self.address else {
            return Err(Error::invalid(format!("{key}= is for TLS, and the store URL is not")).with_hint("use rediss://"));
        };
        let file = match key {
            "ca" => ca,
            "cert" => cert,
            _ => private,
        };
        *file = Some(value.into());
        Ok(())
    }

    fn check_tls_pair(&self) -> Result<(), Error> {
        match &self.address {
            Address::Tls { cert, key, .. } if cert.is_some() != key.is_some() => {
                Err(Error::invalid("the store URL has only one of cert= and key=").with_hint("a client certificate needs both"))
            }
            _ => Ok(()),
        }
    }

    fn check_scheme(&self) -> Result<(), Error> {
        if let Some(key) = self.timed.filter(|_| self.scheme != Scheme::Getset) {
            let what = format!("{key}= is for scheme=getset, and the store URL has another");
            return Err(Error::invalid(what).with_hint("add scheme=getset"));
        }
        match self.profile {
            Some(_) if self.scheme != Scheme::SetNx => {
                Err(Error::invalid("profile= is for scheme=set-nx, and the store URL has another").with_hint("add scheme=set-nx"))
            }
            Some(profile) => profile.prefix(&self.prefix).map(drop),
            None => Ok(()),
        }
    }

    /// How locks are kept, instead of what the URL says.
    #[must_use]
    pub fn scheme(mut self, scheme: Scheme) -> Self {
        self.scheme = scheme;
        self
    }

    /// With [`Scheme::Getset`]: the value of a key is the end of a lease in seconds, not in milliseconds.
    #[must_use]
    pub fn seconds(mut self) -> Self {
        self.seconds = true;
        self
    }

    /// Keeps locks with [`Scheme::SetNx`] where this library has them, e.g. `redis-py` or `pottery`. Some have a prefix of their own: for
    /// `shedlock` it is the environment, for `spring` the registry key.
    ///
    /// That excludes a library which takes one key at one server, and none that takes a majority of several servers (RedLock) or keys:
    /// `rueidislock` is for one with a majority of one, not for two of three keys, as it ships.
    ///
    /// # Errors
    /// [`Invalid`](tenure::ErrorKind::Invalid) for a library whose keys are not known; the error lists those that are.
    pub fn profile(mut self, library: &str) -> Result<Self, Error> {
        (self.scheme, self.profile) = (Scheme::SetNx, Some(library.parse()?));
        self.check_scheme()?;
        Ok(self)
    }

    /// The user to log in as, instead of the URL's.
    #[must_use]
    pub fn username(mut self, username: impl Into<String>) -> Self {
        self.username = Some(username.into());
        self
    }

    /// The password to log in with, instead of the URL's.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Connects, and makes sure that a server answers: for the native scheme, with all that it has.
    ///
    /// # Errors
    /// [`Unreachable`](tenure::ErrorKind::Unreachable) when none does within 5 s, [`Refused`](tenure::ErrorKind::Refused) when it
    /// does not let us in, [`Invalid`](tenure::ErrorKind::Invalid) when a TLS file cannot be used, or for another scheme.
    pub async fn connect(self) -> Result<RedisStore, Error> {
        if self.scheme != Scheme::Native {
            return Err(Error::invalid(format!("{:?} is not the native scheme", self.scheme)).with_hint("use Options::open"));
        }
        RedisStore::connect(&self, &self.prefix).await
    }

    /// Connects as [`connect`](Options::connect) does, for any scheme.
    ///
    /// # Errors
    /// As [`connect`](Options::connect).
    pub async fn open(self) -> Result<Arc<dyn Store>, Error> {
        let prefix = match (self.scheme, self.profile) {
            (Scheme::SetNx, Some(profile)) => profile.prefix(&self.prefix)?,
            (Scheme::Php, _) => format!("{}Lock:", self.prefix),
            _ => self.prefix.clone(),
        };
        let redis = RedisStore::connect(&self, &prefix).await?;
        Ok(match self.scheme {
            Scheme::Native => Arc::new(redis),
            Scheme::SetNx => Arc::new(PlainStore::new(redis, false)),
            Scheme::SetnxExpire | Scheme::SetnxExpireLua => Arc::new(PlainStore::new(redis, true)),
            Scheme::Php => Arc::new(StampStore::new(redis, Stamp::Php)),
            Scheme::Getset => Arc::new(StampStore::new(redis, if self.seconds { Stamp::Seconds } else { Stamp::Millis })),
            Scheme::Watch => Arc::new(OptimisticStore::connect(redis, &self).await?),
        })
    }

    /// The client that makes connections by these options.
    pub(crate) fn client(&self) -> Result<redis::Client, Error> {
        let unusable = |e: redis::RedisError| Error::invalid(format!("{self} cannot be connected to")).with_source(e);
        match &self.address {
            Address::Tls { ca, cert, key, .. } => {
                // rustls panics where the process has chosen no provider; an application that has keeps its own.
                if rustls::crypto::CryptoProvider::get_default().is_none() {
                    let _ = rustls::crypto::ring::default_provider().install_default();
                }
                let pair =
                    cert.as_ref().zip(key.as_ref()).map(|(cert, key)| Ok::<_, Error>((read(cert)?, read(key)?))).transpose()?;
                let client_tls = pair.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
                let root_cert = ca.as_ref().map(read).transpose()?;
                redis::Client::build_with_tls(self.info().map_err(unusable)?, TlsCertificates { client_tls, root_cert })
                    .map_err(unusable)
            }
            _ => redis::Client::open(self.info().map_err(unusable)?).map_err(unusable),
        }
    }

    fn info(&self) -> redis::RedisResult<ConnectionInfo> {
        let address = match &self.address {
            Address::Tcp { host, port } => ConnectionAddr::Tcp(host.clone(), *port),
            Address::Tls { host, port, .. } => {
                ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None }
            }
            Address::Unix(path) => ConnectionAddr::Unix(path.clone()),
        };
        let mut login =
            RedisConnectionInfo::default().set_db(self.db).set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
        if let Some(username) = &self.username {
            login = login.set_username(username);
        }
        if let Some(password) = &self.password {
            login = login.set_password(password);
        }
        Ok(address.into_connection_info()?.set_tcp_settings(tcp_settings()).set_redis_settings(login))
    }
}

/// Nagle off, and a dead peer noticed by the kernel in some 10 s where our own timeouts do not come first.
fn tcp_settings() -> TcpSettings {
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(2)).with_retries(3);
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(Duration::from_secs(10));
    settings
}

fn database(text: &str) -> Result<i64, Error> {
    match text {
        "" => Ok(0),
        digits => digits.parse().ok().filter(|db| *db >= 0).ok_or_else(|| {
            Error::invalid(format!("{digits:?} is no database number")).with_hint("a store URL ends in /0 or a larger number")
        }),
    }
}

fn choice<'a>(key: &str, value: &'a str, known: [&str; 2]) -> Result<&'a str, Error> {
    if known.contains(&value) {
        return Ok(value);
    }
    let what = format!("{key}={value} is nothing that the store URL can say");
    Err(Error::invalid(what).with_hint(format!("write {key}={} or {key}={}", known[0], known[1])))
}

fn positive(key: &str, value: Duration) -> Result<Duration, Error> {
    let why = match value {
        Duration::ZERO => "zero",
        value if value > Duration::from_secs(3_600) => "more than an hour",
        _ => return Ok(value),
    };
    Err(Error::invalid(format!("the parameter {key}= of the store URL is {why}")).with_hint("write e.g. 500ms"))
}

fn read(path: &PathBuf) -> Result<Vec<u8>, Error> {
    let fix = "name a readable PEM file in the store URL";
    std::fs::read(path)
        .map_err(|e| Error::invalid(format!("the TLS file {} cannot be read", path.display())).with_source(e).with_hint(fix))
}

/// The address without secrets, for messages.
impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut server = |scheme: &str, host: &str, port: u16| {
            if host.contains(':') {
                write!(f, "{scheme}://[{host}]:{port}")?;
            } else {
                write!(f, "{scheme}://{host}:{port}")?;
            }
            if self.db == 0 { Ok(()) } else { write!(f, "/{}", self.db) }
        };
        match &self.address {
            Address::Unix(path) => write!(f, "redis+unix://{}", path.display())?,
            Address::Tcp { host, port } => server("redis", host, *port)?,
            Address::Tls { host, port, .. } => server("rediss", host, *port)?,
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
    use super::*;

    #[test]
    fn reads_the_forms() {
        for (url, shown) in [
            ("redis://h", "redis://h:6379"),
            ("valkey://h:7/3", "redis://h:7/3"),
            ("rediss://u:secret@h?ca=/ca.pem", "rediss://h:6379"),
            ("redis://[::1]:7000", "redis://[::1]:7000"),
            ("redis+unix:///run/redis.sock?db=2", "redis+unix:///run/redis.sock"),
            ("unix:///run/redis.sock", "redis+unix:///run/redis.sock"),
        ] {
            assert_eq!(Options::parse(url).unwrap().to_string(), shown, "{url}");
        }
    }

    #[test]
    fn reads_what_is_encoded_and_the_parameters() {
        let options = Options::parse("redis://app:p%40ss@h/1?prefix=app:&timeout=250ms&poll_interval=2").unwrap();
        assert_eq!((options.username.as_deref(), options.password.as_deref()), (Some("app"), Some("p@ss")));
        assert_eq!(
            (&*options.prefix, options.timeout, options.recheck),
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
            ("redis://:hunter2@h?timeout=0", "zero"),
            ("redis://:hunter2@h?timeout=soon", "timeout="),
            ("redis://:hunter2@h?timeout=9000d", "hour"),
            ("redis://:hunter2@h?ca=/x", "rediss"),
            ("rediss://:hunter2@h?cert=/x", "both"),
            ("redis://:hunter2@h?scheme=redisson", "redisson"),
            ("redis://:hunter2@h?node_timeout=1s", "several servers"),
            ("redis://:hunter2@h?scheme=set-nx&scheme=php", "scheme= is said twice"),
            ("redis://:hunter2@h?prefix=a&timeout=1s&prefix=a", "prefix= is said twice"),
            ("redis://:hunter2@h#prefix=app:", "#"),
            ("redis://u:1#hunter2@h", "%23"),
        ] {
            let error = Options::parse(url).unwrap_err();
            let text = format!("{error} {error:?}");
            assert!(text.contains(why) && !text.contains("hunter2"), "{url}: {text}");
        }
        let text = format!("{:?}", Options::parse("redis://u:hunter2@h").unwrap());
        assert!(!text.contains("hunter2"), "{text}");
    }
}
