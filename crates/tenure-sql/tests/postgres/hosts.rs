//! Several hosts in one URL, of which the first says nothing: it refuses no connection, and answers none.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use tenure::Locker;
use tenure::store::RenewReply;
use tenure_testkit::{PostgresServer, Proxy};

use crate::requests::{granted, lease, owner, request};
use crate::session_locks::url_at;
use crate::{PATIENCE, open};

/// The URL of a table at two hosts, the first of which is `first`.
fn url(first: SocketAddr, table: &str) -> String {
    let server = PostgresServer::shared();
    server.url(table).replace(&server.addr().to_string(), &format!("{first},{}", server.addr()))
}

#[tokio::test]
async fn the_first_contact_is_with_the_host_that_answers() {
    // The kernel takes the connection.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let first = silent.local_addr().unwrap();
    let (server, table) = (PostgresServer::shared().addr(), PostgresServer::fresh_table());
    let sessions = url_at(server, "postgres").replace(&server.to_string(), &format!("{first},{server}"));
    for url in [url(first, &table), sessions] {
        let store = open(&(url + "&timeout=10s")).await;
        granted(&store, &request(&table, &owner())).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_and_a_wait_go_on_at_the_host_that_answers() {
    let (proxy, table) = (Proxy::start_opaque(PostgresServer::shared().addr()), PostgresServer::fresh_table());
    let (behind, other) = (url(proxy.addr(), &table) + "&timeout=1s", open(&PostgresServer::shared().url(&table)).await);
    let (store, waiters, held, theirs) = (open(&behind).await, open(&behind).await, owner(), owner());
    granted(&store, &request("x", &held)).await;
    granted(&other, &request("y", &theirs)).await;
    let waiting = tokio::spawn(Locker::new(waiters).mutex("y").acquire());
    while other.inspect(None).await.unwrap().iter().all(|entry| entry.waiters.is_empty()) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    proxy.black_hole();
    let deadline = Instant::now() + PATIENCE;
    while store.renew(&[lease("x", &held)]).await.remove(0).ok() != Some(RenewReply::Renewed) {
        assert!(Instant::now() < deadline, "no call reaches the second host");
    }
    other.release(&lease("y", &theirs), Duration::ZERO).await.unwrap();
    let guard = tokio::time::timeout(PATIENCE, waiting).await.expect("it asks the second host").unwrap().unwrap();
    guard.release().await.unwrap();
}
