//! Session locks of PostgreSQL, beside other programs that call `pg_advisory_lock`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tenure::store::ReleaseReply;
use tenure::{ErrorKind, Name, Owner};
use tenure_conformance::exceptions;
use tenure_sql::postgres::Options;
use tenure_testkit::{PgBouncer, Signal, signal, wait_until};

use crate::requests::{TTL, busy, granted, lease, owner, request};
use crate::{PATIENCE, Server, open};

/// Sessions hold mutexes, and the lock ends with them.
pub(crate) const SESSION_EXCEPTIONS: &[&[&str]] =
    &[exceptions::NO_FOREIGN_LOCKS, exceptions::MUTEXES_ONLY, exceptions::PROCESS_BOUND];

/// Locks that nobody else in this process has: those of a database of their own.
pub(crate) fn fresh_space(server: &Server) -> String {
    let space = Server::fresh_table();
    server.sql(&format!("CREATE DATABASE {space}"));
    space
}

pub(crate) fn url_at(addr: SocketAddr, space: &str) -> String {
    format!("postgres://tenure@{addr}/{space}?scheme=advisory")
}

/// Every name has a key.
pub(crate) fn refuses(_: &str) -> bool {
    false
}

/// The number of the session that holds a lock whose name is a number.
pub(crate) fn holding(server: &Server, space: &str, name: &str) -> String {
    let find = "SELECT pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database";
    server.sql(&format!("{find} WHERE locktype = 'advisory' AND datname = '{space}' AND objid = {name}")).remove(0)
}

/// Ends the session that holds a lock whose name is a number.
pub(crate) fn end_session_of(server: &Server, space: &str, name: &str) {
    assert_eq!(server.sql(&format!("SELECT pg_terminate_backend({})", holding(server, space, name))), ["t"]);
}

/// The numbers of the sessions of all clients.
pub(crate) fn sessions(server: &Server) -> Vec<String> {
    server.sql("SELECT pid FROM pg_stat_activity WHERE datname <> 'postgres' AND backend_type = 'client backend'")
}

/// A busy machine may keep a backend from its end. The call that ends it waits for that, and does not fail.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_ends_late_is_waited_for() {
    let server = Server::start();
    let space = fresh_space(&server);
    let url = url_at(server.addr(), &space) + "&timeout=20s";
    let (store, other) = (open(&url).await, open(&url).await);
    granted(&store, &request("7", &owner())).await;
    let shown = busy(&other, &request("7", &owner())).await.holder.unwrap();
    let backend = holding(&server, &space, "7").parse().unwrap();
    signal(backend, Signal::Stop).unwrap();
    let ends = Arc::clone(&other);
    let ending = tokio::spawn(async move { ends.release(&lease("7", &shown.owner), Duration::ZERO).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    signal(backend, Signal::Cont).unwrap();
    assert_eq!(ending.await.unwrap().unwrap(), ReleaseReply::Released);
    granted(&other, &request("7", &owner())).await;
}

fn number() -> i64 {
    i64::from(fastrand::i32(1..))
}

/// Locks of psql, in every form there is, and ours under the name that stands for it.
#[tokio::test]
async fn psql_and_we_keep_each_other_out() {
    let server = Server::shared();
    let store = open(&url_at(server.addr(), "postgres")).await;
    let (one, big, high, low) = (number(), number() << 31, number(), -number());
    let text = format!("door {one}");
    let hashed = format!("('x' || substr(encode(sha256('{text}'), 'hex'), 1, 16))::bit(64)::bigint");
    for (name, key) in [
        (one.to_string(), one.to_string()),
        (big.to_string(), big.to_string()),
        ((-big).to_string(), (-big).to_string()),
        (format!("{high},{low}"), format!("{high}, {low}")),
        (text, hashed),
    ] {
        let mut psql = server.session();
        psql.run(&format!("SELECT pg_advisory_lock({key});"));
        let holder = busy(&store, &request(&name, &owner())).await.holder.unwrap();
        let shown = holder.owner.to_string();
        assert!(shown.contains("psql") && shown.contains("tenure") && holder.ttl.is_none(), "{holder}");
        assert_eq!(psql.run(&format!("SELECT pg_advisory_unlock({key});")), ["t"]);
        let held = owner();
        granted(&store, &request(&name, &held)).await;
        assert_eq!(psql.run(&format!("SELECT pg_try_advisory_lock({key});")), ["f"], "{name}");
        assert_eq!(psql.run(&format!("SELECT pg_try_advisory_lock_shared({key});")), ["f"], "{name}");
        assert_eq!(store.release(&lease(&name, &held), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
        // A client that dies lets go of it, and a reader counts as a holder.
        assert_eq!(psql.run(&format!("SELECT pg_try_advisory_lock_shared({key});")), ["t"], "{name}");
        busy(&store, &request(&name, &owner())).await;
        drop(psql);
        let ours = request(&name, &owner());
        wait_until(PATIENCE, "psql to end", || {
            server.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'psql'") == ["1"]
        });
        granted(&store, &ours).await;
        store.release(&lease(&name, &ours.owner), Duration::ZERO).await.unwrap();
    }
}

/// The name of the session for itself has the token and the ttl.
#[tokio::test]
async fn other_processes_see_who_holds_and_for_how_long() {
    let space = fresh_space(Server::shared());
    let url = url_at(Server::shared().addr(), &space);
    let (store, other) = (open(&url).await, open(&url).await);
    let held = Owner::generate("web-1.42").unwrap();
    granted(&store, &request("x", &held)).await;
    let entry = other.inspect(Some(&Name::new("x").unwrap())).await.unwrap().remove(0);
    let left = entry.holders[0].ttl.unwrap();
    assert!(entry.holders[0].owner == held && left <= TTL && left > TTL / 2, "{entry:?}");
    // Another process knows the key, not the name.
    let listed = other.inspect(None).await.unwrap().remove(0);
    assert!(listed.name.as_str().parse::<i64>().is_ok() && listed.holders[0].owner == held, "{listed:?}");
    assert_eq!(other.inspect(Some(&listed.name)).await.unwrap()[0].holders[0].owner, held, "which is a name of it");
    assert_eq!(store.inspect(None).await.unwrap()[0].name.as_str(), "x");
}

/// Its sessions are those of many clients.
#[tokio::test]
async fn a_pool_is_refused() {
    let pool = PgBouncer::start(Server::shared(), 4);
    let error = Options::parse(&url_at(pool.addr(), "postgres")).unwrap().open().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Refused && error.to_string().contains("pool"), "{error:?}");
}
