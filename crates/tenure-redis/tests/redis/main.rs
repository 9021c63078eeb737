//! The Redis store on real servers: its commands, its links and their faults, and the cases of conformance.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test stops where its set-up does")]

mod all;
mod cluster;
mod conformance;
mod counter;
mod durable;
mod faults;
mod fenced;
mod foreign;
mod ids;
mod keys;
mod link;
mod mixed;
mod neighbours;
mod notes;
mod optimistic;
mod plain;
mod pretender;
mod push;
mod queue;
mod quorum;
mod redisson;
mod redisson_cluster;
mod rules;
mod schemes;
mod sentinel;
mod store;
mod subject;
mod users;
mod wire;

use std::time::Duration;

use tenure_redis::{Options, RedisStore};
use tenure_testkit::{Proxy, RedisServer};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(60);
/// For what happens at once, on a machine that has other work.
const PATIENCE: Duration = Duration::from_secs(20);

async fn store(url: &str) -> RedisStore {
    Options::parse(url).unwrap().connect().await.unwrap()
}

/// A server behind a proxy, and a store that reaches it through the proxy.
async fn behind_proxy() -> (RedisServer, Proxy, RedisStore) {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr());
    let store = store(&format!("{}?timeout=400ms", proxy.url())).await;
    (server, proxy, store)
}

/// Not a case: the workers of these tests begin here.
#[test]
fn worker() {
    tenure_testkit::worker::entry();
}
