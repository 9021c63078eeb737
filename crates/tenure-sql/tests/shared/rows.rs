//! The rows of the table: fences that rise whatever happens to it, names that are swept.

use std::time::Duration;

use tenure::store::{ReleaseReply, RenewReply, Store};
use tenure::{ErrorKind, Fence};

use crate::requests::{granted, lease, owner, request};
use crate::{PATIENCE, Server, in_sql, open};

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
    let not_to_make_it = open(&server.url(&table).replace("create=yes&", "")).await;
    server.sql(&format!("DROP TABLE {}", in_sql(&table)));
    let error = not_to_make_it.acquire(&request("x", &owner())).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Damaged && error.to_string().contains("CREATE TABLE"), "{error:?}");
    // Processes that live on make it, if they may.
    let error = store.acquire(&request("x", &owner())).await.unwrap_err();
    assert!(error.is_transient() && !error.may_have_been_applied(), "{error:?}");
    let made = async { while store.inspect(None).await.is_err() {} };
    tokio::time::timeout(PATIENCE, made).await.expect("nobody makes the table");
    assert!(cycle(&store, "x").await > before);
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

/// Somebody takes a name between the look and the deletion. Without the version its row would go, and the lock with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_taken_while_it_is_swept_stays() {
    let (server, table) = (Server::shared(), Server::fresh_table());
    let (store, named) = (open(&(server.url(&table) + "&timeout=20s")).await, in_sql(&table));
    for name in ["old", "young"] {
        cycle(&store, name).await;
    }
    server.sql(&format!("UPDATE {named} SET until = until - 7200000000 WHERE name = 'old'"));
    let mut session = server.session();
    // The sweep has looked when it waits for one of these.
    session.run("BEGIN;");
    for name in ["", "old"] {
        session.run(&format!("SELECT name FROM {named} WHERE name = '{name}' FOR UPDATE;"));
    }
    let sweeping = tokio::spawn(async move {
        for _ in 0..64 {
            cycle(&*store, "young").await;
        }
    });
    let waits = crate::SWEEPS.replace("locks", &table);
    tokio::task::block_in_place(|| tenure_testkit::wait_until(PATIENCE, "the sweep to wait", || server.sql(&waits) != ["0"]));
    let takes = "version = version + 1, until = until + 86400000000, owner = 'me'";
    session.run(&format!("UPDATE {named} SET {takes} WHERE name = 'old'; COMMIT;"));
    sweeping.await.unwrap();
    assert_eq!(server.sql(&format!("SELECT owner FROM {named} WHERE name = 'old'")), ["me"]);
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
    let server = Server::builder().shifted_clock().start();
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
