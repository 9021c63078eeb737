//! Where the nodes of a cluster are, as one of them says: in an answer that leads to another, and in its map
//! of the slots.

use std::fmt;

use redis::{RedisError, Value};
use tenure::Error;

use crate::transport::failure::{translate, unexpected};
use crate::transport::reply::{Answers, only};

/// Number of slots of every cluster.
pub(super) const SLOTS: usize = 16_384;

/// Where a node is: host and port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Whether an answer names another node.
pub(super) fn is_redirect(error: &RedisError) -> bool {
    matches!(error.code(), Some("MOVED" | "ASK"))
}

/// An answer that names another node.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Redirect {
    pub(super) slot: u16,
    pub(super) address: Address,
    /// For this command alone: the slot is on the way there.
    pub(super) asking: bool,
}

impl Redirect {
    /// Reads `MOVED <slot> <host>:<port>` or the same with `ASK`, as `from` has answered. Without a
    /// host, it is that of `from`.
    pub(super) fn read(error: &RedisError, from: &Address) -> Option<Self> {
        let asking = is_redirect(error).then(|| error.code() == Some("ASK"))?;
        let (slot, address) = error.detail()?.split_once(' ')?;
        let (host, port) = address.rsplit_once(':')?;
        let host = if host.is_empty() || host == "?" { &from.host } else { host };
        let address = Address { host: host.to_owned(), port: port.parse().ok()? };
        let slot = slot.parse().ok().filter(|slot| usize::from(*slot) < SLOTS)?;
        Some(Self { slot, address, asking })
    }
}

/// Answer of a node about its cluster.
pub(super) struct Map {
    pub(super) ranges: Vec<(u16, u16, Address)>,
    /// All nodes in it.
    pub(super) others: Vec<Address>,
}

/// Reads the answer to `CLUSTER SLOTS` of the node at `from`.
pub(super) fn map_of(answers: Answers, from: &Address) -> Result<Map, Error> {
    let told = only(answers)?.map_err(|error| translate(&error))?;
    let odd = || unexpected(format_args!("{told:?} to CLUSTER SLOTS"));
    let Value::Array(rows) = &told else { return Err(odd()) };
    let mut map = Map { ranges: Vec::with_capacity(rows.len()), others: Vec::new() };
    for row in rows {
        let Value::Array(parts) = row else { return Err(odd()) };
        let [Value::Int(first), Value::Int(last), nodes @ ..] = &parts[..] else { return Err(odd()) };
        let slot = |number: i64| u16::try_from(number).ok().filter(|slot| usize::from(*slot) < SLOTS).ok_or_else(odd);
        let nodes: Vec<Address> = nodes.iter().map(|node| address_of(node, from).ok_or_else(odd)).collect::<Result<_, _>>()?;
        let (first, last) = (slot(*first)?, slot(*last)?);
        if first > last {
            return Err(odd());
        }
        map.ranges.push((first, last, nodes.first().ok_or_else(odd)?.clone()));
        map.others.extend(nodes);
    }
    if map.ranges.is_empty() {
        return Err(Error::unavailable("the node knows of no node that serves a slot").with_hint("join it to its cluster"));
    }
    Ok(map)
}

/// Reads a node of `CLUSTER SLOTS`. One that does not know its own host leaves it out.
fn address_of(node: &Value, from: &Address) -> Option<Address> {
    let Value::Array(parts) = node else { return None };
    let [host, Value::Int(port), ..] = &parts[..] else { return None };
    let host = match host {
        Value::BulkString(host) if !host.is_empty() && &host[..] != b"?" => String::from_utf8(host.clone()).ok()?,
        _ => from.host.clone(),
    };
    Some(Address { host, port: u16::try_from(*port).ok()? })
}
