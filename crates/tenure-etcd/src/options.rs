//! The URL of an etcd.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tenure::store::{Address, Credentials, Host, decoded};
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
    hosts: Vec<Host>,
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
    "prefix" = "locks.", "put in front of each key as it is", "the path and a slash" => |o, v| o.set_prefix(v.text)?;
    "timeout" = "500ms", "timeout of one operation", "a sixth of the ttl, at most 1 s" => |o, v| o.timeout = Some(v.duration()?);
    "poll_interval" = "50ms", "how often a waiter polls that nobody notifies", "500 ms" => |o, v| o.poll_interval = v.duration()?;
    "tls" = "yes", "connects with TLS, as `etcds://` does", "only with `etcds://`" => |o, v| o.set_tls(v.is_yes()?)?;
    "ca" = "FILE", "PEM file of the authority", "the system's authorities" => |o, v| o.ca = Some(v.text.into());
    "cert" = "FILE", "PEM file of the client's certificate", "none" => |o, v| o.cert = Some(v.text.into());
    "key" = "FILE", "PEM file of the client's key", "none" => |o, v| o.key = Some(v.text.into());
}

impl Options {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`Invalid`](tenure::ErrorKind::Invalid) naming what is wrong, never the password.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let address = Address::read(url, &["etcd", "etcds"], PORT, FORMS)?;
        let path = decoded("the path", address.path.trim_end_matches('/'))?;
        let mut options = Self {
            hosts: address.hosts,
            credentials: address.login.into(),
            layout: Layout { prefix: if path.is_empty() { path } else { path + "/" } },
            timeout: None,
            poll_interval: Duration::from_millis(500),
            tls: address.scheme == "etcds",
            ca: None,
            cert: None,
            key: None,
        };
        Self::read_parameters(&mut options, address.parameters)?;
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

    fn member(&self, host: &Host) -> Result<Member, Error> {
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
        write!(f, "{scheme}://{}", Host::list(&self.hosts))
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
    fn a_url_is_read() {
        let options = Options::parse("etcds://me:p%40ss@a,b:99,[::1]/team/locks?timeout=200ms&ca=/x").unwrap();
        assert_eq!(options.to_string(), "etcds://a:2379,b:99,[::1]:2379");
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
            ("etcd://h?colour=red", "colour= is no parameter"),
            ("etcd://h/a?prefix=b", "in its path"),
            ("etcd://h?tls=maybe", "write tls=yes or tls=no"),
            ("etcds://h?tls=no", "contradicts"),
            ("etcds://h?cert=/x", "only one of"),
            ("etcd://h?ca=/x", "no TLS"),
            ("etcd://u:s3c?ret@h", "an @ too many"),
        ] {
            let error = Options::parse(url).unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("s3c"), "{url}: {error}");
        }
    }
}
