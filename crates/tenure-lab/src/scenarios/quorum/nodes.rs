//! The servers of a row, as a store.

use std::sync::Arc;

use tenure_testkit::{RedisServer, admit, redis, wait_until};

use crate::item::Run;
use crate::scenarios::fixtures::Redis;
use crate::scenarios::redis::outage::loads_slowly;
use crate::scenarios::redis::{Fault, kept, unprivileged};
use crate::scenarios::rows::Rows;
use crate::scenarios::scheme::NATIVE;
use crate::scenarios::stage::{Access, DOOR, Look, SLACK, Stage};

pub(super) const OF: Rows = Rows { id: "quorum", fences: true };
/// Number of servers.
pub(super) const ALL: usize = 5;
/// A majority of them.
pub(super) const MAJORITY: usize = 3;

/// Settings of the servers of a row, and the login of the processes in the way of the fault.
#[derive(Clone, Copy)]
pub(super) struct How {
    server: fn(redis::Builder) -> redis::Builder,
    login: &'static str,
}

pub(super) const PLAIN: How = How { server: |how| how, login: "" };
pub(super) const KEPT: How = How { server: kept, ..PLAIN };
pub(super) const CLOCKED: How = How { server: redis::Builder::shifted_clock, ..PLAIN };
pub(super) const LOADS_SLOWLY: How = How { server: loads_slowly, ..PLAIN };
pub(super) const UNPRIVILEGED: How = How { server: unprivileged, login: "app:app@" };

/// The servers, as a store.
pub(super) struct Nodes {
    pub(super) all: Vec<Redis>,
    login: &'static str,
}

impl Nodes {
    fn start(how: How, count: usize) -> Self {
        let all = (0..count).map(|_| Redis::start((how.server)(RedisServer::builder()), NATIVE)).collect();
        let nodes = Self { all, login: how.login };
        admit(&nodes.far());
        nodes
    }

    fn url(&self, address: fn(&Redis) -> std::net::SocketAddr, login: &str) -> String {
        let hosts: Vec<String> = self.all.iter().map(|redis| address(redis).to_string()).collect();
        NATIVE.url(&format!("quorum+redis://{login}{}", hosts.join(",")))
    }

    pub(super) fn near(&self) -> String {
        self.url(|redis| redis.proxy.addr(), self.login)
    }

    pub(super) fn far(&self) -> String {
        self.url(|redis| redis.server.addr(), "")
    }

    /// Some of them, as the seed has it.
    pub(super) fn some(&self, stage: &mut Stage<'_>, count: usize) -> Hit<'_> {
        Hit(stage.rng.choose_multiple(self.all.iter(), count), self.all.len())
    }

    /// Whether a name is kept from everybody else.
    fn is_held_by(&self, name: &str) -> Option<(String, bool)> {
        // As few questions as can be: on a busy machine each takes its time.
        let is_free = self.all.iter().filter(|redis| !redis.has(name)).nth(self.all.len() / 2).is_some();
        (!is_free).then(|| ("a majority".to_owned(), false))
    }

    pub(super) fn one_or_two(&self, stage: &mut Stage<'_>) -> Hit<'_> {
        let count = stage.rng.usize(1..=2);
        self.some(stage, count)
    }
}

/// The servers that have the fault, and of how many.
pub(super) struct Hit<'a>(pub(super) Vec<&'a Redis>, usize);

impl Hit<'_> {
    pub(super) fn begin(&self, fault: Fault) {
        self.0.iter().for_each(|redis| (fault.begin)(redis));
    }

    pub(super) fn end(&self, fault: Fault) {
        self.0.iter().for_each(|redis| (fault.end)(redis));
    }

    pub(super) fn told(&self, fault: Fault) -> String {
        format!("at {} of {}: {}", self.0.len(), self.1, fault.what)
    }
}

/// A scenario on five servers.
pub(super) fn on_five(how: How, row: impl Fn(&mut Stage<'_>, &Nodes) + Copy + Send + Sync + 'static) -> impl Fn(&str) -> Run {
    on(how, ALL, row)
}

/// A scenario on so many servers.
pub(super) fn on(
    how: How,
    count: usize,
    row: impl Fn(&mut Stage<'_>, &Nodes) + Copy + Send + Sync + 'static,
) -> impl Fn(&str) -> Run {
    move |id| {
        let id = id.to_owned();
        Arc::new(move |lab, seed| {
            let nodes = Arc::new(Nodes::start(how, count));
            let looked_at = Arc::clone(&nodes);
            let look: Look = Box::new(move |name| looked_at.is_held_by(name));
            let access = Access { near: nodes.near(), far: nodes.far(), alone: false, look: Some(look), line: None };
            let mut stage = Stage::new(lab, &id, seed, access);
            row(&mut stage, &nodes);
            // A server that was away when a lease was given up keeps it until the ttl has passed, and no longer.
            let is_free = || !nodes.all.iter().any(|redis| redis.has(DOOR));
            wait_until(stage.kept() + SLACK, "the door to be free at each server", is_free);
            stage.finish()
        })
    }
}
