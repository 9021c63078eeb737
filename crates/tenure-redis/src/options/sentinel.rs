//! The Sentinels that a URL names, and the service at them.

use std::fmt;
use std::sync::Arc;

use tenure::Error;
use tenure::store::{Credentials, Login, decoded};

use super::server::{Server, read_url};
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
    /// Reads a URL. Returns the group, a server without its true address, and the parameters. None for
    /// another kind of URL.
    pub(super) fn read(text: &str) -> Result<Option<(Self, Server, String)>, Error> {
        let Some((scheme, rest)) = text.split_once("+sentinel://") else { return Ok(None) };
        if scheme.contains([':', '/', '?', '#']) {
            return Ok(None);
        }
        if scheme.ends_with("unix") {
            return Err(Error::invalid("sentinels are not asked by a unix socket").with_hint("use redis+sentinel://"));
        }
        let url = format!("{scheme}://{rest}");
        let url = read_url(&url, PORT)?;
        let path = url.path.trim_start_matches('/');
        let (service, db) = path.split_once('/').unwrap_or((path, ""));
        let service = decoded("the service", service)?;
        if service.is_empty() {
            return Err(Error::invalid("the store URL names no service of the sentinels")
                .with_hint("write e.g. redis+sentinel://host,host,host/mymaster"));
        }
        let sentinels = Server::all(&url, &Login::default(), "")?;
        let server = Server::all(&url, &url.login, db)?.swap_remove(0);
        Ok(Some((Self { sentinels, service }, server, url.parameters.to_owned())))
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
