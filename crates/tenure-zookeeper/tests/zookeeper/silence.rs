//! Sessions after a silence, and requests that are lost.

use std::time::Duration;

use futures_util::StreamExt as _;
use tenure::store::{AcquireReply, RenewReply, Request};
use tenure::{ErrorKind, Name, Owner, Share};
use tenure_conformance::Process;
use tenure_testkit::{Program, Proxy, ShiftedClock, Worker, ZooKeeperServer as Server};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::requests::{TTL, busy, granted, lease, owner, request};
use crate::tap::{CONNECT, CREATE, CREATE_CONTAINER, DELETE, SET_DATA, Tap};
use crate::{PATIENCE, gone, open};

/// The leader may be about to end the session, although its own server still takes requests. To connect is a sign of life.
#[test]
fn a_process_that_was_stopped_connects_again_before_it_asks() {
    let tap = Tap::start(Server::shared().addr());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = open(&Server::url_at(tap.addr(), &Server::fresh_chroot())).await;
        let first = owner();
        granted(&store, &request("x", &first)).await;
        store.release(&lease("x", &first), Duration::ZERO).await.unwrap();
        tap.asked();
        // As a stop of the whole process: nothing of it runs.
        std::thread::sleep(Duration::from_millis(300));
        granted(&store, &request("x", &owner())).await;
        let asked = tap.asked();
        let (by, _) = asked.iter().find(|(_, op)| *op == CREATE).unwrap();
        assert!(asked.contains(&(*by, CONNECT)), "a node was made over the old connection: {asked:?}");
    });
}

/// Timers of the process stand still meanwhile, and the ensemble's do not.
#[test]
fn a_machine_that_slept_connects_again_before_it_asks() {
    let (tap, clock) = (Tap::start(Server::shared().addr()), ShiftedClock::new());
    let mut command = Program::this_test().on(&Server::url_at(tap.addr(), &Server::fresh_chroot()));
    clock.apply(&mut command);
    let mut worker = Worker::start(command);
    Process::acquire(&mut worker, "x", TTL);
    worker.release();
    tap.asked();
    let slept = Duration::from_millis(300);
    Process::stop(&mut worker, true);
    std::thread::sleep(slept);
    clock.shift_monotonic(-i64::try_from(slept.as_millis()).unwrap());
    Process::stop(&mut worker, false);
    Process::acquire(&mut worker, "x", TTL);
    let asked = tap.asked();
    let (by, _) = asked.iter().find(|(_, op)| *op == CREATE).unwrap();
    assert!(asked.contains(&(*by, CONNECT)), "a node was made over the old connection: {asked:?}");
}

/// It stood in front of all who asked later, for as long as its process lived.
#[tokio::test(flavor = "multi_thread")]
async fn a_try_for_a_busy_name_leaves_no_node() {
    let (tap, chroot) = (Tap::start(Server::shared().addr()), Server::fresh_chroot());
    let (direct, behind) = (open(&Server::shared().url(&chroot)).await, open(&Server::url_at(tap.addr(), &chroot)).await);
    let held = owner();
    granted(&direct, &request("x", &held)).await;
    busy(&behind, &request("x", &owner())).await;
    tap.lose_next(DELETE);
    busy(&behind, &request("x", &owner())).await;
    assert!(tap.has_lost());
    direct.release(&lease("x", &held), Duration::ZERO).await.unwrap();
    gone(&*direct, "x", "the node of the try is left").await;
}

/// Others see what a holder counts on, also if the connection breaks behind the check of its node.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_whose_longer_ttl_is_not_shown_is_no_renewal() {
    let (tap, chroot) = (Tap::start(Server::shared().addr()), Server::fresh_chroot());
    let direct = open(&Server::shared().url(&chroot)).await;
    let behind = open(&(Server::url_at(tap.addr(), &chroot) + "?timeout=5s")).await;
    let held = request("x", &owner());
    granted(&behind, &held).await;
    let longer = [held.lease().with_ttl(2 * TTL)];
    tap.lose_next(SET_DATA);
    let renewed = async {
        loop {
            // The second one finds that the first one writes.
            let (first, second) = tokio::join!(behind.renew(&longer), behind.renew(&longer));
            let answers = [first, second].map(|mut answers| answers.remove(0));
            for error in answers.iter().filter_map(|answer| answer.as_ref().err()) {
                assert!(error.is_transient(), "{error:?}");
            }
            if answers.iter().any(Result::is_ok) {
                return answers;
            }
        }
    };
    let answers = timeout(PATIENCE, renewed).await.expect("it is not written again");
    assert!(tap.has_lost());
    let shown = direct.inspect(Some(&held.name)).await.unwrap().remove(0).holders.remove(0);
    assert_eq!(shown.ttl, Some(longer[0].ttl), "{answers:?}");
}

