//! The servers that a URL names, and what they are to one another.

use std::fmt;

use tenure::Error;

use super::server::{Server, read_url};

/// Relation of the servers of a URL to one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topology {
    One,
    Cluster,
    Quorum,
}

/// The servers that a URL names, what they are to one another, and the parameters.
pub(super) fn servers(text: &str) -> Result<(Topology, Vec<Server>, String), Error> {
    let (scheme, rest) = text.split_once("://").unwrap_or((text, ""));
    let (topology, plain) = match (scheme.strip_prefix("quorum+"), scheme.strip_suffix("+cluster")) {
        (Some(scheme), _) => (Topology::Quorum, format!("{scheme}://{rest}")),
        (_, Some(scheme)) => (Topology::Cluster, format!("{scheme}://{rest}")),
        _ => (Topology::One, text.to_owned()),
    };
    let address = read_url(&plain, 6379)?;
    let servers = Server::all(&address, &address.login, address.path.trim_start_matches('/'))?;
    let several = "the store URL names several servers, and its scheme is for one";
    match (topology, servers.len()) {
        (Topology::One, 2..) => Err(Error::invalid(several).with_hint("write redis+cluster:// or quorum+redis:// in front")),
        (Topology::Quorum, count) if count < 3 || count.is_multiple_of(2) => {
            let what = format!("the store URL names a quorum of {count} servers");
            Err(Error::invalid(what).with_hint("name an odd number of them, 3 at least, with commas in between"))
        }
        _ => Ok((topology, servers, address.parameters.to_owned())),
    }
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
