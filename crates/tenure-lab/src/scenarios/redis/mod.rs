//! Faults of one Redis and of the way to it.

pub(super) mod access;
mod cluster;
pub(super) mod data;
mod failover;
mod fault;
mod holes;
pub(super) mod link;
pub(super) mod outage;
mod pushes;
mod queue;
mod sentinel;
mod tls;

pub(super) use self::fault::{Fault, kept, unprivileged};
use super::scheme::Scheme;
use crate::Item;

pub(super) fn items() -> Vec<Item> {
    [
        link::items(),
        outage::items(),
        pushes::items(),
        queue::items(),
        data::items(),
        access::items(),
        tls::items(),
        holes::items(),
        sentinel::items(),
        cluster::items(),
    ]
    .concat()
}

/// The rows that are played in every scheme.
pub(super) fn in_scheme(scheme: Scheme) -> Vec<Item> {
    [link::in_scheme(scheme), outage::in_scheme(scheme), data::in_scheme(scheme)].concat()
}

/// The rows of a scheme in which an owner is at a key for as long as its ttl lasts.
pub(super) fn with_ttl(scheme: Scheme) -> Vec<Item> {
    [outage::with_ttl(scheme), data::with_ttl(scheme)].concat()
}

/// The row of a scheme that runs scripts.
pub(super) fn with_scripts(scheme: Scheme) -> Vec<Item> {
    outage::with_scripts(scheme)
}

/// The row of a scheme that runs none.
pub(super) fn without_scripts(scheme: Scheme) -> Vec<Item> {
    outage::without_scripts(scheme)
}
