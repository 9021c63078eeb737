//! Answers that are lost, sessions that end, servers that stop, rows that somebody keeps locked.

use std::time::{Duration, Instant};

use tenure::store::{ReleaseReply, RenewReply};
use tenure::{ErrorKind, Locker};
use tenure_sql::postgres::Options;
use tenure_testkit::page::{errors, told};
use tenure_testkit::{PostgresServer, Proxy, Signal, signal, wait_until};

use crate::outages::settled;
use crate::requests::{granted, lease, owner, request};
use crate::rows::cycle;
use crate::{PATIENCE, behind_proxy, open};

/// The statement is on its way when its connection is given up. The next connection ends that session, so it never runs.
#[tokio::test]
async fn what_is_left_on_the_way_never_runs() {
    let (server, table) = (PostgresServer::shared(), PostgresServer::fresh_table());
    let proxy = Proxy::start_opaque(server.addr());
    let url = PostgresServer::url_at(proxy.addr(), &table) + "&timeout=2s&application_name=" + &table;
    let (store, other) = (open(&url).await, open(&server.url(&table)).await);
    granted(&store, &request("y", &owner())).await;
    // A connection that has just answered is not left.
    tokio::time::sleep(Duration::from_millis(150)).await;
    proxy.hold_present_requests();
    let given = request("x", &owner()).with_generated(false);
    let error = store.acquire(&given).await.unwrap_err();
    assert!(error.may_have_been_applied() && store.features().late_commands, "{error:?}");
    // On a connection of its own.
    assert!(store.inspect(None).await.unwrap().iter().all(|entry| entry.name.as_str() != "x"));
    settled(&proxy, &store).await;
    proxy.release_requests();
    // A session that is still there runs what it is sent now, and then finds that its client has gone.
    let sessions = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{table}'");
    wait_until(PATIENCE, "the first session to end", || server.sql(&sessions) == ["1"]);
    granted(&other, &request("x", &owner())).await;
}

#[tokio::test]
async fn a_killed_session_is_replaced() {
    let table = PostgresServer::fresh_table();
    let store = open(&(PostgresServer::shared().url(&table) + "&application_name=victim")).await;
    let held = owner();
    granted(&store, &request("x", &held)).await;
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'victim'";
    assert_eq!(PostgresServer::shared().sql(kill), ["t"]);
    let deadline = Instant::now() + PATIENCE;
    // The first call may meet the end of the old session.
    while store.renew(&[lease("x", &held)]).await.remove(0).ok() != Some(RenewReply::Renewed) {
        assert!(Instant::now() < deadline, "no new session");
    }
    assert_eq!(store.release(&lease("x", &held), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
}

/// As after a failover to a replica: it grants nothing, says so, and the store finds the way back by itself.
#[tokio::test]
async fn a_server_that_became_read_only_is_told() {
    let server = PostgresServer::start();
    let store = open(&server.url("locks")).await;
    let held = owner();
    granted(&store, &request("x", &held)).await;
    let set = |on: &str| {
        server.sql(&format!("ALTER SYSTEM SET default_transaction_read_only = {on}"));
        server.sql("SELECT pg_reload_conf()");
    };
    set("on");
    let deadline = Instant::now() + PATIENCE;
    let error = loop {
        match store.acquire(&request("y", &owner())).await {
            Err(error) => break error,
            Ok(_) => assert!(Instant::now() < deadline, "it still grants"),
        }
    };
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("replica"), "{error:?}");
    assert!(!error.may_have_been_applied() && error.is_transient(), "{error:?}");
    set("off");
    let renewed = || async { store.renew(&[lease("x", &held)]).await.remove(0).ok() == Some(RenewReply::Renewed) };
    while !renewed().await {
        assert!(Instant::now() < deadline, "it does not find the way back");
    }
}

/// The server is well, and serves others.
#[tokio::test]
async fn a_server_without_a_connection_or_time_to_spare_is_overloaded() {
    let server = PostgresServer::builder().set("max_connections", "8").start();
    // Some connections are for superusers alone.
    let url = server.url("locks").replace("tenure@", "app@");
    let mut stores = vec![open(&server.url("locks")).await];
    server.sql("CREATE ROLE app LOGIN; GRANT ALL ON locks TO app");
    let error = loop {
        match Options::parse(&url).unwrap().open().await {
            Ok(store) if stores.len() < 20 => stores.push(store),
            Ok(_) => panic!("it takes any number"),
            Err(error) => break error,
        }
    };
    assert!(error.kind() == ErrorKind::Overloaded && error.to_string().contains("max_connections"), "{error:?}");
    server.sql("ALTER ROLE tenure SET statement_timeout = '100ms'");
    let store = open(&(server.url("locks") + "&timeout=10s")).await;
    let held = request("x", &owner());
    granted(&store, &held).await;
    let mut session = server.session();
    session.run("BEGIN; SELECT name FROM locks WHERE name = 'x' FOR UPDATE;");
    let error = store.release(&held.lease(), Duration::ZERO).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Overloaded && !error.may_have_been_applied(), "{error:?}");
}

/// Notifications that nobody has heard: the waiter polls when its new connection is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_connection_is_replaced_is_served() {
    let (proxy, store, other) = behind_proxy().await;
    let held = owner();
    granted(&other, &request("x", &held)).await;
    let locks = Locker::new(store);
    let waiting = tokio::spawn(locks.mutex("x").acquire());
    while other.inspect(None).await.unwrap()[0].waiters.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    proxy.refuse();
    proxy.cut();
    other.release(&lease("x", &held), Duration::ZERO).await.unwrap();
    proxy.accept();
    let guard = tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
    assert_eq!(other.inspect(None).await.unwrap()[0].holders.len(), 1);
    let _ = guard.release().await;
}

