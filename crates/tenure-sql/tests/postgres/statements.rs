//! Statements that are counted.

use std::time::Duration;

use tenure_testkit::PostgresServer;

use crate::open;
use crate::requests::{granted, lease, owner, request};
use crate::rows::cycle;

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
