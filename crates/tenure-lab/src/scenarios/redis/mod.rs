//! Faults of one Redis and of the way to it.

mod access;
mod data;
mod holes;
mod link;
mod outage;
mod pushes;
mod queue;
mod tls;

use super::dialect::Dialect;
use super::fixtures::{Redis, on_redis};
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
    ]
    .concat()
}

/// The rows that are played in every dialect.
pub(super) fn in_dialect(dialect: Dialect) -> Vec<Item> {
    [link::in_dialect(dialect), outage::in_dialect(dialect), data::in_dialect(dialect)].concat()
}

/// The rows of a dialect in which an owner is at a key for as long as its ttl lasts.
pub(super) fn with_ttl(dialect: Dialect) -> Vec<Item> {
    [outage::with_ttl(dialect), data::with_ttl(dialect)].concat()
}

/// The row of a dialect that runs scripts.
pub(super) fn with_scripts(dialect: Dialect) -> Vec<Item> {
    outage::with_scripts(dialect)
}

/// The row of a dialect that runs none.
pub(super) fn without_scripts(dialect: Dialect) -> Vec<Item> {
    outage::without_scripts(dialect)
}

impl Dialect {
    /// On a server without persistence.
    pub(super) fn plain(self, row: Row) -> impl Fn(&str) -> Run {
        on_redis(self, |how| how, row)
    }

    /// On a server that writes down what it is told.
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
