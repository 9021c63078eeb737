//! Faults of one Redis and of the way to it.

mod access;
mod cluster;
mod data;
mod holes;
mod link;
mod outage;
mod pushes;
mod queue;
mod sentinel;
mod tls;

use super::fixtures::{Redis, on_redis};
use super::scheme::Scheme;
use super::stage::Stage;
use crate::Item;
use crate::item::Run;

type Row = fn(&mut Stage<'_>, &Redis);

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

impl Scheme {
    /// On a server without persistence.
    pub(super) fn plain(self, row: Row) -> impl Fn(&str) -> Run {
        on_redis(self, |how| how, row)
    }

    /// On a server that writes its log with every command.
    fn kept(self, row: Row) -> impl Fn(&str) -> Run {
        on_redis(self, |how| how.arg("appendonly", "yes").arg("appendfsync", "always"), row)
    }

    /// On a server whose wall clock can be set.
    pub(super) fn clocked(self, row: Row) -> impl Fn(&str) -> Run {
        on_redis(self, tenure_testkit::redis::Builder::shifted_clock, row)
    }

    /// On a server with a user `app`, whose password is `app`, who may not end connections.
    fn unprivileged(self, row: Row) -> impl Fn(&str) -> Run {
        on_redis(self, |how| how.acl("user default on nopass ~* &* +@all\nuser app on >app ~* &* +@all -client|kill\n"), row)
    }
}
