//! Over a pool of the application's, whose sessions have settings of their own.

use std::time::{Duration, Instant};

use tenure::ErrorKind;
use tenure::store::RenewReply;
use tenure_testkit::Proxy;

use crate::requests::{busy, drop_after, granted, lease, owner, request};
use crate::theirs::Theirs;
use crate::{PATIENCE, Server, in_sql, open};

mod conformance {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use futures_util::FutureExt as _;
    use futures_util::future::BoxFuture;
    use tenure::store::Store;
    use tenure_conformance::exceptions;

    use crate::conformance::Way;
    use crate::theirs::Theirs;
    use crate::{EXCEPTIONS, Server};

    fn over_a_pool(addr: SocketAddr, table: String) -> BoxFuture<'static, Arc<dyn Store>> {
        async move { Theirs::at(addr, 4).store(&table, "&timeout=700ms").await }.boxed()
    }

    fn subject() -> Way {
        let mut exceptions = [EXCEPTIONS.concat(), exceptions::NO_PUSH.to_vec()].concat();
        exceptions.dedup();
        Way::at(Server::shared().addr(), over_a_pool, exceptions)
    }

    tenure_conformance::conformance!(subject, Variant);
}

#[tokio::test]
async fn every_call_dropped_at_every_poll_leaves_what_a_release_clears() {
    let stores = async || {
        let (proxy, table) = (Proxy::start_opaque(Server::shared().addr()), Server::fresh_table());
        let store = Theirs::at(proxy.addr(), 1).store(&table, "&timeout=20s").await;
        (proxy, store, open(&(Server::shared().url(&table) + "&timeout=20s")).await)
    };
    crate::dropped_rows::leave_what_a_release_clears(stores).await;
}

/// The application goes on with the one connection while calls are dropped, and finds its session as it was.
#[tokio::test]
async fn a_dropped_call_leaves_the_connection_to_the_application() {
    let (proxy, table) = (Proxy::start_opaque(Server::shared().addr()), Server::fresh_table());
    let pool = Theirs::at(proxy.addr(), 1);
    let before = pool.settings().await;
    let store = pool.store(&table, "&timeout=20s").await;
    proxy.delay(Duration::from_millis(1));
    for turn in 0..60 {
        let (held, name) = (owner(), format!("door {}", turn % 3));
        drop_after(turn % 7, store.acquire(&request(&name, &held))).await;
        assert_eq!(pool.ask(&format!("SELECT {turn} + 1")).await, (turn + 1).to_string());
        drop_after(turn % 5, store.release(&lease(&name, &held), Duration::ZERO)).await;
        assert_eq!(pool.ask(&format!("SELECT {turn} + 2")).await, (turn + 2).to_string());
        store.release(&lease(&name, &held), Duration::ZERO).await.unwrap();
    }
    granted(&store, &request("door 0", &owner())).await;
    assert_eq!(pool.settings().await, before);
    assert_eq!(proxy.accepted(), 1, "it is the same connection");
}

/// All connections are with the application. Calls fail in time, and were not sent.
#[tokio::test]
async fn a_pool_that_lends_nothing() {
    let table = Server::fresh_table();
    let pool = Theirs::at(Server::shared().addr(), 1);
    let store = pool.store(&table, "&timeout=600ms").await;
    let held = owner();
    granted(&store, &request("x", &held)).await;
    let theirs = pool.lend().await;
    for generated in [true, false] {
        let (began, asked) = (Instant::now(), request("y", &owner()).with_generated(generated));
        let error = store.acquire(&asked).await.unwrap_err();
        let (took, is_told) = (began.elapsed(), error.kind() == ErrorKind::Overloaded && !error.may_have_been_applied());
        // The other half would be for a second try.
        let limit = Duration::from_millis(if generated { 300 } else { 600 });
        assert!(is_told || took < limit, "took {took:?}");
        assert!(is_told, "{error:?}");
        assert!(error.to_string().contains("pool") && error.is_transient(), "{error}");
        assert!(took < Duration::from_millis(600), "took {took:?}");
    }
    assert!(!store.features().late_commands, "nothing was sent");
    drop(theirs);
    assert_eq!(store.renew(&[lease("x", &held)]).await.remove(0).unwrap(), RenewReply::Renewed);
    let other = open(&Server::shared().url(&table)).await;
    assert!(other.inspect(None).await.unwrap().iter().all(|entry| entry.name.as_str() != "y"));
    drop(pool.lend().await);
}

