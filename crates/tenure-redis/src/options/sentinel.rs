//! The Sentinels that a URL names, and the service at them.

use std::fmt;
use std::sync::Arc;

use tenure::Error;
use tenure::store::Credentials;
use url::Url;

use super::server::{Server, decoded};
use super::text::{authority, read};
use crate::transport::dial::Peer;
use crate::transport::sentinel::Sentinels;

/// The usual port of a sentinel.
const PORT: u16 = 26379;

/// Sentinels, and the servers that they name.
#[derive(Clone)]
pub(super) struct Group {
    pub(super) sentinels: Vec<Server>,
    service: String,
}

impl Group {
    /// Reads a URL. Returns the group, a server without its true address, and the URL with one host
    /// alone. None for another kind of URL.
    pub(super) fn read(text: &str) -> Result<Option<(Self, Server, Url)>, Error> {
        let Some((scheme, rest)) = text.split_once("+sentinel://") else { return Ok(None) };
        if scheme.contains([':', '/', '?', '#']) {
            return Ok(None);
        }
        let (login, hosts, behind) = authority(rest);
        let (path, parameters) = behind.split_at(behind.find(['?', '#']).unwrap_or(behind.len()));
        let (service, db) = path.trim_start_matches('/').split_once('/').unwrap_or((path.trim_start_matches('/'), ""));
        let service = decoded(service)?;
        if service.is_empty() {
            return Err(Error::invalid("the store URL names no service of the sentinels")
                .with_hint("write e.g. redis+sentinel://host,host,host/mymaster"));
        }
        if matches!(scheme, "redis+unix" | "valkey+unix" | "unix") {
            return Err(Error::invalid("sentinels are not asked by a unix socket").with_hint("use redis+sentinel://"));
        }
        let sentinel = |host: &str| Server::with_port(&read(&format!("{scheme}://{host}"))?, PORT);
        let sentinels: Vec<Server> = hosts.split(',').map(sentinel).collect::<Result<_, _>>()?;
        if let Some(twice) = Server::twice(&sentinels) {
            let what = format!("the store URL names {} twice", twice.host());
            return Err(Error::invalid(what).with_hint("name each sentinel once: a majority of them is asked"));
        }
        let first = hosts.split(',').next().unwrap_or_default();
        let url = read(&format!("{scheme}://{login}{first}/{db}{parameters}"))?;
        let server = Server::of(&url)?;
        Ok(Some((Self { sentinels, service }, server, url)))
    }

    /// Sets the login at the sentinels, or one half of it.
    pub(super) fn log_in(&mut self, credentials: &Credentials) {
        // Clones know together whether the login was ever accepted: not each sentinel is waited for.
        let first = self.sentinels.first().map(|sentinel| sentinel.credentials.clone()).unwrap_or_default();
        let credentials = credentials.or(&first);
        self.sentinels.iter_mut().for_each(|sentinel| sentinel.credentials = credentials.clone());
    }

    /// How to find the master. `servers` connects to any server of the service, but for its address.
    pub(super) fn sentinels(&self, servers: &Peer) -> Result<Arc<Sentinels>, Error> {
        let peer = |sentinel: &Server| Ok((sentinel.host(), sentinel.peer()?));
        let sentinels = self.sentinels.iter().map(peer).collect::<Result<_, Error>>()?;
        Ok(Arc::new(Sentinels::new(self.service.clone(), sentinels, servers.clone())))
    }
}

/// Without secrets.
impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.sentinels.first().map(Server::to_string).unwrap_or_default();
        let hosts: Vec<String> = self.sentinels.iter().map(Server::host).collect();
        let scheme = first.split("://").next().unwrap_or_default();
        write!(f, "{scheme}+sentinel://{}/{}", hosts.join(","), self.service)
    }
}
