//! Settings of the server, the database or the user that others have made, and rows that others have locked.

use std::time::Duration;

use tenure::store::{AcquireReply, RenewReply};
use tenure_sql::postgres::Options;
use tenure_testkit::{PostgresServer, Proxy, wait_until};

use crate::outages::settled;
use crate::requests::{busy, granted, joining, lease, owner, request};
use crate::{PATIENCE, open};

/// Points in time are written as the database likes, in a zone whose short name stands for another one too.
#[tokio::test]
async fn a_predecessor_is_found_whatever_the_style_of_dates() {
    let server = PostgresServer::builder().set("datestyle", "SQL, DMY").set("timezone", "Asia/Kolkata").start();
    let proxy = Proxy::start_opaque(server.addr());
    let url = PostgresServer::url_at(proxy.addr(), "locks") + "&timeout=2s&application_name=first";
    let store = open(&url).await;
    granted(&store, &request("y", &owner())).await;
    tokio::time::sleep(Duration::from_millis(150)).await;
    proxy.hold_present_requests();
    let given = request("x", &owner()).with_generated(false);
    let error = store.acquire(&given).await.unwrap_err();
    assert!(error.may_have_been_applied(), "{error:?}");
    assert!(store.inspect(None).await.unwrap().iter().all(|entry| entry.name.as_str() != "x"));
    settled(&proxy, &store).await;
    proxy.release_requests();
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'first'";
    wait_until(PATIENCE, "the first session to end", || server.sql(sessions) == ["1"]);
    let found = store.inspect(None).await.unwrap();
    assert!(found.iter().all(|entry| entry.name.as_str() != "x"), "it ran late: {found:?}");
}

#[test]
fn no_part_of_a_password_is_shown() {
    for url in
        ["postgres://app:pa?s3cret@db/locks", "postgres://app:pa?x=1&s3cret@db/locks", "postgres://app:pa?x=s3cret@db/locks"]
    {
        let error = Options::parse(url).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{url}: {error:?}");
    }
    for url in
        ["postgres://app:pa@s3cret@db/locks", "postgres://app:pa@s3cret:x@db/locks", "postgres://app:pa:s3cret@db:port/locks"]
    {
        let shown = match Options::parse(url) {
            Ok(options) => options.to_string(),
            Err(error) => format!("{error} {error:?}"),
        };
        assert!(!shown.contains("s3cret"), "{url}: {shown}");
    }
    // Of another scheme the vendor would read words, and name the unknown one in the cause.
    for url in ["POSTGRES://app:s3cret=x@db/locks", "pg://app:s3cret=x@db/locks"] {
        let causes = Options::parse(url).err().map(|error| {
            let first = std::error::Error::source(&error);
            std::iter::successors(first, |error| error.source()).map(ToString::to_string).collect::<String>()
        });
        assert!(!causes.unwrap_or_default().contains("s3cret"), "{url}");
    }
}

/// The rights that the message of a refused statement names are enough.
#[tokio::test(flavor = "multi_thread")]
async fn rights_on_the_rows_are_enough() {
    let (server, table) = (PostgresServer::shared(), PostgresServer::fresh_table());
    open(&server.url(&table)).await;
    server.sql(&format!("CREATE USER {table}_user; GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {table}_user"));
    let proxy = Proxy::start_opaque(server.addr());
    let url = PostgresServer::url_at(proxy.addr(), &table).replace("tenure@", &format!("{table}_user@"));
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

/// The database gives statements up that are in no serial order with those of others. They are repeated.
#[tokio::test(flavor = "multi_thread")]
async fn a_serializable_database_fails_no_call() {
    let server = PostgresServer::builder().set("default_transaction_isolation", "serializable").start();
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..8 {
        let url = server.url("locks") + "&timeout=20s";
        clients.spawn(async move {
            let store = open(&url).await;
            for round in 0..100 {
                let (held, name) = (owner(), format!("n{}", (client * 7 + round) % 40));
                let wanted = joining(&name).with_owner(held.clone());
                if let AcquireReply::Granted(_) = store.acquire(&wanted).await.unwrap() {
                    assert_eq!(store.renew(&[lease(&name, &held)]).await.remove(0).unwrap(), RenewReply::Renewed);
                }
                store.release(&lease(&name, &held), Duration::ZERO).await.unwrap();
            }
        });
    }
    clients.join_all().await;
}
