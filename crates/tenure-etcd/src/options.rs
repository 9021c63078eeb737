//! The URL of an etcd.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tenure::store::{Credentials, Login, decoded, refuse_zone, unescaped};
use tenure::{Error, Locker};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::connection::{Connection, Member};
use crate::grpc::FIRST_CONTACT;
use crate::keys::Layout;
use crate::store::EtcdStore;

const PORT: u16 = 2379;
/// How often a connection with a watch is asked whether it lives. etcd allows one ping in 5 s.
const PING: Duration = Duration::from_secs(6);
const PONG: Duration = Duration::from_secs(2);
const FORMS: &str = "etcd://host:2379,host:2379/prefix";

/// Settings of an etcd, read from a URL.
///
/// `etcd://[user:password@]host[:port][,host[:port]...][/prefix][?parameters]`, or `etcds://` for TLS. The
/// hosts are members of one cluster. One is used at a time, and the next one if it fails. Names are
/// kept behind `prefix/`, as keys of etcd. The parameters are [`PARAMETERS`](Self::PARAMETERS).
#[derive(Clone)]
pub struct Options {
    hosts: Vec<String>,
    credentials: Credentials,
    layout: Layout,
    timeout: Option<Duration>,
    poll_interval: Duration,
    tls: bool,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

tenure::parameters! {
    for Options, read into Options:
    "prefix" = "locks.", "put in front of each key as it is", "the path and a slash" => |o, given| o.set_prefix(given.text)?;
    "timeout" = "500ms", "operation timeout: how long one call may take", "a sixth of the ttl, at most 1 s"
        => |o, given| o.timeout = Some(given.duration()?);
    "poll_interval" = "50ms", "how often a waiter polls that nobody notifies", "500 ms"
        => |o, given| o.poll_interval = given.duration()?;
    "tls" = "yes", "connects with TLS, as `etcds://` does", "only with `etcds://`" => |o, given| o.set_tls(given.is_yes()?)?;
    "ca" = "FILE", "PEM file of the authority", "the system's authorities" => |o, given| o.ca = Some(given.text.into());
    "cert" = "FILE", "PEM file of the client's certificate", "none" => |o, given| o.cert = Some(given.text.into());
    "key" = "FILE", "PEM file of the client's key", "none" => |o, given| o.key = Some(given.text.into());
}

impl Options {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`Invalid`](tenure::ErrorKind::Invalid) naming what is wrong, never the password.
    pub fn parse(url: &str) -> Result<Self, Error> {
        refuse_zone(url)?;
        let (scheme, rest) = url.split_once("://").ok_or_else(unread)?;
        let tls = match &*scheme.to_ascii_lowercase() {
            "etcd" => false,
            "etcds" => true,
            _ => return Err(unread()),
        };
        let (address, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        // They may be the rest of a password, which no message shows.
        if parameters.contains('@') {
            return Err(unescaped("an @"));
        }
        let (authority, path) = address.split_once('/').unwrap_or((address, ""));
        if path.contains('@') || authority.matches('@').count() > 1 {
            return Err(unescaped("an @"));
        }
        let (user, hosts) = authority.rsplit_once('@').map_or((None, authority), |(user, hosts)| (Some(user), hosts));
        let hosts = hosts.split(',').map(host).collect::<Result<_, _>>()?;
        let path = decoded("the path", path.trim_end_matches('/'))?;
        let prefix = if path.is_empty() { String::new() } else { path + "/" };
        let mut options = Self {
            hosts,
            credentials: Credentials::default(),
            layout: Layout { prefix },
            timeout: None,
            poll_interval: Duration::from_millis(500),
            tls,
            ca: None,
            cert: None,
            key: None,
        };
        if let Some(user) = user {
            let (name, password) = user.split_once(':').map_or((user, None), |(name, password)| (name, Some(password)));
            let password = password.map(|password| decoded("the password", password)).transpose()?;
            options.credentials = Login { user: Some(decoded("the user", name)?), password }.into();
        }
        Self::read_parameters(&mut options, parameters)?;
        options.checked()
    }

    fn checked(self) -> Result<Self, Error> {
        if self.cert.is_some() != self.key.is_some() {
            let what = "the store URL has only one of cert= and key=";
            return Err(Error::invalid(what).with_hint("a client certificate needs both"));
        }
        if !self.tls && (self.ca.is_some() || self.cert.is_some()) {
            let what = "the store URL has a certificate, and no TLS to use it for";
            return Err(Error::invalid(what).with_hint("write etcds:// in front"));
        }
        Ok(self)
    }

    fn set_prefix(&mut self, prefix: &str) -> Result<(), Error> {
        if !self.layout.prefix.is_empty() {
            let what = "the store URL has a prefix in its path, and prefix= as well";
            return Err(Error::invalid(what).with_hint("give one of them"));
        }
        prefix.clone_into(&mut self.layout.prefix);
        Ok(())
    }

    fn set_tls(&mut self, tls: bool) -> Result<(), Error> {
        if self.tls && !tls {
            return Err(Error::invalid("tls=no of the store URL contradicts etcds://").with_hint("write etcd://"));
        }
        self.tls = tls;
        Ok(())
    }

    /// Sets how to log in. What these credentials lack is taken from the URL. Without a user there is no login.
    ///
    /// They are asked for when there is no token, or etcd no longer takes it.
    #[must_use]
    pub fn credentials(mut self, credentials: impl Into<Credentials>) -> Self {
        self.credentials = credentials.into().or(&self.credentials);
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// [`Unreachable`](tenure::ErrorKind::Unreachable) if no member answers within 5 s,
    /// [`Refused`](tenure::ErrorKind::Refused) if the login is refused,
    /// [`Invalid`](tenure::ErrorKind::Invalid) if a TLS file cannot be used.
    pub async fn open(self) -> Result<EtcdStore, Error> {
        let shown = self.to_string();
        let members = self.hosts.iter().map(|host| self.member(host)).collect::<Result<_, _>>()?;
        let connection = Arc::new(Connection::new(members, self.credentials, shown));
        EtcdStore::open(connection, self.layout, self.timeout, self.poll_interval).await
    }

    /// Returns a [`Locker`] on it.
    ///
    /// # Errors
    /// As [`open`](Options::open).
    pub async fn connect(self) -> Result<Locker, Error> {
        self.open().await.map(Locker::new)
    }

    fn member(&self, host: &str) -> Result<Member, Error> {
        let scheme = if self.tls { "https" } else { "http" };
        let bad = |error: tonic::transport::Error| Error::invalid(format!("{host} is no host of etcd")).with_source(error);
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{host}")).map_err(bad)?;
        endpoint = endpoint.tcp_nodelay(true).connect_timeout(FIRST_CONTACT);
        // A watch has no timeout of its own. A connection without calls is left alone: etcd ends one that pings.
        endpoint = endpoint.http2_keep_alive_interval(PING).keep_alive_timeout(PONG);
        if self.tls {
            let mut tls = ClientTlsConfig::new();
            tls = match &self.ca {
                Some(ca) => tls.ca_certificate(Certificate::from_pem(certificates(ca)?)),
                None => tls.with_native_roots(),
            };
            if let (Some(cert), Some(key)) = (&self.cert, &self.key) {
                tls = tls.identity(Identity::from_pem(file(cert)?, file(key)?));
            }
            let bad = |error: tonic::transport::Error| {
                Error::invalid("the TLS files of the store URL cannot be used").with_source(error)
            };
            endpoint = endpoint.tls_config(tls).map_err(bad)?;
        }
        Ok(Member { endpoint, shown: format!("etcd at {host}") })
    }
}

fn unread() -> Error {
    Error::invalid("the store URL cannot be read").with_hint(format!("it looks like {FORMS}"))
}

/// A host with its port.
fn host(host: &str) -> Result<String, Error> {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    };
    let is_v6 = name.starts_with('[') && name.ends_with(']');
    if name.is_empty() || (name.contains(':') && !is_v6) || name.contains(char::is_whitespace) {
        return Err(Error::invalid("the store URL has a host that cannot be read").with_hint(format!("write e.g. {FORMS}")));
    }
    let bad = |_| Error::invalid(format!("the port of {name} in the store URL is no number")).with_hint("write e.g. :2379");
    let port = port.map_or(Ok(PORT), |port| port.parse::<u16>().map_err(bad))?;
    Ok(format!("{name}:{port}"))
}

/// A file of certificates. The TLS library takes one that has none, and then trusts nobody.
fn certificates(path: &PathBuf) -> Result<Vec<u8>, Error> {
    let pem = file(path)?;
    let has_one = String::from_utf8_lossy(&pem).contains("-----BEGIN CERTIFICATE-----");
    let none = || Error::invalid(format!("the file {} of the store URL has no certificate", path.display()));
    if has_one { Ok(pem) } else { Err(none()) }
}

fn file(path: &PathBuf) -> Result<Vec<u8>, Error> {
    let what = || Error::invalid(format!("the file {} of the store URL cannot be read", path.display()));
    std::fs::read(path).map_err(|error| what().with_source(error))
}

/// Without secrets.
impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "etcds" } else { "etcd" };
        write!(f, "{scheme}://{}", self.hosts.join(","))
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
    fn a_url_is_read() {
        let options = Options::parse("etcds://me:p%40ss@a,b:99,[::1]/team/locks?timeout=200ms&ca=/x").unwrap();
        assert_eq!(options.hosts, ["a:2379", "b:99", "[::1]:2379"]);
        assert_eq!((options.layout.prefix.as_str(), options.timeout), ("team/locks/", Some(Duration::from_millis(200))));
        assert_eq!(options.credentials.fixed(), Some(Login::new("me", "p@ss")));
        assert_eq!(format!("{options} {options:?}").matches("ss@").count(), 0);
        let other = options.credentials(Login::of_password("other"));
        assert_eq!(other.credentials.fixed(), Some(Login::new("me", "other")));
        assert_eq!(Options::parse("etcd://h?prefix=a.").unwrap().layout.prefix, "a.");
        assert_eq!(Options::parse("etcd://h").unwrap().layout.prefix, "");
    }

    #[test]
    fn bad_urls_are_refused_with_what_to_write() {
        for (url, why) in [
            ("etcd:h", "looks like"),
            ("http://h", "looks like"),
            ("etcd://", "host that cannot be read"),
            ("etcd://h:x", "is no number"),
            ("etcd://::1", "cannot be read"),
            ("etcd://h?colour=red", "colour= is no parameter"),
            ("etcd://h?timeout=0", "is zero"),
            ("etcd://h?timeout=1s&timeout=1s", "twice"),
            ("etcd://h/a?prefix=b", "in its path"),
            ("etcd://h?tls=maybe", "write tls=yes or tls=no"),
            ("etcds://h?tls=no", "contradicts"),
            ("etcds://h?cert=/x", "only one of"),
            ("etcd://h?ca=/x", "no TLS"),
            ("etcd://u:s3cret@x@h", "an @ too many"),
            ("etcd://u:s3c/ret@h", "an @ too many"),
            ("etcd://u:s3c?ret@h", "an @ too many"),
        ] {
            let error = Options::parse(url).unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("s3c"), "{url}: {error}");
        }
    }
}
