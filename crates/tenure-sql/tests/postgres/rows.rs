//! The rows of the table: fences that rise whatever happens to it, names that are swept, statements that are counted.

use std::time::Duration;

use tenure::Fence;
use tenure::store::{ReleaseReply, RenewReply, Store};
use tenure_testkit::PostgresServer;

use crate::open;
use crate::requests::{granted, lease, owner, request};

async fn cycle(store: &dyn Store, name: &str) -> Fence {
    let held = owner();
    let fence = granted(store, &request(name, &held)).await.fence.unwrap();
    assert_eq!(store.release(&lease(name, &held), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    fence
}

#[tokio::test]
async fn fences_rise_after_the_table_was_lost() {
    let (server, table) = (PostgresServer::shared(), PostgresServer::fresh_table());
    let store = open(&server.url(&table)).await;
    let before = cycle(&store, "x").await;
    server.sql(&format!("DROP TABLE {table}"));
    let error = store.acquire(&request("x", &owner())).await.unwrap_err();
    assert!(error.to_string().contains("CREATE TABLE"), "{error}");
    let again = open(&server.url(&table)).await;
    assert!(cycle(&again, "x").await > before);
}

/// A row that was free for long is swept, and the fences of its name rise all the same: also if the clock has gone back.
#[tokio::test]
async fn names_are_swept_and_their_fences_kept() {
    let (server, table) = (PostgresServer::shared(), PostgresServer::fresh_table());
    let store = open(&server.url(&table)).await;
    let before = cycle(&store, "old").await;
    cycle(&store, "young").await;
    let held = owner();
    granted(&store, &request("held", &held)).await;
    // As if it had been released two hours ago, by a clock that was far ahead.
    server.sql(&format!("UPDATE {table} SET until = until - 7200000000, fence = fence + 99000000 WHERE name = 'old'"));
    // One release in sixteen sweeps, counted from anywhere, and a sweep may have ended behind the name before.
    for _ in 0..64 {
        cycle(&store, "young").await;
    }
    let names = server.sql(&format!("SELECT name FROM {table} ORDER BY name"));
    assert_eq!(names, ["", "held", "young"], "the row of the table itself, and names that are in use");
    let after = cycle(&store, "old").await;
    assert!(after.counter() > before.counter() + 99_000_000, "{after} after {before}");
    assert_eq!(store.renew(&[lease("held", &held)]).await.remove(0).unwrap(), RenewReply::Renewed);
}

/// A clock that is set back makes leases longer, and no fence smaller.
#[tokio::test]
async fn a_clock_that_jumps_changes_no_order() {
    let server = PostgresServer::builder().clock().start();
    let store = open(&server.url("locks")).await;
    let (first, held) = (cycle(&store, "x").await, owner());
    granted(&store, &request("y", &held)).await;
    server.shift_clock(-86_400_000);
    let second = cycle(&store, "x").await;
    assert!(second > first, "{second} after {first}");
    assert_eq!(store.renew(&[lease("y", &held)]).await.remove(0).unwrap(), RenewReply::Renewed);
    server.shift_clock(86_400_000);
    assert!(cycle(&store, "x").await > second);
    // As after 30 s: a day ahead, its lease has ended.
    assert_eq!(store.renew(&[lease("y", &held)]).await.remove(0).unwrap(), RenewReply::Gone);
}

/// The server logs each statement it is sent.
#[tokio::test]
async fn an_uncontended_cycle_is_one_statement_each() {
    let server = PostgresServer::builder().set("log_statement", "all").start();
    let store = open(&server.url("locks")).await;
    let count = || server.log().lines().filter(|line| line.contains("execute ") || line.contains("statement:")).count();
    cycle(&store, "warm").await;
    for name in ["x", "y"] {
        let (before, held) = (count(), owner());
        granted(&store, &request(name, &held)).await;
        assert_eq!(count() - before, 1, "an acquisition");
        store.renew(&[lease(name, &held), lease("z", &held)]).await.remove(0).unwrap();
        // The second lease is gone, which is read.
        assert_eq!(count() - before, 3, "a batch of renewals");
        store.renew(&[lease(name, &held)]).await.remove(0).unwrap();
        assert_eq!(count() - before, 4, "a renewal");
    }
    for _ in 0..4 {
        let held = owner();
        granted(&store, &request("x2", &held)).await;
        let before = count();
        store.release(&lease("x2", &held), Duration::ZERO).await.unwrap();
        // One release in sixteen sweeps as well.
        assert!((1..=2).contains(&(count() - before)), "a release");
    }
}

#[tokio::test]
async fn several_names_are_written_together_or_not_at_all() {
    let (server, table) = (PostgresServer::shared(), PostgresServer::fresh_table());
    let (ours, theirs) = (open(&server.url(&table)).await, open(&server.url(&table)).await);
    crate::requests::all_or_none(&ours, &theirs).await;
}
