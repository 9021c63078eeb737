//! The PostgreSQL store on a real server: its table, its connection and their faults, and the cases of conformance.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "helpers of tests are tests")]

mod conformance;
mod dropped;
mod faults;
mod fenced;
mod pool;
#[path = "../shared/requests.rs"]
mod requests;
mod rows;
mod secure;

use std::sync::Arc;
use std::time::Duration;

use tenure::store::Store;
use tenure_sql::postgres::Options;
use tenure_testkit::{PostgresServer, Proxy};

/// For what happens at once, on a machine that has other work.
const PATIENCE: Duration = Duration::from_secs(20);

async fn open(url: &str) -> Arc<dyn Store> {
    Options::parse(url).unwrap().open().await.unwrap()
}

/// A table of its own on the shared server behind a proxy, and stores that reach it through the proxy and without it.
async fn behind_proxy() -> (Proxy, Arc<dyn Store>, Arc<dyn Store>) {
    let (proxy, table) = (Proxy::start_opaque(PostgresServer::shared().addr()), PostgresServer::fresh_table());
    let behind = open(&(PostgresServer::url_at(proxy.addr(), &table) + "&timeout=2s")).await;
    (proxy, behind, open(&PostgresServer::shared().url(&table)).await)
}

/// Not a case: the workers of these tests begin here.
#[test]
fn worker() {
    tenure_testkit::worker::entry();
}
