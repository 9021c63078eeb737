//! The MariaDB store on a real server: its table, its connection and their faults, and the cases of conformance.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "helpers of tests are tests")]

mod cluster;
#[path = "../shared/conformance.rs"]
mod conformance;
#[path = "../shared/dropped.rs"]
mod dropped;
#[path = "../shared/dropped_rows.rs"]
mod dropped_rows;
mod faults;
mod fenced;
#[path = "../shared/lent.rs"]
mod lent;
#[path = "../shared/outages.rs"]
mod outages;
#[path = "../shared/requests.rs"]
mod requests;
#[path = "../shared/rows.rs"]
mod rows;
mod secure;
#[path = "../shared/session_conformance.rs"]
mod session_conformance;
#[path = "../shared/session_faults.rs"]
mod session_faults;
mod session_locks;
mod settings;
mod theirs;

use std::sync::Arc;
use std::time::Duration;

use tenure::store::Store;
use tenure_conformance::exceptions;
use tenure_sql::mysql::Options;
use tenure_testkit::MariaDbServer as Server;
use tenure_testkit::Proxy;

/// For what happens at once, on a machine that has other work.
const PATIENCE: Duration = Duration::from_secs(20);

/// Nobody but tenure writes to its table.
const EXCEPTIONS: &[&[&str]] = &[exceptions::NO_FOREIGN_LOCKS, exceptions::NO_PUSH];

/// A timeout that leaves time for others beside a locked row. MySQL waits for it a second or two.
fn timeout_beside_a_lock() -> &'static str {
    "5s"
}

/// The transactions that are open, of all tests.
const OPEN_TRANSACTIONS: &str =
    "SELECT trx_id, trx_mysql_thread_id, trx_started, trx_state, trx_query FROM information_schema.innodb_trx";

/// Counts the sweeps of a table that wait.
const SWEEPS: &str = "SELECT COUNT(*) FROM information_schema.processlist
  WHERE id <> CONNECTION_ID() AND info LIKE '%`locks` SET fence = GREATEST(fence,%'";

/// Counts the sessions of stores.
const SESSIONS: &str = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = 'locks'";

/// Does something while another session keeps the table locked.
async fn while_locked<T>(server: &Server, what: impl Future<Output = T>) -> T {
    let opts = mysql_async::OptsBuilder::default().ip_or_hostname("127.0.0.1").tcp_port(server.addr().port()).user(Some("root"));
    let mut session = mysql_async::Conn::new(opts).await.unwrap();
    mysql_async::prelude::Queryable::query_drop(&mut session, "LOCK TABLES locks.locks WRITE").await.unwrap();
    let outcome = what.await;
    mysql_async::prelude::Queryable::query_drop(&mut session, "UNLOCK TABLES").await.unwrap();
    outcome
}

/// A table as statements name it.
fn in_sql(table: &str) -> String {
    format!("locks.{table}")
}

async fn open(url: &str) -> Arc<dyn Store> {
    Options::parse(url).unwrap().open().await.unwrap()
}

/// A table of its own on the shared server behind a proxy, and stores that reach it through the proxy and without it.
async fn behind_proxy() -> (Proxy, Arc<dyn Store>, Arc<dyn Store>) {
    let (proxy, table) = (Proxy::start_opaque(Server::shared().addr()), Server::fresh_table());
    let behind = open(&(Server::url_at(proxy.addr(), &table) + "&timeout=2s")).await;
    (proxy, behind, open(&Server::shared().url(&table)).await)
}

/// Not a case: the workers of these tests begin here.
#[test]
fn worker() {
    tenure_testkit::worker::entry();
}
