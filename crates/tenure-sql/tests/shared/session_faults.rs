//! Sessions that end, are cut off or fall silent, servers that stop, calls that are dropped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure::store::{AcquireReply, ReleaseReply, RenewReply, Store};
use tenure::{EndReason, ErrorKind, Lease, Locker, Name, Share, State};
use tenure_testkit::{Proxy, wait_until};
use tokio::time::timeout;

use crate::dropped::Calls;
use crate::requests::{CALLS, busy, drop_after, granted, lease, owner, request};
use crate::session_locks::{end_session_of, fresh_space, holding, sessions, url_at};
use crate::{PATIENCE, Server, open};

/// The server counts idle sessions in whole seconds at the worst.
const TTL: Duration = Duration::from_secs(2);
const KEPT: Duration = Duration::from_secs(3);

/// Locks of their own on a server behind a proxy, and stores that reach them through the proxy and without it.
async fn through_proxy(server: &Server) -> (Proxy, Arc<dyn Store>, Arc<dyn Store>) {
    through_proxy_within(server, "1s").await
}

async fn through_proxy_within(server: &Server, limit: &str) -> (Proxy, Arc<dyn Store>, Arc<dyn Store>) {
    let (proxy, space) = (Proxy::start_opaque(server.addr()), fresh_space(server));
    let at = async |addr| open(&format!("{}&timeout={limit}", url_at(addr, &space))).await;
    let (behind, other) = (at(proxy.addr()).await, at(server.addr()).await);
    (proxy, behind, other)
}

fn locker(store: &Arc<dyn Store>) -> Locker {
    Locker::builder(store.clone()).ttl(TTL).build().unwrap()
}

async fn renewed(store: &dyn Store, lease: Lease) -> RenewReply {
    store.renew(&[lease]).await.remove(0).unwrap()
}

/// Waits until the name is free, and takes it.
async fn free_at_last(store: &dyn Store, name: &str) {
    let next = request(name, &owner());
    let taken = async {
        while !matches!(store.acquire(&next).await, Ok(AcquireReply::Granted(_))) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, taken).await.expect("the name stays taken");
    store.release(&lease(name, &next.owner), Duration::ZERO).await.unwrap();
}

#[tokio::test]
async fn an_ended_session_is_a_loss_of_its_own_lease_alone() {
    let (server, space) = (Server::shared(), fresh_space(Server::shared()));
    let store = open(&url_at(server.addr(), &space)).await;
    let locks = locker(&store);
    let [lost, kept] = ["7", "8"].map(|name| locks.mutex(name).ttl(TTL * 3).acquire());
    let (lost, kept) = (lost.await.unwrap(), kept.await.unwrap());
    end_session_of(server, &space, "7");
    let reason = timeout(PATIENCE, lost.lost()).await.expect("its next renewal finds out");
    assert_eq!((reason, lost.state()), (EndReason::Gone, State::Lost));
    kept.verify().await.unwrap();
    free_at_last(&store, "7").await;
    assert_ne!(kept.state(), State::Lost);
}

#[tokio::test]
async fn a_cut_connection_is_a_loss() {
    let (proxy, store, other) = through_proxy(Server::shared()).await;
    let guard = locker(&store).mutex("x").ttl(Duration::from_secs(30)).acquire().await.unwrap();
    proxy.cut();
    proxy.heal();
    // The server sees the end of the connection as well.
    free_at_last(&other, "x").await;
    assert_eq!(guard.verify().await.unwrap_err().kind(), ErrorKind::Lost);
    let again = locker(&store).mutex("x").try_acquire().await.unwrap();
    assert!(again.is_some(), "the store has a new session");
}