/// A connection is lent for one statement at a time: the application has it between two calls.
#[tokio::test]
async fn nothing_is_kept_between_calls() {
    let table = Server::fresh_table();
    let pool = Theirs::at(Server::shared().addr(), 1);
    let store = pool.store(&table, "&timeout=2s").await;
    let held = owner();
    for _ in 0..3 {
        granted(&store, &request("x", &held)).await;
        drop(pool.lend().await);
        busy(&store, &request("x", &owner())).await;
        drop(pool.lend().await);
        store.release(&lease("x", &held), Duration::ZERO).await.unwrap();
        drop(pool.lend().await);
    }
}

/// The server does not answer on a connection. It is closed, and does not go back.
#[tokio::test]
async fn a_connection_without_an_answer_does_not_go_back() {
    let (proxy, table) = (Proxy::start_opaque(Server::shared().addr()), Server::fresh_table());
    let pool = Theirs::at(proxy.addr(), 1);
    let store = pool.store(&table, "&timeout=600ms").await;
    let held = owner();
    granted(&store, &request("x", &held)).await;
    tokio::time::sleep(Duration::from_millis(150)).await;
    proxy.hold_replies();
    let error = store.acquire(&request("y", &owner()).with_generated(false)).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unreachable && error.may_have_been_applied(), "{error:?}");
    assert!(store.features().late_commands, "nobody has ended it");
    proxy.heal();
    let deadline = Instant::now() + PATIENCE;
    while store.renew(&[lease("x", &held)]).await.remove(0).ok() != Some(RenewReply::Renewed) {
        assert!(Instant::now() < deadline, "no way back");
    }
    assert_eq!(pool.ask("SELECT 1 + 1").await, "2");
    assert!(proxy.accepted() > 1, "it is another connection");
}

/// Somebody has left a transaction open in the one connection. A lock in it would be undone with it.
#[tokio::test]
async fn a_transaction_that_was_left_open_is_not_joined() {
    let (table, theirs) = (Server::fresh_table(), Server::fresh_table());
    let pool = Theirs::at(Server::shared().addr(), 1);
    let store = pool.store(&table, "&timeout=2s").await;
    let (other, stock) = (open(&Server::shared().url(&table)).await, in_sql(&theirs));
    Server::shared().sql(&format!("CREATE TABLE {stock} (id bigint PRIMARY KEY)"));
    for left in [&[][..], &[format!("INSERT INTO {stock} VALUES (1)")], &["SELECT nonsense".to_owned()]] {
        pool.leave_open(left).await;
        let error = store.acquire(&request("x", &owner())).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Unavailable && !error.may_have_been_applied(), "{left:?}: {error:?}");
        assert!(error.to_string().contains("open transaction") && error.is_transient(), "{error}");
        assert!(other.inspect(None).await.unwrap().is_empty(), "{left:?}");
        assert_eq!(Server::shared().sql(&format!("SELECT count(*) FROM {stock}")), ["0"], "{left:?}: nothing of it is done");
        // It was closed: another is lent.
        let held = owner();
        granted(&store, &request("x", &held)).await;
        store.release(&lease("x", &held), Duration::ZERO).await.unwrap();
    }
}

#[tokio::test]
async fn bad_parameters_and_tables_are_reported() {
    let pool = Theirs::at(Server::shared().addr(), 1);
    for (parameters, kind, why) in [
        (format!("table={}&sslmode=require", in_sql("x")), ErrorKind::Invalid, "sslmode="),
        (format!("table={}", in_sql("missing")), ErrorKind::Damaged, "CREATE TABLE"),
    ] {
        let error = pool.over(&parameters).await.unwrap_err();
        assert!(error.kind() == kind && error.to_string().contains(why), "{parameters}: {error:?}");
    }
    let gone = Theirs::at(([127, 0, 0, 1], 1).into(), 1);
    let error = gone.over(&format!("table={}", in_sql("x"))).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unreachable && !error.may_have_been_applied(), "{error:?}");
}
