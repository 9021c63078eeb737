//! The Redis store on real servers: its commands, its links and their faults, and the cases of conformance.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test stops where its set-up does")]

mod all;
mod cluster;
mod conformance;
mod counter;
mod data;
mod durable;
mod faults;
mod fenced;
mod foreign;
mod ids;
mod keys;
mod link;
mod logins;
mod mixed;
mod moved;
mod neighbours;
mod notes;
mod optimistic;
mod plain;
mod pretender;
mod push;
mod queue;
mod quorum;
mod quorum_memory;
mod quorum_votes;
mod redisson;
mod redisson_cluster;
mod rules;
mod schemes;
mod sentinel;
mod steps;
mod store;
mod subject;
mod users;
mod wire;

use std::time::{Duration, Instant};

use tenure::{EndReason, Guard};
use tenure_redis::{Options, RedisStore};
use tenure_testkit::{Proxy, answered};

use crate::subject::Lent;

/// Longer than any test.
const LONG: Duration = Duration::from_secs(60);
/// For what happens at once, on a machine that has other work.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time for which a name is kept for the waiter that was handed it.
const HANDOFF_TTL: Duration = Duration::from_millis(1_500);

async fn store(url: &str) -> RedisStore {
    Options::parse(url).unwrap().connect().await.unwrap()
}

/// A server and a store on it, whose calls are not sent twice.
async fn served() -> (Lent, RedisStore) {
    let server = Lent::alone();
    let store = store(&patient(&server.url())).await;
    (server, store)
}

/// A server behind a proxy, and a store that reaches it through the proxy, with this operation timeout.
async fn behind_proxy(timeout: &str) -> (Lent, Proxy, RedisStore) {
    let server = Lent::alone();
    let proxy = Proxy::start(server.addr());
    let store = store(&format!("{}?timeout={timeout}", proxy.url())).await;
    (server, proxy, store)
}

/// A server with a user `app` of these rights, and the URL with its name and password.
fn with_user(rights: &str) -> (Lent, String) {
    let server = Lent::alone();
    server.cli(&format!("ACL SETUSER app on >pw {rights}"));
    let url = format!("redis://app:pw@{}", server.addr());
    (server, url)
}

/// The URL with a timeout that no pause outlasts. Nothing is sent twice then.
fn patient(url: &str) -> String {
    tenure_testkit::patient(url, "10s")
}

/// Verifies a guard that a release after `since` has handed over. Such a lease ends soon if its process stands still.
async fn is_handed_over(guard: &Guard, since: Instant) {
    let (verified, took) = (guard.verify().await, since.elapsed());
    assert!(guard.end_reason() != Some(EndReason::Expired) || took < HANDOFF_TTL / 2, "verified only after {took:?}");
    verified.unwrap();
}

/// Not a case: the workers of these tests begin here.
#[test]
fn worker() {
    tenure_testkit::worker::entry();
}