/// Two nodes of one lease take two permits.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_behind_is_given_no_second_node() {
    let (tap, chroot) = (Tap::start(Server::shared().addr()), Server::fresh_chroot());
    let direct = open(&(Server::shared().url(&chroot) + "?timeout=5s")).await;
    let behind = open(&(Server::url_at(tap.addr(), &chroot) + "?timeout=5s")).await;
    let one = |owner: &Owner| request("x", owner).with_share(Share::permits(1, 2).unwrap());
    let first = owner();
    granted(&behind, &one(&first)).await;
    behind.release(&one(&first).lease(), Duration::ZERO).await.unwrap();
    tap.lose_next_created();
    let held = one(&owner());
    // The list behind the create was lost as well. So it is asked again for its place.
    while let Err(error) = behind.acquire(&held).await {
        assert!(error.is_transient(), "{error}");
    }
    assert!(tap.has_lost());
    let entry = direct.inspect(Some(&Name::new("x").unwrap())).await.unwrap().remove(0);
    assert_eq!((entry.holders.len(), entry.waiters.len()), (1, 0), "it was made twice: {entry:?}");
    granted(&direct, &one(&owner())).await;
}

/// Requests arrive and no answer comes back, so the ensemble keeps the session for longer than its client does.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_was_given_up_may_have_its_nodes() {
    let (proxy, chroot) = (Proxy::start_opaque(Server::shared().addr()), Server::fresh_chroot());
    let store = open(&(Server::url_at(proxy.addr(), &chroot) + "?timeout=10s")).await;
    let other = open(&(Server::shared().url(&chroot) + "?timeout=10s")).await;
    let (ttl, name) = (Duration::from_secs(4), Name::new("x").unwrap());
    let asking = async {
        loop {
            // It makes a session, and the node of the name.
            let first = request("x", &owner()).with_ttl(ttl);
            while store.acquire(&first).await.is_err() {}
            while store.release(&first.lease(), Duration::ZERO).await.is_err() {}
            proxy.hold_replies();
            let asked = request("x", &owner()).with_ttl(ttl);
            let (mut answer, mut is_made) = (store.acquire(&asked), false);
            let made = async {
                while other.inspect(Some(&name)).await.unwrap().is_empty() {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                _ = &mut answer => {}
                () = made => is_made = true,
            }
            if is_made {
                break (asked.lease(), answer.await.unwrap_err());
            }
            // It had heard nothing for half a tick just then, and connected before it asked.
            proxy.cut();
            proxy.heal();
            while store.release(&asked.lease(), Duration::ZERO).await.is_err() {}
        }
    };
    let (lease, error) = timeout(2 * PATIENCE, asking).await.expect("no node is made");
    assert!(error.may_have_been_applied(), "{error}");
    proxy.cut();
    proxy.heal();
    // The release finds the node of that session, and deletes it.
    store.release(&lease, Duration::ZERO).await.unwrap();
    assert_eq!(other.inspect(Some(&name)).await.unwrap(), [], "it was released");
}

/// It said that nothing was held.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_in_a_session_that_is_given_up_may_have_left_the_node() {
    let (proxy, chroot) = (Proxy::start_opaque(Server::shared().addr()), Server::fresh_chroot());
    let store = open(&(Server::url_at(proxy.addr(), &chroot) + "?timeout=10s")).await;
    let held = ["x", "y"].map(|name| request(name, &owner()).with_ttl(Duration::from_secs(4)));
    for request in &held {
        granted(&store, request).await;
    }
    proxy.hold_replies();
    // Then its connection has broken.
    let leases = held.each_ref().map(Request::lease);
    let error = store.renew(&leases[..1]).await.remove(0).unwrap_err();
    assert!(error.is_transient(), "{error}");
    let [alone, behind_a_call] = leases.each_ref().map(|lease| store.release(lease, Duration::ZERO));
    let (alone, _, behind_a_call) = tokio::join!(biased; alone, store.acquire(&held[1]), behind_a_call);
    let error = alone.unwrap_err();
    assert!(error.may_have_been_applied(), "{error}");
    // It asks in another session, and has no answer.
    assert_eq!(behind_a_call.unwrap_err().kind(), ErrorKind::Unreachable);
}

