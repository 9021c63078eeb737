//! Faults of one Redis and of the way to it.

mod access;
mod data;
mod holes;
mod link;
mod outage;
mod pushes;
mod queue;
mod tls;

use super::rigs::{Redis, on_redis};
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

/// On a server without persistence.
fn plain(row: Row) -> impl Fn(&str) -> Run {
    on_redis(|how| how, row)
}

/// On a server that writes down what it is told.
fn kept(row: Row) -> impl Fn(&str) -> Run {
    on_redis(|how| how.arg("appendonly", "yes").arg("appendfsync", "always"), row)
}

/// On a server whose wall clock can be set.
fn clocked(row: Row) -> impl Fn(&str) -> Run {
    on_redis(tenure_testkit::redis::Builder::shifted_clock, row)
}

/// On a server with a user `app`, whose password is `app`, who may not end connections.
fn unprivileged(row: Row) -> impl Fn(&str) -> Run {
    on_redis(|how| how.acl("user default on nopass ~* &* +@all\nuser app on >app ~* &* +@all -client|kill\n"), row)
}
