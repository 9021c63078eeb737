//! Where a server is, and how to log in there.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo,
    RedisError, RedisResult, TlsCertificates,
};
use tenure::Error;
use tenure::store::{self, Credentials, Login, Refusals, decoded};

use crate::transport::address;
use crate::transport::dial::Peer;

const FORMS: &str = "redis://, rediss://, redis+unix://, redis+sentinel://, redis+cluster:// and the same with valkey";
const SCHEMES: [&str; 7] = ["redis", "rediss", "valkey", "valkeys", "redis+unix", "valkey+unix", "unix"];

/// Reads a URL whose scheme is that of one server. Hosts have this port if they name none.
pub(super) fn read_url(url: &str, port: u16) -> Result<store::Address<'_>, Error> {
    let mut url = store::Address::read(url, &SCHEMES, port, FORMS)?;
    url.login.password = url.login.password.filter(|password| !password.is_empty());
    Ok(url)
}

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
    /// The servers of a URL, with a login and a database.
    pub(super) fn all(url: &store::Address<'_>, login: &Login, db: &str) -> Result<Vec<Self>, Error> {
        let server = |address, db| Self { address, credentials: login.clone().into(), db };
        if url.scheme.ends_with("unix") {
            let path = format!("/{}", decoded("the path", url.path)?);
            return Ok(vec![server(Address::Unix(path.into()), 0)]);
        }
        let db = database(db)?;
        let at = |store::Host { name, port }: &store::Host| match &*url.scheme {
            "rediss" | "valkeys" => Address::Tls { host: name.clone(), port: *port, ca: None, cert: None, key: None },
            _ => Address::Tcp { host: name.clone(), port: *port },
        };
        let servers: Vec<Self> = url.hosts.iter().map(|host| server(at(host), db)).collect();
        let is_named_before = |(at, server): &(usize, &Self)| servers[..*at].iter().any(|other| other.host() == server.host());
        if let Some((_, twice)) = servers.iter().enumerate().find(is_named_before) {
            let what = format!("the store URL names {twice} twice");
            return Err(Error::invalid(what).with_hint("name each server once"));
        }
        Ok(servers)
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