/// As after the death of a host, or a cut cable: the server hears nothing, and neither do we.
#[tokio::test]
async fn a_silent_connection_is_lost_here_before_the_server_ends_it() {
    let (proxy, store, other) = through_proxy(Server::shared()).await;
    let asked = Instant::now();
    let guard = locker(&store).mutex("x").acquire().await.unwrap();
    proxy.black_hole();
    let began = Instant::now();
    let reason = timeout(PATIENCE, guard.lost()).await.expect("no answer is a loss at its deadline");
    assert_eq!(reason, EndReason::Expired);
    if let AcquireReply::Granted(_) = other.acquire(&request("x", &owner())).await.unwrap() {
        assert!(asked.elapsed() >= TTL, "free before the loss");
        panic!("the test looked only after {:?}", asked.elapsed());
    }
    free_at_last(&other, "x").await;
    let took = began.elapsed();
    assert!(took < KEPT + Duration::from_secs(2), "free only after {took:?}");
    proxy.heal();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_of_the_server_ends_all() {
    let server = Server::start();
    let space = fresh_space(&server);
    let store = open(&(url_at(server.addr(), &space) + "&timeout=2s")).await;
    let held = owner();
    granted(&store, &request("x", &held)).await;
    server.kill();
    assert_eq!(store.inspect(Some(&Name::new("x").unwrap())).await.unwrap_err().kind(), ErrorKind::Unreachable);
    server.restart();
    assert_eq!(renewed(&store, lease("x", &held)).await, RenewReply::Gone);
    assert_eq!(store.release(&lease("x", &held), Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
    granted(&store, &request("x", &owner())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_is_a_loss_at_the_deadline() {
    let server = Server::start();
    let space = fresh_space(&server);
    let (store, other) = (open(&url_at(server.addr(), &space)).await, open(&url_at(server.addr(), &space)).await);
    let guard = locker(&store).mutex("x").acquire().await.unwrap();
    server.stop();
    assert_eq!(timeout(PATIENCE, guard.lost()).await.unwrap(), EndReason::Expired);
    server.cont();
    free_at_last(&other, "x").await;
}

/// The statement is on its way when its session is given up. Another one ends that, so it never runs.
#[tokio::test]
async fn what_is_left_on_the_way_never_runs() {
    let server = Server::start();
    let (proxy, store, other) = through_proxy(&server).await;
    let (given, before) = (request("x", &owner()), sessions(&server));
    proxy.hold_present_requests();
    let error = store.acquire(&given).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unreachable && error.may_have_been_applied(), "{error:?}");
    assert_eq!(store.release(&lease("x", &given.owner), Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
    // The proxy keeps its connection to the server, so nothing else has ended it.
    let after = sessions(&server);
    assert_eq!((before.len(), before.iter().filter(|id| after.contains(id)).count()), (2, 1), "{after:?} of {before:?}");
    proxy.release_requests();
    granted(&other, &request("x", &owner())).await;
}

/// The lock was taken, and nobody heard of it.
#[tokio::test]
async fn a_lost_answer_is_made_up_for_on_another_session() {
    let (proxy, store, other) = through_proxy(Server::shared()).await;
    let held = owner();
    proxy.hold_replies();
    assert!(store.acquire(&request("x", &held)).await.unwrap_err().may_have_been_applied());
    // It asks again on the same session, which is silent.
    assert!(store.acquire(&request("x", &held)).await.unwrap_err().may_have_been_applied());
    proxy.cut();
    proxy.heal();
    granted(&store, &request("x", &held)).await;
    busy(&other, &request("x", &owner())).await;
    assert_eq!(renewed(&store, lease("x", &held)).await, RenewReply::Renewed);
    assert_eq!(store.release(&lease("x", &held), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    granted(&other, &request("x", &owner())).await;
}

/// As one that runs late: the server keeps the session for as long as it was asked to before.
#[tokio::test]
async fn a_renewal_for_less_ends_no_session_early() {
    let (_proxy, store, other) = through_proxy(Server::shared()).await;
    let held = owner();
    granted(&store, &request("x", &held)).await;
    assert_eq!(renewed(&store, lease("x", &held).with_ttl(Duration::from_secs(1))).await, RenewReply::Renewed);
    tokio::time::sleep(KEPT).await;
    busy(&other, &request("x", &owner())).await;
    assert_eq!(renewed(&store, lease("x", &held)).await, RenewReply::Renewed);
}

/// Whichever of them the server runs last.
#[tokio::test]
async fn two_renewals_at_once_shorten_nothing() {
    let (_proxy, store, other) = through_proxy(Server::shared()).await;
    let held = owner();
    let renewal = |name, ttl| renewed(&store, lease(name, &held).with_ttl(Duration::from_secs(ttl)));
    // Of the second pair, the first asks for what is left, and the second for more.
    for (name, [first, second]) in [("x", [20, 1]), ("y", [1, 20])] {
        granted(&store, &request(name, &held).with_ttl(TTL)).await;
        let both = futures_util::future::join(renewal(name, first), renewal(name, second)).await;
        assert_eq!(both, (RenewReply::Renewed, RenewReply::Renewed), "{name}");
    }
    tokio::time::sleep(KEPT + Duration::from_secs(1)).await;
    for name in ["x", "y"] {
        busy(&other, &request(name, &owner())).await;
    }
}

/// The lock is free then, and the token is no owner of it any more.
#[tokio::test]
async fn a_dropped_release_leaves_a_supplied_token_usable() {
    let (proxy, store, _) = through_proxy(Server::shared()).await;
    let wanted = request("x", &owner()).with_generated(false);
    granted(&store, &wanted).await;
    proxy.delay(Duration::from_millis(50));
    timeout(Duration::from_millis(20), store.release(&wanted.lease(), Duration::ZERO)).await.unwrap_err();
    proxy.delay(Duration::ZERO);
    granted(&store, &wanted).await;
}

/// Nobody repeats an acquisition with such a token, so what is left of a dropped one is ended by the next.
#[tokio::test]
async fn a_dropped_call_with_a_supplied_token_leaves_it_usable() {
    let (proxy, store, other) = through_proxy(Server::shared()).await;
    let wanted = request("x", &owner()).with_generated(false);
    for is_busy in [false, true] {
        let theirs = owner();
        if is_busy {
            granted(&other, &request("x", &theirs)).await;
        }
        proxy.delay(Duration::from_millis(50));
        timeout(Duration::from_millis(20), store.acquire(&wanted)).await.unwrap_err();
        proxy.delay(Duration::ZERO);
        if is_busy {
            assert_eq!(other.release(&lease("x", &theirs), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
        }
        granted(&store, &wanted).await;
        assert_eq!(store.release(&wanted.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    }
}

/// A session of an attempt that found the name busy is ended by the server after the ttl, on some of them.
#[tokio::test]
async fn an_idle_session_is_not_used_after_its_time() {
    let (_proxy, store, other) = through_proxy(Server::shared()).await;
    granted(&other, &request("x", &owner())).await;
    let mut short = request("x", &owner());
    short.ttl = Duration::from_secs(1);
    busy(&store, &short).await;
    tokio::time::sleep(KEPT).await;
    assert_eq!(store.inspect(Some(&short.name)).await.unwrap().len(), 1);
}

/// An attempt without an answer has found the name busy. Its session answers, and holds nothing.
#[tokio::test]
async fn only_a_session_that_holds_is_a_grant() {
    let (proxy, store, other) = through_proxy(Server::shared()).await;
    let theirs = owner();
    granted(&other, &request("x", &theirs)).await;
    for repeats in [true, false] {
        let ours = owner();
        proxy.delay(Duration::from_millis(50));
        // With one, nobody has seen its answer when it is released.
        for polls in 1..=if repeats { 3 } else { 1 } {
            drop_after(polls, store.acquire(&request("x", &ours))).await;
        }
        proxy.delay(Duration::ZERO);
        if repeats {
            busy(&store, &request("x", &ours)).await;
        }
        assert_eq!(store.release(&lease("x", &ours), Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
    }
    assert_eq!(renewed(&other, lease("x", &theirs)).await, RenewReply::Renewed);
}

/// A session is given back once. Else two leases would share it, and it would get the lock that it has once more.
#[tokio::test]
async fn two_releases_at_once_leave_one_session() {
    let (proxy, store, _) = through_proxy(Server::shared()).await;
    proxy.delay(Duration::from_millis(5));
    for _ in 0..10 {
        let (held, next) = (owner(), request("x", &owner()));
        granted(&store, &request("x", &held)).await;
        let lease = lease("x", &held);
        let first = async {
            store.release(&lease, Duration::ZERO).await.unwrap();
            granted(&store, &next).await;
        };
        // Which polls the first one first, also when both have their answers.
        let ((), second) = futures_util::future::join(first, store.release(&lease, Duration::ZERO)).await;
        second.unwrap();
        busy(&store, &request("x", &owner())).await;
        store.release(&next.lease(), Duration::ZERO).await.unwrap();
    }
}

/// A supplied token is one owner of several names, with a session for each.
#[tokio::test]
async fn one_token_holds_two_names() {
    let (_proxy, store, other) = through_proxy(Server::shared()).await;
    let held = owner();
    for name in ["x", "y"] {
        granted(&store, &request(name, &held).with_generated(false)).await;
    }
    busy(&other, &request("x", &owner())).await;
    assert_eq!(renewed(&store, lease("x", &held)).await, RenewReply::Renewed);
    for name in ["x", "y"] {
        assert_eq!(store.release(&lease(name, &held), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    }
}

/// Two tasks have the same supplied token. One of them gets the lock, and keeps it.
#[tokio::test]
async fn one_of_two_calls_with_one_token_is_granted() {
    let (proxy, store, other) = through_proxy(Server::shared()).await;
    proxy.delay(Duration::from_millis(5));
    for _ in 0..10 {
        let wanted = request("x", &owner()).with_generated(false);
        let (first, second) = futures_util::future::join(store.acquire(&wanted), store.acquire(&wanted)).await;
        let are_granted = [first, second].map(|reply| matches!(reply.unwrap(), AcquireReply::Granted(_)));
        assert_eq!(are_granted.iter().filter(|granted| **granted).count(), 1, "{are_granted:?}");
        busy(&other, &request("x", &owner())).await;
        assert_eq!(store.release(&wanted.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    }
}

/// Each lease has a connection of its own.
#[tokio::test]
async fn every_call_dropped_at_every_poll_leaves_what_a_release_clears() {
    let calls = Calls { polls: 8, until_sent: 1, apart: &CALLS };
    calls.leave_what_a_release_clears(async || through_proxy_within(Server::shared(), "20s").await).await;
}

/// A lease that nobody releases ends by itself.
#[tokio::test]
async fn a_dropped_call_that_nobody_clears_up_ends_with_its_ttl() {
    let (proxy, store, other) = through_proxy(Server::shared()).await;
    let taken = request("x", &owner()).with_ttl(TTL);
    proxy.hold_replies();
    drop_after(3, store.acquire(&taken)).await;
    proxy.release_replies();
    free_at_last(&other, "x").await;
}

/// Another process ends a session by its number, perhaps late: it must not end the next lease with it.
#[tokio::test]
async fn a_session_holds_one_lease_in_its_life() {
    let (server, mut before) = (Server::start(), Vec::new());
    let space = fresh_space(&server);
    let store = open(&url_at(server.addr(), &space)).await;
    for _ in 0..3 {
        let held = owner();
        granted(&store, &request("7", &held)).await;
        let of_holder = holding(&server, &space, "7");
        assert!(!before.contains(&of_holder), "{of_holder} has held before: {before:?}");
        before.push(of_holder);
        store.release(&lease("7", &held), Duration::ZERO).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_few_idle_sessions_are_kept() {
    let server = Server::start();
    let store = open(&url_at(server.addr(), &fresh_space(&server))).await;
    granted(&store, &request("x", &owner())).await;
    let rivals: Vec<_> = (0..20).map(|_| request("x", &owner())).collect();
    futures_util::future::join_all(rivals.iter().map(|rival| busy(&store, rival))).await;
    wait_until(PATIENCE, "the sessions that hold nothing to end", || sessions(&server).len() <= 5);
    // Those that are kept are used again.
    let kept = sessions(&server);
    busy(&store, &request("x", &owner())).await;
    assert_eq!(sessions(&server), kept);
}

#[tokio::test]
async fn what_no_session_can_do_is_refused() {
    let space = fresh_space(Server::shared());
    let url = url_at(Server::shared().addr(), &space);
    let (store, other) = (open(&url).await, open(&url).await);
    let held = owner();
    granted(&store, &request("x", &held)).await;
    let reader = request("y", &owner()).with_share(Share::READ);
    let month = request("y", &owner()).with_ttl(Duration::from_secs(30 * 24 * 3_600));
    for (error, kind, why) in [
        (store.acquire(&reader).await.unwrap_err(), ErrorKind::Unsupported, "mutexes only"),
        (store.acquire(&month).await.unwrap_err(), ErrorKind::Invalid, "24 days"),
        (store.release(&lease("x", &held), TTL).await.unwrap_err(), ErrorKind::Unsupported, "stay taken"),
        (other.renew(&[lease("x", &held)]).await.remove(0).unwrap_err(), ErrorKind::Unsupported, "another process"),
        (other.acquire(&request("x", &owner()).with_from(held.clone())).await.unwrap_err(), ErrorKind::Unsupported, "alone"),
        (
            Locker::new(store.clone()).mutex("y").min_hold(TTL).acquire().await.unwrap_err(),
            ErrorKind::Unsupported,
            "after its release",
        ),
    ] {
        assert!(error.kind() == kind && error.to_string().contains(why), "{error}");
        assert!(!error.may_have_been_applied(), "{error}");
    }
    assert_eq!(renewed(&store, lease("x", &held)).await, RenewReply::Renewed);
}

/// An operator frees it, by the owner that is shown.
#[tokio::test]
async fn the_session_of_another_process_can_be_ended() {
    let space = fresh_space(Server::shared());
    let url = url_at(Server::shared().addr(), &space);
    let (store, other) = (open(&url).await, open(&url).await);
    let guard = locker(&store).mutex("x").acquire().await.unwrap();
    let shown = busy(&other, &request("x", &owner())).await.holder.unwrap();
    assert_eq!(other.release(&lease("x", &owner()), Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
    assert_eq!(other.release(&lease("x", &shown.owner), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    assert_eq!(guard.verify().await.unwrap_err().kind(), ErrorKind::Lost);
    granted(&other, &request("x", &owner())).await;
}