/// Any user can fill the queue of notifications, with a session that listens in an open transaction. It takes 8 GB. Here a trigger
/// fails a transaction that notifies, at its end and with the same error.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_of_notifications_refuses_no_hand_over() {
    let server = PostgresServer::start();
    server.sql(
        "CREATE TABLE told (channel text);
         CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS
           'BEGIN RAISE SQLSTATE ''54000'' USING MESSAGE = ''too many notifications in the NOTIFY queue''; END';
         CREATE CONSTRAINT TRIGGER no_room AFTER INSERT ON told DEFERRABLE INITIALLY DEFERRED
           FOR EACH ROW EXECUTE FUNCTION fails();
         CREATE FUNCTION public.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS 'BEGIN INSERT INTO told VALUES ($1); END';
         ALTER DATABASE postgres SET search_path = public, pg_catalog",
    );
    let url = server.url("locks") + "&timeout=10s";
    let (store, waiters) = (open(&url).await, open(&url).await);
    let held = request("x", &owner());
    granted(&store, &held).await;
    let waiting = tokio::spawn(Locker::new(waiters).mutex("x").acquire());
    while store.inspect(None).await.unwrap()[0].waiters.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(store.release(&held.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    let guard = tokio::time::timeout(PATIENCE, waiting).await.expect("it polls").unwrap().unwrap();
    guard.release().await.unwrap();
}

/// An error of one call has the connection replaced, while another call is still under way in its session.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_behind_one_that_spoils_the_session_never_runs_late() {
    let (server, table) = (PostgresServer::shared(), PostgresServer::fresh_table());
    let proxy = Proxy::start_opaque(server.addr());
    let first = PostgresServer::url_at(proxy.addr(), &table) + "&timeout=20s&application_name=" + &table;
    let (store, other) = (open(&first).await, open(&server.url(&table)).await);
    for name in ["bad", "x"] {
        cycle(&store, name).await;
    }
    server.sql(&format!(
        "CREATE FUNCTION {table}_fails() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE SQLSTATE ''XX000''; END';
         CREATE TRIGGER fails BEFORE UPDATE ON {table} FOR EACH ROW WHEN (new.name = 'bad') EXECUTE FUNCTION {table}_fails()"
    ));
    let (mut keeps_bad, mut keeps_x) = (server.session(), server.session());
    for (session, name) in [(&mut keeps_bad, "bad"), (&mut keeps_x, "x")] {
        session.run(&format!("BEGIN; SELECT name FROM {table} WHERE name = '{name}' FOR UPDATE;"));
    }
    let waits = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{table}' AND wait_event_type = 'Lock'");
    let wanted = request("bad", &owner()).with_generated(false);
    let given = request("x", &owner()).with_generated(false);
    let (spoilt, late, ()) = tokio::join!(store.acquire(&wanted), store.acquire(&given), async {
        wait_until(PATIENCE, "the first call to wait", || server.sql(&waits) == ["1"]);
        keeps_bad.run("ROLLBACK;");
    });
    spoilt.unwrap_err();
    assert!(late.unwrap_err().may_have_been_applied());
    assert_eq!(store.inspect(None).await.unwrap(), []);
    settled(&proxy, &store).await;
    keeps_x.run("ROLLBACK;");
    let sessions = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{table}'");
    wait_until(PATIENCE, "the first session to end", || server.sql(&sessions) == ["1"]);
    assert_eq!(other.inspect(None).await.unwrap(), []);
}

/// A trigger raises each code of docs/errors.md, and the store has it from the wire.
#[tokio::test]
async fn each_code_of_the_page_comes_so_from_the_server() {
    let (server, table) = (PostgresServer::shared(), PostgresServer::fresh_table());
    let store = open(&(server.url(&table) + "&timeout=10s")).await;
    let body = "BEGIN RAISE EXCEPTION USING ERRCODE = TG_ARGV[0], MESSAGE = TG_ARGV[0]; END";
    server.sql(&format!("CREATE FUNCTION raise_{table}() RETURNS trigger LANGUAGE plpgsql AS '{body}'"));
    for (code, expected) in errors("PostgreSQL") {
        // A table that is not there has no trigger.
        if code == "42P01" {
            continue;
        }
        let events = format!("BEFORE INSERT OR UPDATE ON {table}");
        server.sql(&format!("CREATE TRIGGER raises {events} EXECUTE FUNCTION raise_{table}('{code}')"));
        let error = store.acquire(&request("x", &owner())).await.unwrap_err();
        assert_eq!(told(&error), expected, "{code}: {error:?}");
        server.sql(&format!("DROP TRIGGER raises ON {table}"));
    }
    granted(&store, &request("x", &owner())).await;
}

/// It ends when its sessions have, and takes no other meanwhile.
#[tokio::test]
async fn a_server_that_shuts_down_cannot_serve_now() {
    let server = PostgresServer::start();
    let mut session = server.session();
    session.run("SELECT 1;");
    let first = server.sql("SELECT split_part(pg_read_file('postmaster.pid'), chr(10), 1)")[0].parse().unwrap();
    signal(first, Signal::Term).unwrap();
    let (url, deadline) = (server.url("locks") + "&timeout=10s", Instant::now() + PATIENCE);
    let error = loop {
        match Options::parse(&url).unwrap().open().await {
            Ok(_) => assert!(Instant::now() < deadline, "it takes others"),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("shutting down"), "{error:?}");
    assert_eq!(told(&error), ["Unavailable", "no"], "{error:?}");
}
