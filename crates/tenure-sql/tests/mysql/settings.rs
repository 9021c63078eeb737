//! Settings of the server that others have made.

use std::time::{Duration, Instant};

use tenure::Owner;
use tenure::store::{AcquireReply, Enqueue, ReleaseReply, RenewReply};
use tenure_sql::mysql::Options;

use crate::outages::settled;
use crate::requests::{busy, granted, joining, lease, owner, request};
use crate::{PATIENCE, Server, open};

/// All that a client does, on a server with settings of its own.
async fn works(server: &Server) {
    let (ours, theirs) = (open(&server.url("locks")).await, open(&server.url("locks")).await);
    let held = owner();
    let both = ["a", "b"].map(|name| request(name, &held));
    assert!(ours.acquire_all(&both).await.unwrap().is_some());
    assert_eq!(theirs.inspect(None).await.unwrap().len(), 2, "others see what was granted");
    granted(&ours, &request("c", &held)).await;
    assert_eq!(busy(&theirs, &request("c", &owner())).await.holder.unwrap().owner, held);
    let renewed = ours.renew(&["a", "b", "c"].map(|name| lease(name, &held))).await;
    assert!(renewed.iter().all(|answer| *answer.as_ref().unwrap() == RenewReply::Renewed), "{renewed:?}");
    let waits = joining("c").with_enqueue(Enqueue::Join { entry_ttl: PATIENCE, handoff_ttl: PATIENCE });
    assert_eq!(busy(&theirs, &waits).await.position, Some(0));
    assert_eq!(ours.release(&lease("c", &held), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    granted(&theirs, &waits.with_enqueue(Enqueue::Heartbeat)).await;
    for name in ["a", "b"] {
        assert_eq!(ours.release(&lease(name, &held), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
        granted(&theirs, &request(name, &owner())).await;
    }
}

/// Each of them once kept grants from being committed, leases from being renewed, or names from being read.
#[tokio::test]
async fn settings_for_all_sessions_change_nothing() {
    let server = Server::start();
    for set in [
        "completion_type = 'CHAIN'",
        "sql_safe_updates = 1",
        "sql_select_limit = 1",
        "max_join_size = 1",
        "autocommit = 0",
        // MariaDB alone reads the comment.
        "sql_mode = CONCAT('ANSI,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH' /*M! , ',ORACLE,SIMULTANEOUS_ASSIGNMENT' */)",
        "time_zone = '+13:00'",
        "sql_auto_is_null = 1",
        "character_set_server = 'latin1'",
        "TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    ] {
        println!("{set}");
        server.sql(&format!("SET GLOBAL {set}"));
        works(&server).await;
        server.sql("DROP TABLE locks.locks");
        if let Some((variable, _)) = set.split_once(" = ") {
            server.sql(&format!("SET GLOBAL {variable} = DEFAULT"));
        }
    }
}

/// Another client's transaction that is not committed is nothing to write upon.
#[tokio::test]
async fn what_is_not_committed_is_not_read() {
    let server = Server::start();
    server.sql("SET GLOBAL TRANSACTION ISOLATION LEVEL READ UNCOMMITTED");
    let store = open(&server.url("locks")).await;
    let held = owner();
    granted(&store, &request("x", &held)).await;
    let server = &server;
    std::thread::scope(|scope| {
        let writes = "START TRANSACTION; UPDATE locks.locks SET owner = 'stranger' WHERE name = 'x'; DO SLEEP(2); ROLLBACK";
        scope.spawn(|| server.sql(writes));
        let deadline = Instant::now() + PATIENCE;
        while server.sql("SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'DO SLEEP%'") == ["0"] {
            assert!(Instant::now() < deadline, "it does not write");
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let found =
            scope.spawn(move || runtime.block_on(async { open(&server.url("locks")).await.inspect(None).await.unwrap() }));
        assert_eq!(found.join().unwrap()[0].holders[0].owner, held);
    });
}

/// The server ends sessions that are idle for a while.
#[tokio::test]
async fn an_idle_session_stays() {
    let server = Server::start();
    server.sql("SET GLOBAL wait_timeout = 1");
    let store = open(&server.url("locks")).await;
    let held = owner();
    granted(&store, &request("x", &held)).await;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let released = store.release(&lease("x", &held), Duration::ZERO).await;
    assert_eq!(released.unwrap(), ReleaseReply::Released);
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let given = store.acquire(&request("x", &held).with_generated(false)).await;
    assert!(matches!(given, Ok(AcquireReply::Granted(_))), "{given:?}");
}

/// Names and owners that collations take for one.
#[tokio::test]
async fn names_and_owners_are_bytes() {
    let (server, table) = (Server::shared(), Server::fresh_table());
    let store = open(&server.url(&table)).await;
    let held = Owner::from_bytes(&b"me"[..]);
    let names =
        ["a", "A", "a ", "a  ", "\u{e4}", "a\u{308}", "\u{1f512}", "\u{1f513}", "\u{df}", "ss", "\u{fffd}", "%", "_", "\\", "'"];
    for name in names {
        granted(&store, &request(name, &held).with_generated(false)).await;
    }
    for name in names {
        for other in [&b"ME"[..], b"me ", b" me", b"me\0", b"m\xc3\xa9"] {
            let stranger = Owner::from_bytes(other);
            assert_eq!(store.renew(&[lease(name, &stranger)]).await.remove(0).unwrap(), RenewReply::Gone);
            assert_eq!(store.release(&lease(name, &stranger), Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
        }
    }
    assert_eq!(store.inspect(None).await.unwrap().len(), names.len());
}

#[test]
fn no_part_of_a_password_is_shown() {
    for url in [
        "mysql://app:pa?s3cret@db/locks",
        "mysql://app:pa@s3cret@db/locks",
        "mysql://app:pa/s3cret@db/locks",
        "mysql://app:pa#s3cret@db/locks",
    ] {
        let shown = match Options::parse(url) {
            Ok(options) => format!("{options} {options:?}"),
            Err(error) => format!("{error} {error:?}"),
        };
        assert!(!shown.contains("s3cret"), "{url}: {shown}");
    }
}

/// The rights that the message of a refused statement names are enough.
#[tokio::test]
async fn rights_on_the_rows_are_enough() {
    let (server, table) = (Server::start(), "locks");
    open(&server.url(table)).await;
    server.sql("CREATE USER app; GRANT SELECT, INSERT, UPDATE, DELETE ON locks.locks TO app");
    let proxy = tenure_testkit::Proxy::start_opaque(server.addr());
    let url = Server::url_at(proxy.addr(), table).replace("root@", "app@");
    let store = open(&(url + "&timeout=2s")).await;
    for _ in 0..20 {
        let (held, waits) = (owner(), joining("x"));
        granted(&store, &request("x", &held)).await;
        assert_eq!(busy(&store, &waits).await.position, Some(0));
        assert_eq!(store.renew(&[lease("x", &held)]).await.remove(0).unwrap(), RenewReply::Renewed);
        store.release(&lease("x", &held), Duration::ZERO).await.unwrap();
        store.release(&waits.lease(), Duration::ZERO).await.unwrap();
        assert!(store.acquire_all(&[request("a", &held), request("b", &held)]).await.unwrap().is_some());
        for name in ["a", "b"] {
            store.release(&lease(name, &held), Duration::ZERO).await.unwrap();
        }
    }
    tokio::time::sleep(Duration::from_millis(150)).await;
    proxy.hold_present_requests();
    let given = request("y", &owner()).with_generated(false);
    assert!(store.acquire(&given).await.unwrap_err().may_have_been_applied());
    assert!(store.inspect(None).await.unwrap().is_empty());
    settled(&proxy, &store).await;
}
