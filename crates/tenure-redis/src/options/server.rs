//! Where a server is, and how to log in there.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo,
    RedisError, RedisResult, TlsCertificates,
};
use tenure::Error;
use tenure::store::{Credentials, Login, Refusals};
use url::Url;

use crate::transport::address;
use crate::transport::dial::Peer;

/// The beginnings of a URL.
pub(super) const FORMS: &str = "redis://, rediss://, redis+unix://, redis+sentinel://, redis+cluster:// and the same with valkey";

#[derive(Clone)]
pub(super) struct Server {
    address: Address,
    pub(super) credentials: Credentials,
    db: i64,
}

#[derive(Clone)]
enum Address {
    Tcp { host: String, port: u16 },
    Tls { host: String, port: u16, ca: Option<PathBuf>, cert: Option<PathBuf>, key: Option<PathBuf> },
    Unix(PathBuf),
}

impl Server {
    /// Reads a URL without its parameters.
    pub(super) fn of(url: &Url) -> Result<Self, Error> {
        Self::with_port(url, 6379)
    }

    /// The same, at this port if the URL has none.
    pub(super) fn with_port(url: &Url, usual: u16) -> Result<Self, Error> {
        let (tls, unix) = match url.scheme() {
            "redis" | "valkey" => (false, false),
            "rediss" | "valkeys" => (true, false),
            "redis+unix" | "valkey+unix" | "unix" => (false, true),
            other => {
                return Err(Error::invalid(format!("{other}: is no scheme of a Redis URL")).with_hint(format!("use {FORMS}")));
            }
        };
        let user = Some(decoded(url.username())?).filter(|name| !name.is_empty());
        let credentials = Login { user, password: url.password().map(decoded).transpose()? }.into();
        if unix {
            return Ok(Self { address: Address::Unix(decoded(url.path())?.into()), credentials, db: 0 });
        }
        let host = url
            .host_str()
            .filter(|host| !host.is_empty())
            .ok_or_else(|| Error::invalid("the store URL has no host").with_hint("write e.g. redis://127.0.0.1"))?;
        let host = decoded(host.trim_start_matches('[').trim_end_matches(']'))?;
        let port = url.port().unwrap_or(usual);
        let address =
            if tls { Address::Tls { host, port, ca: None, cert: None, key: None } } else { Address::Tcp { host, port } };
        Ok(Self { address, credentials, db: database(url.path().trim_start_matches('/'))? })
    }

    /// Where it is in a cluster. None for a unix socket, or for a database that no cluster has.
    pub(super) fn address(&self) -> Option<address::Address> {
        match &self.address {
            Address::Tcp { host, port } | Address::Tls { host, port, .. } if self.db == 0 => {
                Some(address::Address { host: host.clone(), port: *port })
            }
            _ => None,
        }
    }

    /// Another node of the same cluster, with the same login and certificates.
    pub(super) fn beside(&self, other: &address::Address) -> Self {
        let mut server = self.clone();
        if let Address::Tcp { host, port } | Address::Tls { host, port, .. } = &mut server.address {
            (*host, *port) = (other.host.clone(), other.port);
        }
        server
    }

    /// The first of the servers that is at the address of one before it.
    pub(super) fn twice(servers: &[Self]) -> Option<&Self> {
        let is_named_before = |(at, server): &(usize, &Self)| {
            let shown = server.to_string();
            servers[..*at].iter().any(|other| other.to_string() == shown)
        };
        servers.iter().enumerate().find(is_named_before).map(|(_, server)| server)
    }

    /// Its host and port, or its path.
    pub(super) fn host(&self) -> String {
        let shown = self.to_string();
        let host = shown.split_once("://").map_or("", |(_, host)| host);
        host.split('/').next().unwrap_or(host).to_owned()
    }

    pub(super) fn set_db(&mut self, value: &str) -> Result<(), Error> {
        self.db = database(value)?;
        Ok(())
    }

    pub(super) fn set_tls_file(&mut self, key: &str, value: &str) -> Result<(), Error> {
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

    /// Refuses one half of a client certificate.
    pub(super) fn check(&self) -> Result<(), Error> {
        match &self.address {
            Address::Tls { cert, key, .. } if cert.is_some() != key.is_some() => {
                Err(Error::invalid("the store URL has only one of cert= and key=").with_hint("a client certificate needs both"))
            }
            _ => Ok(()),
        }
    }

    /// The way to it.
    pub(super) fn peer(&self) -> Result<Peer, Error> {
        Ok(Peer { client: self.client()?, credentials: self.credentials.clone(), senseless: Refusals::default() })
    }

    fn client(&self) -> Result<Client, Error> {
        let unusable = |e: RedisError| Error::invalid(format!("{self} cannot be connected to")).with_source(e);
        let Address::Tls { ca, cert, key, .. } = &self.address else {
            return Client::open(self.info().map_err(unusable)?).map_err(unusable);
        };
        // rustls panics if the process has chosen no provider; an application that has chosen one
        // keeps it.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let pair = cert.as_ref().zip(key.as_ref()).map(|(cert, key)| Ok::<_, Error>((read(cert)?, read(key)?))).transpose()?;
        let client_tls = pair.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        let certificates = TlsCertificates { client_tls, root_cert: ca.as_ref().map(read).transpose()? };
        Client::build_with_tls(self.info().map_err(unusable)?, certificates).map_err(unusable)
    }

    fn info(&self) -> RedisResult<ConnectionInfo> {
        let address = match &self.address {
            Address::Tcp { host, port } => ConnectionAddr::Tcp(host.clone(), *port),
            Address::Tls { host, port, .. } => {
                ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None }
            }
            Address::Unix(path) => ConnectionAddr::Unix(path.clone()),
        };
        let settings =
            RedisConnectionInfo::default().set_db(self.db).set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
        Ok(address.into_connection_info()?.set_tcp_settings(tcp_settings()).set_redis_settings(settings))
    }
}

/// Nagle off. The kernel notices a dead peer after some 10 s, if our own timeouts have not noticed
/// before.
fn tcp_settings() -> TcpSettings {
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(2)).with_retries(3);
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(Duration::from_secs(10));
    settings
}

pub(super) fn decoded(text: &str) -> Result<String, Error> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(String::from).map_err(|_| Error::invalid("the store URL has bytes that are not UTF-8"))
}

fn database(text: &str) -> Result<i64, Error> {
    match text {
        "" => Ok(0),
        digits => digits.parse().ok().filter(|db| *db >= 0).ok_or_else(|| {
            Error::invalid(format!("{digits:?} is no database number")).with_hint("a store URL ends in /0 or a larger number")
        }),
    }
}

fn read(path: &PathBuf) -> Result<Vec<u8>, Error> {
    let fix = "name a readable PEM file in the store URL";
    std::fs::read(path)
        .map_err(|e| Error::invalid(format!("the TLS file {} cannot be read", path.display())).with_source(e).with_hint(fix))
}

/// Without secrets.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, host, port) = match &self.address {
            Address::Unix(path) => return write!(f, "redis+unix://{}", path.display()),
            Address::Tcp { host, port } => ("redis", host, port),
            Address::Tls { host, port, .. } => ("rediss", host, port),
        };
        if host.contains(':') {
            write!(f, "{scheme}://[{host}]:{port}")?;
        } else {
            write!(f, "{scheme}://{host}:{port}")?;
        }
        if self.db == 0 { Ok(()) } else { write!(f, "/{}", self.db) }
    }
}
