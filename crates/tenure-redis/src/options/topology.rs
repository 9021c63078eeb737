//! The servers that a URL names, and what they are to one another.

use std::fmt;

use tenure::Error;
use url::Url;

use super::server::Server;
use super::text::{authority, read};

/// Relation of the servers of a URL to one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topology {
    One,
    Cluster,
    Quorum,
}

/// The servers that a URL names, what they are to one another, and the URL with the first of them
/// alone.
pub(super) fn servers(text: &str) -> Result<(Topology, Vec<Server>, Url), Error> {
    let (scheme, rest) = text.split_once("://").unwrap_or((text, ""));
    let (topology, scheme) = match (scheme.strip_prefix("quorum+"), scheme.strip_suffix("+cluster")) {
        (Some(scheme), _) => (Topology::Quorum, scheme),
        (_, Some(scheme)) => (Topology::Cluster, scheme),
        _ => {
            let url = read(text)?;
            return Ok((Topology::One, vec![Server::of(&url)?], url));
        }
    };
    let (login, hosts, behind) = authority(rest);
    let urls: Vec<Url> =
        hosts.split(',').map(|host| read(&format!("{scheme}://{login}{host}{behind}"))).collect::<Result<_, _>>()?;
    if topology == Topology::Quorum && (urls.len() < 3 || urls.len().is_multiple_of(2)) {
        let what = format!("the store URL names a quorum of {} servers", urls.len());
        return Err(Error::invalid(what).with_hint("name an odd number of them, 3 at least, with commas in between"));
    }
    let servers: Vec<Server> = urls.iter().map(Server::of).collect::<Result<_, _>>()?;
    if let Some(twice) = Server::twice(&servers) {
        let what = format!("the store URL names {twice} twice");
        return Err(Error::invalid(what).with_hint("name each server once"));
    }
    let first = urls.into_iter().next().ok_or_else(|| Error::invalid("the store URL has no host"))?;
    Ok((topology, servers, first))
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::One => "single server",
            Self::Cluster => "cluster",
            Self::Quorum => "quorum",
        })
    }
}