/// Nothing of it can be left in a session that has ended.
#[test]
fn the_first_call_after_the_session_has_ended_is_done() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = open(&(Server::shared().url(&Server::fresh_chroot()) + "?timeout=1s")).await;
        let short = |owner| request("x", owner).with_ttl(Duration::from_millis(400));
        let first = owner();
        granted(&store, &short(&first)).await;
        store.release(&short(&first).lease(), Duration::ZERO).await.unwrap();
        std::thread::sleep(Duration::from_millis(1_300));
        granted(&store, &short(&owner())).await;
    });
}

/// They refuse a client that has seen more than they know. For a session of its own, nothing is in the way.
#[tokio::test(flavor = "multi_thread")]
async fn servers_that_have_lost_their_data_give_locks_at_once() {
    let tap = Tap::start(Server::shared().addr());
    let store = open(&Server::url_at(tap.addr(), &Server::fresh_chroot())).await;
    let first = owner();
    granted(&store, &request("x", &first)).await;
    store.release(&lease("x", &first), Duration::ZERO).await.unwrap();
    tap.forget_sessions();
    let granted = async {
        while !matches!(store.acquire(&request("x", &owner())).await, Ok(AcquireReply::Granted(_))) {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(5), granted).await.expect("it goes on with the session that nobody knows");
}

/// Its own timeout is longer than the one by default.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_answer_is_awaited_for_the_operation_timeout() {
    let proxy = Proxy::start_opaque(Server::shared().addr());
    let store = open(&(Server::url_at(proxy.addr(), &Server::fresh_chroot()) + "?timeout=6s")).await;
    let held = owner();
    granted(&store, &request("x", &held)).await;
    proxy.delay(Duration::from_millis(550));
    assert_eq!(store.renew(&[lease("x", &held)]).await.remove(0).unwrap(), RenewReply::Renewed);
}

/// Servers keep a container for ever that never had a child.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_of_an_unused_name_makes_no_node() {
    let (tap, chroot) = (Tap::start(Server::shared().addr()), Server::fresh_chroot());
    let (direct, behind) = (open(&Server::shared().url(&chroot)).await, open(&Server::url_at(tap.addr(), &chroot)).await);
    let mut notices = behind.watch(&request("x", &owner())).await.unwrap();
    let made: Vec<_> = tap.asked().into_iter().filter(|(_, op)| [CREATE, CREATE_CONTAINER].contains(op)).collect();
    assert_eq!(made, []);
    for used in ["first", "again"] {
        let held = owner();
        granted(&direct, &request("x", &held)).await;
        timeout(Duration::from_secs(5), notices.next()).await.unwrap_or_else(|_| panic!("no notice: {used}")).unwrap();
        direct.release(&lease("x", &held), Duration::ZERO).await.unwrap();
    }
}

/// A server that takes connections and says nothing, and the time for one attempt was a day. Nobody could make a session.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_connects_again_holds_nobody_up() {
    let (proxy, deaf) = (Proxy::start_opaque(Server::shared().addr()), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let hosts = format!("zookeeper://{},{}", proxy.addr(), deaf.local_addr().unwrap());
    let store = open(&format!("{hosts}/{}?timeout=1s", Server::fresh_chroot())).await;
    let short = |owner: &Owner| request("x", owner).with_ttl(Duration::from_millis(400));
    let first = owner();
    while store.acquire(&short(&first)).await.is_err() {}
    while store.release(&short(&first).lease(), Duration::ZERO).await.is_err() {}
    let watched = async {
        loop {
            match store.watch(&request("x", &owner())).await {
                Ok(notices) => return notices,
                // After a silence it may try the deaf one first.
                Err(error) => assert!(error.is_transient(), "{error:?}"),
            }
        }
    };
    let _notices = timeout(Duration::from_secs(10), watched).await.expect("it does not watch");
    proxy.refuse();
    proxy.cut();
    // By then the session has ended, and the watch has begun to make another one.
    tokio::time::sleep(Duration::from_secs(5)).await;
    proxy.accept();
    let granted = async {
        while !matches!(store.acquire(&short(&owner())).await, Ok(AcquireReply::Granted(_))) {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(10), granted).await.expect("a watch is in the way of all others");
}
