//! Answers that are lost, sessions that end, servers that stop.

use std::time::Duration;

use tenure::store::{ReleaseReply, RenewReply};
use tenure::{ErrorKind, Owner};
use tenure_sql::mysql::Options;
use tenure_testkit::page::{errors, told};

use crate::outages::settled;
use crate::requests::{granted, lease, owner, request};
use crate::{PATIENCE, Server, behind_proxy, in_sql, open};

#[tokio::test]
async fn what_is_left_on_the_way_never_runs() {
    let (proxy, store, other) = behind_proxy().await;
    // Whatever is waited for, answers come: a connection that has just answered is not given up.
    granted(&store, &request("y", &owner())).await;
    tokio::time::sleep(Duration::from_millis(150)).await;
    proxy.hold_present_requests();
    let given = request("x", &owner()).with_generated(false);
    let error = store.acquire(&given).await.unwrap_err();
    assert!(error.may_have_been_applied() && store.features().late_commands, "{error:?}");
    // On a connection of its own.
    assert!(store.inspect(None).await.unwrap().iter().all(|entry| entry.name.as_str() != "x"));
    settled(&proxy, &store).await;
    proxy.release_requests();
    granted(&other, &request("x", &owner())).await;
}

/// As after a failover to a replica: it grants nothing, and says so.
#[tokio::test]
async fn a_server_that_became_read_only_is_told() {
    let server = Server::start();
    // Root may write all the same.
    server.sql("CREATE USER app; GRANT ALL ON locks.* TO app");
    let url = server.url("locks").replace("root@", "app@");
    let store = open(&(url + "&timeout=10s")).await;
    let held = owner();
    granted(&store, &request("x", &held)).await;
    server.sql("SET GLOBAL read_only = 1");
    let error = store.acquire(&request("y", &owner())).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("replica"), "{error:?}");
    assert!(!error.may_have_been_applied() && error.is_transient(), "{error:?}");
    server.sql("SET GLOBAL read_only = 0");
    assert_eq!(store.renew(&[lease("x", &held)]).await.remove(0).unwrap(), RenewReply::Renewed);
}

