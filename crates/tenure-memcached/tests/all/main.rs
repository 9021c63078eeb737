//! The memcached store on a real server: its items, its connection and their faults, and the cases of conformance.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "helpers of tests are tests")]

mod answered;
mod clocks;
mod conformance;
#[path = "../../../tenure-sql/tests/shared/dropped.rs"]
mod dropped;
mod faults;
mod forgets;
mod items;
mod refusals;
#[path = "../../../tenure-sql/tests/shared/requests.rs"]
mod requests;

use std::sync::Arc;
use std::time::Duration;

use tenure::store::Store;
use tenure_memcached::Options;
use tenure_testkit::{MemcachedServer, Proxy};

/// For what happens at once, on a machine that has other work.
const PATIENCE: Duration = Duration::from_secs(20);

/// Its calls have time for an answer that comes late on such a machine, unless the URL says otherwise.
async fn open(url: &str) -> Arc<dyn Store> {
    let patient = tenure_testkit::patient(url, "10s");
    let url = if url.contains("timeout=") { url } else { &patient };
    Arc::new(Options::parse(url).unwrap().open().await.unwrap())
}

/// Names of its own on the shared server behind a proxy, and stores that reach them through the proxy and without it.
async fn behind_proxy() -> (Proxy, Arc<dyn Store>, Arc<dyn Store>) {
    behind_proxy_with("").await
}

/// As [`behind_proxy`], with more parameters for the store behind it.
async fn behind_proxy_with(parameters: &str) -> (Proxy, Arc<dyn Store>, Arc<dyn Store>) {
    let (server, prefix) = (MemcachedServer::shared(), MemcachedServer::fresh_prefix());
    let proxy = Proxy::start_opaque(server.addr());
    let behind = open(&(MemcachedServer::url_at(proxy.addr(), &prefix) + parameters)).await;
    (proxy, behind, open(&MemcachedServer::url_at(server.addr(), &prefix)).await)
}

/// Not a case: the workers of these tests begin here.
#[test]
fn worker() {
    tenure_testkit::worker::entry();
}
