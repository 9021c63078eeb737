//! Answers that are lost, connections that die, servers that stop.

use std::time::{Duration, Instant};

use tenure::ErrorKind;
use tenure::store::{ReleaseReply, RenewReply, Store};
use tenure_testkit::Proxy;

use crate::requests::{busy, granted, joining, lease, owner, request};
use crate::{PATIENCE, Server, behind_proxy, in_sql, open, timeout_beside_a_lock};

/// Waits until the sessions that were left have ended. Each new connection looks for them again.
pub(crate) async fn settled(proxy: &Proxy, store: &dyn Store) {
    let settled = async {
        while store.features().late_commands {
            proxy.cut_others();
            let _ = store.inspect(None).await;
        }
    };
    tokio::time::timeout(PATIENCE, settled).await.expect("its session has not ended");
}

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

/// A transaction of somebody else has the row. Calls for that name end in time and are not applied, and others go on: also those
/// that are in one statement with it.
#[tokio::test]
async fn a_locked_row_holds_up_its_own_name_only() {
    let (server, table) = (Server::shared(), Server::fresh_table());
    let store = open(&(server.url(&table) + "&timeout=" + timeout_beside_a_lock())).await;
    let (held, timeout) = (owner(), tenure::parse_duration(timeout_beside_a_lock()).unwrap());
    for name in ["x", "y", "z"] {
        granted(&store, &request(name, &held)).await;
    }
    let mut session = server.session();
    session.run(&format!("BEGIN; SELECT name FROM {} WHERE name = 'y' FOR UPDATE;", in_sql(&table)));
    let is_locked = |error: &tenure::Error, took: Duration, limit: Duration| {
        let is_told = error.kind() == ErrorKind::Overloaded && error.to_string().contains("locked");
        assert!(is_told || took < limit, "the call took {took:?}");
        assert!(is_told && !error.may_have_been_applied(), "{error:?}");
    };
    // To say who holds takes no lock.
    let entry = store.inspect(Some(&tenure::Name::new("y").unwrap())).await.unwrap().remove(0);
    assert_eq!(entry.holders[0].owner, held);
    let began = Instant::now();
    let error = store.release(&lease("y", &held), Duration::ZERO).await.unwrap_err();
    is_locked(&error, began.elapsed(), timeout);
    let began = Instant::now();
    let renewed = store.renew(&["x", "y", "z"].map(|name| lease(name, &held))).await;
    let (took, limit) = (began.elapsed(), timeout / 2);
    let only_y_failed = matches!(renewed[..], [Ok(RenewReply::Renewed), Err(_), Ok(RenewReply::Renewed)]);
    assert!(only_y_failed || took < limit, "the renewals took {took:?}");
    assert!(only_y_failed, "{renewed:?}");
    is_locked(renewed[1].as_ref().unwrap_err(), took, limit);
    session.run("ROLLBACK;");
    assert_eq!(store.release(&lease("y", &held), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    assert!(!store.features().late_commands, "its connection is as good as before");
}

/// Somebody has locked one row, and its callers occupy the connection. Callers of another name hear that they got no turn, and not that
/// the server is gone.
#[tokio::test(flavor = "multi_thread")]
async fn callers_behind_those_of_a_locked_row_do_not_take_it_for_an_outage() {
    let (server, table) = (Server::shared(), Server::fresh_table());
    let store = open(&(server.url(&table) + "&timeout=1s")).await;
    let held = request("x", &owner());
    granted(&store, &held).await;
    let mut session = server.session();
    session.run(&format!("BEGIN; SELECT name FROM {} WHERE name = 'x' FOR UPDATE;", in_sql(&table)));
    let held = held.lease();
    let crowd = futures_util::future::join_all((0..12).map(|_| async { store.release(&held, Duration::ZERO).await.map(|_| ()) }));
    let other = request("y", &owner());
    let (crowd, behind) = tokio::join!(crowd, store.acquire(&other));
    for error in crowd.into_iter().chain([behind.map(|_| ())]).filter_map(Result::err) {
        assert_eq!(error.kind(), ErrorKind::Overloaded, "{error:?}");
    }
    session.run("ROLLBACK;");
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
    tokio::time::timeout(PATIENCE, renewed).await.expect("it does not find the way back");
}