/// `InnoDB` would wait longer than a call of this ttl may take. MySQL does.
#[tokio::test]
async fn a_locked_row_is_told_in_time_for_a_short_ttl() {
    if Server::is_mysql() {
        return;
    }
    let (server, table) = (Server::shared(), Server::fresh_table());
    let store = open(&server.url(&table)).await;
    let short = |name: &str| request(name, &owner()).with_ttl(Duration::from_millis(1_500));
    let held = short("x");
    granted(&store, &held).await;
    store.release(&held.lease(), Duration::ZERO).await.unwrap();
    let mut session = server.session();
    session.run(&format!("BEGIN; SELECT name FROM {} WHERE name = 'x' FOR UPDATE;", in_sql(&table)));
    let told = async {
        // A busy machine may be late with an answer, and not each time.
        loop {
            match store.acquire(&short("x")).await {
                Err(error) if error.kind() == ErrorKind::Overloaded && !error.may_have_been_applied() => return,
                Err(_) => {}
                Ok(answer) => panic!("{answer:?}"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, told).await.expect("it is never told in time");
    session.run("ROLLBACK;");
}

/// The server is well, and serves others.
#[tokio::test]
async fn a_server_without_a_connection_to_spare_is_overloaded() {
    let server = Server::start();
    server.sql("CREATE USER app; GRANT ALL ON locks.* TO app; SET GLOBAL max_connections = 10");
    let url = server.url("locks").replace("root@", "app@");
    let mut stores = Vec::new();
    let error = loop {
        match Options::parse(&url).unwrap().open().await {
            Ok(store) if stores.len() < 20 => stores.push(store),
            Ok(_) => panic!("it takes any number"),
            Err(error) => break error,
        }
    };
    assert!(error.kind() == ErrorKind::Overloaded && error.to_string().contains("max_connections"), "{error:?}");
}

/// GUARANTEES.md names it. Root has the right.
#[tokio::test]
async fn a_read_only_server_grants_locks_to_who_may_write_there() {
    let server = Server::start();
    let store = open(&server.url("locks")).await;
    granted(&store, &request("x", &owner())).await;
    server.sql("SET GLOBAL read_only = 1");
    granted(&store, &request("y", &owner())).await;
    let error = Options::parse(&(server.url("locks") + "&timeout=10s")).unwrap().open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "a new connection is refused: {error:?}");
}

/// Each says what to do, in one line and without the password.
#[tokio::test]
async fn bad_input_is_told() {
    let server = Server::start();
    let addr = server.addr();
    server.sql("CREATE USER app IDENTIFIED BY 's3cret'; GRANT ALL ON locks.* TO app");
    server.sql("CREATE USER reader IDENTIFIED BY 's3cret'; GRANT SELECT ON locks.* TO reader");
    server.sql("CREATE TABLE locks.later (name varbinary(9), version bigint); INSERT INTO locks.later VALUES ('', 2)");
    server.sql("CREATE TABLE locks.empty (name varbinary(9), version bigint)");
    let login = format!("mysql://app:s3cret@{addr}");
    let table = [
        (format!("mysql://app:wrong@{addr}/locks"), ErrorKind::Refused, "password"),
        (format!("mysql://app@{addr}/locks"), ErrorKind::Refused, "TENURE_PASSWORD"),
        (format!("{login}/nowhere"), ErrorKind::Refused, "nowhere"),
        (format!("{login}/locks?table=missing"), ErrorKind::Damaged, "CREATE TABLE IF NOT EXISTS `missing`"),
        (format!("{login}/locks?table=later"), ErrorKind::Damaged, "is of version 2"),
        (format!("{login}/locks?table=empty"), ErrorKind::Damaged, "lost its own row"),
        (format!("mysql://reader:s3cret@{addr}/locks?create=yes&table=new"), ErrorKind::Refused, "grant"),
        (format!("{login}/locks?sslmode=require"), ErrorKind::Unreachable, "TLS"),
        ("mysql://127.0.0.1:1/x".to_owned(), ErrorKind::Unreachable, "refused"),
    ];
    for (url, kind, why) in table {
        let error = Options::parse(&url).unwrap().open().await.unwrap_err();
        let text = error.to_string();
        assert!(error.kind() == kind && text.contains(why), "{url}: {error:?}");
        assert!(!text.contains("s3cret") && !text.contains('\n') && !error.may_have_been_applied(), "{text}");
    }
    for (parameters, why) in [("?colour=red", "colour="), ("?table=a.b.c", "name of a table"), ("?sslmode=now", "sslmode")] {
        let error = Options::parse(&format!("{login}/locks{parameters}")).unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains(why), "{error:?}");
    }
    assert!(Options::parse(&login).unwrap_err().to_string().contains("no database"));
}

/// A token that the column cannot keep as it is.
#[tokio::test]
async fn a_token_that_is_too_long_is_refused_and_not_cut() {
    let store = open(&Server::shared().url(&Server::fresh_table())).await;
    let long = Owner::from_bytes("o".repeat(70_000).into_bytes());
    let wanted = request("x", &long).with_generated(false);
    for found in [None, Some(owner())] {
        if let Some(held) = found {
            granted(&store, &request("x", &held)).await;
            assert_eq!(store.release(&lease("x", &held), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
        }
        let error = store.acquire(&wanted).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && !error.may_have_been_applied(), "{error:?}");
        assert_eq!(store.inspect(None).await.unwrap(), []);
    }
}

#[tokio::test]
async fn an_address_of_ipv6_is_connected_to() {
    let server = tokio::net::TcpListener::bind("[::1]:0").await.unwrap();
    let options = Options::parse(&format!("mysql://app@{}/locks", server.local_addr().unwrap())).unwrap();
    assert!(options.to_string().contains("//[::1]:"), "{options}");
    let opening = tokio::spawn(options.open());
    tokio::time::timeout(crate::PATIENCE, server.accept()).await.expect("it connects").unwrap();
    opening.abort();
}

/// A trigger raises each code of docs/errors.md, and the store has it from the wire.
#[tokio::test]
async fn each_code_of_the_page_comes_so_from_the_server() {
    let (server, table) = (Server::shared(), Server::fresh_table());
    let store = open(&(server.url(&table) + "&timeout=10s")).await;
    for (code, expected) in errors("MariaDB and MySQL") {
        // A table that is not there has no trigger.
        if code == "1146" {
            continue;
        }
        let signal = format!("SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = '{code}'");
        let table = in_sql(&table);
        server.sql(&format!("CREATE TRIGGER locks.raises BEFORE INSERT ON {table} FOR EACH ROW {signal}"));
        let error = store.acquire(&request("x", &owner())).await.unwrap_err();
        assert_eq!(told(&error), expected, "{code}: {error:?}");
        server.sql("DROP TRIGGER locks.raises");
    }
    granted(&store, &request("x", &owner())).await;
}
