//! The PostgreSQL store on a real server: its table, its connection and their faults, and the cases of conformance.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "helpers of tests are tests")]

#[path = "../shared/conformance.rs"]
mod conformance;
#[path = "../shared/dropped.rs"]
mod dropped;
#[path = "../shared/dropped_rows.rs"]
mod dropped_rows;
mod faults;
mod fenced;
mod hosts;
#[path = "../shared/lent.rs"]
mod lent;
#[path = "../shared/outages.rs"]
mod outages;
mod pool;
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
mod statements;
mod theirs;

use std::sync::Arc;
use std::time::Duration;

use tenure::store::Store;
use tenure_conformance::exceptions;
use tenure_sql::postgres::Options;
use tenure_testkit::PostgresServer as Server;
use tenure_testkit::Proxy;

/// For what happens at once, on a machine that has other work.
const PATIENCE: Duration = Duration::from_secs(20);

/// Nobody but tenure writes to its table.
const EXCEPTIONS: &[&[&str]] = &[exceptions::NO_FOREIGN_LOCKS];

/// A timeout that leaves time for others beside a locked row.
fn timeout_beside_a_lock() -> &'static str {
    "5s"
}

/// The transactions that are open, of all tests.
const OPEN_TRANSACTIONS: &str =
    "SELECT pid, xact_start FROM pg_stat_activity WHERE application_name = 'tenure' AND state LIKE 'idle in%'";

/// Counts the sweeps of a table that wait.
const SWEEPS: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%DELETE FROM%locks%'";

/// Counts the sessions of stores.
const SESSIONS: &str = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tenure'";

/// Does something while another session keeps the table locked.
async fn while_locked<T>(server: &Server, what: impl Future<Output = T>) -> T {
    let mut session = server.session();
    session.run("BEGIN; LOCK TABLE locks IN ACCESS EXCLUSIVE MODE;");
    let outcome = what.await;
    session.run("COMMIT;");
    outcome
}

/// A table as statements name it.
fn in_sql(table: &str) -> String {
    table.to_owned()
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

#[tokio::test]
async fn an_observer_that_hardly_polls_sees_each_leader_of_its_process() {
    let store = open(&(Server::shared().url(&Server::fresh_table()) + "&timeout=5s")).await;
    requests::each_leader_is_seen(&tenure::Locker::new(store)).await;
}

/// Not a case: the workers of these tests begin here.
#[test]
fn worker() {
    tenure_testkit::worker::entry();
}
