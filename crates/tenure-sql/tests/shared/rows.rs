//! The rows of the table: fences that rise whatever happens to it, names that are swept.

use std::time::Duration;

use tenure::Fence;
use tenure::store::{ReleaseReply, RenewReply, Store};

use crate::requests::{granted, lease, owner, request};
use crate::{Server, in_sql, open};

pub(crate) async fn cycle(store: &dyn Store, name: &str) -> Fence {
    let held = owner();
    let fence = granted(store, &request(name, &held)).await.fence.unwrap();
    assert_eq!(store.release(&lease(name, &held), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    fence
}

#[tokio::test]
async fn fences_rise_after_the_table_was_lost() {
    let (server, table) = (Server::shared(), Server::fresh_table());
    let store = open(&server.url(&table)).await;
    let before = cycle(&store, "x").await;
    server.sql(&format!("DROP TABLE {}", in_sql(&table)));
    let error = store.acquire(&request("x", &owner())).await.unwrap_err();
    assert!(error.to_string().contains("CREATE TABLE"), "{error}");
    let again = open(&server.url(&table)).await;
    assert!(cycle(&again, "x").await > before);
}

/// A row that was free for long is swept, and the fences of its name rise all the same: also if the clock has gone back.
#[tokio::test]
async fn names_are_swept_and_their_fences_kept() {
    let (server, table) = (Server::shared(), Server::fresh_table());
    let store = open(&server.url(&table)).await;
    let before = cycle(&store, "old").await;
    cycle(&store, "young").await;
    let held = owner();
    granted(&store, &request("held", &held)).await;
    // As if it had been released two hours ago, by a clock that was far ahead.
    server.sql(&format!("UPDATE {} SET until = until - 7200000000, fence = fence + 99000000 WHERE name = 'old'", in_sql(&table)));
    // One release in sixteen sweeps, counted from anywhere, and a sweep may have ended behind the name before.
    for _ in 0..64 {
        cycle(&store, "young").await;
    }
    let names = server.sql(&format!("SELECT name FROM {} ORDER BY name", in_sql(&table)));
    assert_eq!(names, ["", "held", "young"], "the row of the table itself, and names that are in use");
    let after = cycle(&store, "old").await;
    assert!(after.counter() > before.counter() + 99_000_000, "{after} after {before}");
    assert_eq!(store.renew(&[lease("held", &held)]).await.remove(0).unwrap(), RenewReply::Renewed);
}

#[tokio::test]
async fn several_names_are_written_together_or_not_at_all() {
    let (server, table) = (Server::shared(), Server::fresh_table());
    let url = server.url(&table) + "&timeout=20s";
    let (ours, theirs) = (open(&url).await, open(&url).await);
    crate::requests::all_or_none(&ours, &theirs).await;
}

/// As one of two processes that make it at once finds it.
#[tokio::test]
async fn a_table_without_its_own_row_is_made_whole() {
    let (server, table) = (Server::shared(), Server::fresh_table());
    let before = cycle(&open(&server.url(&table)).await, "x").await;
    server.sql(&format!("DELETE FROM {} WHERE name = ''", in_sql(&table)));
    assert!(cycle(&open(&server.url(&table)).await, "x").await > before);
}

/// A clock that is set back makes leases longer, and no fence smaller.
#[tokio::test]
async fn a_clock_that_jumps_changes_no_order() {
    let server = Server::builder().clock().start();
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
