//! Statements that are counted.

use std::time::{Duration, Instant};

use tenure_testkit::PostgresServer;

use crate::requests::{granted, lease, owner, request};
use crate::rows::cycle;
use crate::{PATIENCE, open};

/// The row is being swept, by a clock that was ahead once, while its name is acquired.
#[tokio::test]
async fn a_fence_does_not_fall_while_its_row_is_swept() {
    let (server, table) = (PostgresServer::shared(), PostgresServer::fresh_table());
    let store = open(&(server.url(&table) + "&timeout=20s")).await;
    cycle(&store, "old").await;
    server.sql(&format!("UPDATE {table} SET until = until - 7200000000, fence = fence + 99000000 WHERE name = 'old'"));
    let before: u64 = server.sql(&format!("SELECT fence FROM {table} WHERE name = 'old'"))[0].parse().unwrap();
    let mut session = server.session();
    // As the store's own sweep does.
    session.run(&format!(
        "BEGIN; WITH dead AS (DELETE FROM {table} WHERE name = 'old' RETURNING fence)
         UPDATE {table} SET fence = dead.fence FROM dead WHERE name = '';"
    ));
    let wanted = request("old", &owner());
    let waits = async {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%put AS%'";
        let deadline = Instant::now() + PATIENCE;
        while server.sql(waiting) == ["0"] {
            assert!(Instant::now() < deadline, "it does not wait");
            tokio::task::yield_now().await;
        }
        session.run("COMMIT;");
    };
    let (grant, ()) = tokio::join!(granted(&store, &wanted), waits);
    let after = grant.fence.unwrap().counter();
    assert!(after > before, "{after} after {before}");
}

/// The server logs each statement it is sent.
#[tokio::test]
async fn an_uncontended_cycle_is_one_statement_each() {
    let server = PostgresServer::builder().set("log_statement", "all").start();
    let store = open(&(server.url("locks") + "&timeout=20s")).await;
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
