//! Faults of one Redis and of the way to it.

pub(super) mod access;
mod cluster;
pub(super) mod data;
mod failover;
mod holes;
pub(super) mod link;
pub(super) mod outage;
mod pushes;
mod queue;
mod sentinel;
mod tls;

use super::fixtures::{Redis, on_redis};
use super::scheme::Scheme;
use super::stage::Stage;
use crate::Item;
use crate::item::Run;
use tenure_testkit::redis;

type Row = fn(&mut Stage<'_>, &Redis);

/// A fault of a server or of the way to it, and the end of it. The rows of a quorum do it to some of its servers.
#[derive(Clone, Copy)]
pub(super) struct Fault {
    pub(super) what: &'static str,
    pub(super) begin: fn(&Redis),
    pub(super) end: fn(&Redis),
}

impl Fault {
    /// A fault that is over at once, or is never mended.
    const fn once(what: &'static str, begin: fn(&Redis)) -> Self {
        Self { what, begin, end: |_| () }
    }

    /// For less than a lease lasts.
    fn for_a_moment(self) -> impl Fn(&mut Stage<'_>, &Redis) + Copy {
        move |stage, redis| stage.is_away_for_a_moment(|| (self.begin)(redis), Some(&|| (self.end)(redis)))
    }

    /// For longer than the validity.
    fn for_long(self) -> impl Fn(&mut Stage<'_>, &Redis) + Copy {
        move |stage, redis| stage.is_away_for_long(|| (self.begin)(redis), || (self.end)(redis))
    }
}

/// A server that writes its log with every command.
pub(super) fn kept(how: redis::Builder) -> redis::Builder {
    how.arg("appendonly", "yes").arg("appendfsync", "always")
}

/// A server with a user `app`, whose password is `app`, who may not end connections.
pub(super) fn unprivileged(how: redis::Builder) -> redis::Builder {
    how.acl("user default on nopass ~* &* +@all\nuser app on >app ~* &* +@all -client|kill\n")
}

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
    pub(super) fn plain(self, row: impl Fn(&mut Stage<'_>, &Redis) + Copy + Send + Sync + 'static) -> impl Fn(&str) -> Run {
        on_redis(self, |how| how, row)
    }

    /// On a server that writes its log with every command.
    fn kept(self, row: impl Fn(&mut Stage<'_>, &Redis) + Copy + Send + Sync + 'static) -> impl Fn(&str) -> Run {
        on_redis(self, kept, row)
    }

    /// On a server whose wall clock can be set.
    pub(super) fn clocked(self, row: Row) -> impl Fn(&str) -> Run {
        on_redis(self, redis::Builder::shifted_clock, row)
    }

    /// On a server with a user `app`, whose password is `app`, who may not end connections.
    fn unprivileged(self, row: Row) -> impl Fn(&str) -> Run {
        on_redis(self, unprivileged, row)
    }
}
