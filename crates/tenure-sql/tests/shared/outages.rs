//! Answers that are lost, connections that die, servers that stop.

use std::time::Duration;

use tenure::ErrorKind;
use tenure::store::{ReleaseReply, RenewReply};

use crate::requests::{busy, granted, joining, lease, owner, request};
use crate::{Server, behind_proxy, open};

#[tokio::test]
async fn a_call_whose_answer_is_lost_may_be_made_again() {
    let (proxy, store, other) = behind_proxy().await;
    let held = owner();
    proxy.hold_replies();
    let error = store.acquire(&request("x", &held)).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unreachable && error.may_have_been_applied(), "{error:?}");
    proxy.cut();
    proxy.heal();
    granted(&store, &request("x", &held)).await;
    assert_eq!(busy(&other, &request("x", &owner())).await.holder.unwrap().owner, held);
    proxy.hold_replies();
    let error = store.release(&lease("x", &held), Duration::ZERO).await.unwrap_err();
    assert!(error.may_have_been_applied(), "{error:?}");
    proxy.cut();
    proxy.heal();
    // It may have run, so what the second finds says nothing.
    store.release(&lease("x", &held), Duration::ZERO).await.unwrap();
    granted(&other, &request("x", &owner())).await;
}

/// In the first half of the time the connection turns out to be dead, and in the second half another one answers.
#[tokio::test]
async fn a_renewal_gets_through_on_another_connection() {
    let (proxy, store, _) = behind_proxy().await;
    let held = owner();
    granted(&store, &request("x", &held)).await;
    proxy.hold_present_requests();
    assert_eq!(store.renew(&[lease("x", &held)]).await.remove(0).unwrap(), RenewReply::Renewed);
    assert_eq!(proxy.accepted(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_survive_a_crash_of_the_server() {
    let server = Server::start();
    let store = open(&(server.url("locks") + "&timeout=2s")).await;
    let (held, waits) = (owner(), joining("x"));
    let before = granted(&store, &request("x", &held)).await.fence.unwrap();
    assert_eq!(busy(&store, &waits).await.position, Some(0));
    server.kill();
    let error = store.inspect(None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error:?}");
    server.restart();
    assert_eq!(store.renew(&[lease("x", &held)]).await.remove(0).unwrap(), RenewReply::Renewed);
    assert_eq!(store.release(&lease("x", &held), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    assert!(granted(&store, &waits).await.fence.unwrap() > before);
}

/// Somebody keeps the whole table locked, as `ALTER TABLE` does. Calls fail, and leave no crowd of sessions that wait for it.
#[tokio::test]
async fn a_locked_table_gathers_no_sessions() {
    let (server, table) = (Server::start(), "locks");
    let store = open(&(server.url(table) + "&timeout=200ms")).await;
    let held = owner();
    granted(&store, &request("x", &held)).await;
    let most = crate::while_locked(&server, async {
        let mut most = 0;
        for _ in 0..15 {
            store.renew(&[lease("x", &held)]).await.remove(0).unwrap_err();
            most = most.max(server.sql(crate::SESSIONS)[0].parse().unwrap());
        }
        most
    })
    .await;
    // Each waits for a second, as long as five calls.
    assert!(most < 10, "{most} sessions after fifteen calls");
    let renewed = async { while store.renew(&[lease("x", &held)]).await.remove(0).ok() != Some(RenewReply::Renewed) {} };
    tokio::time::timeout(crate::PATIENCE, renewed).await.expect("it does not find the way back");
}
