//! Servers that stop, die and come back, and answers that are lost.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tenure::store::{AcquireReply, Enqueue, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{EndReason, ErrorKind, Lease, Locker, Name, Share, State};
use tenure_conformance::Process;
use tenure_testkit::zookeeper::TICK;
use tenure_testkit::{Program, Proxy, Worker, ZooKeeperEnsemble, ZooKeeperServer as Server, wait_until};
use tokio::time::timeout;

use crate::dropped::Calls;
use crate::raw::Raw;
use crate::requests::{CALLS, busy, granted, joining, lease, owner, request};
use crate::{PATIENCE, open};

/// A chroot of its own behind a proxy, and stores that reach it through the proxy and without it.
async fn through_proxy() -> (Proxy, Arc<dyn Store>, Arc<dyn Store>) {
    let (proxy, chroot) = (Proxy::start_opaque(Server::shared().addr()), Server::fresh_chroot());
    let behind = open(&(Server::url_at(proxy.addr(), &chroot) + "?timeout=1s")).await;
    (proxy, behind, open(&(Server::shared().url(&chroot) + "?timeout=1s")).await)
}

async fn renewed(store: &dyn Store, lease: Lease) -> RenewReply {
    store.renew(&[lease]).await.remove(0).unwrap()
}

fn locker(store: &Arc<dyn Store>, ttl: u64) -> Locker {
    Locker::builder(store.clone()).ttl(Duration::from_secs(ttl)).build().unwrap()
}

/// A request whose place is there for longer than any pause.
fn staying(name: &str) -> Request {
    joining(name).with_enqueue(Enqueue::Join { entry_ttl: Duration::from_secs(60), handoff_ttl: PATIENCE })
}

/// Its node is found again by the token in its name.
#[tokio::test(flavor = "multi_thread")]
async fn a_create_whose_answer_was_lost_is_found_again() {
    let (proxy, store, other) = through_proxy().await;
    // Else the first request finds that the node of the name is missing.
    let first = owner();
    granted(&store, &request("x", &first)).await;
    store.release(&lease("x", &first), Duration::ZERO).await.unwrap();
    let name = Name::new("x").unwrap();
    let made = async {
        loop {
            let held = owner();
            proxy.hold_replies();
            assert!(store.acquire(&request("x", &held)).await.unwrap_err().may_have_been_applied());
            let is_made = !other.inspect(Some(&name)).await.unwrap().is_empty();
            proxy.cut();
            proxy.heal();
            if is_made {
                return held;
            }
            // It had heard nothing for half a tick just then, and connected before it asked.
            store.release(&lease("x", &held), Duration::ZERO).await.unwrap();
        }
    };
    let held = timeout(PATIENCE, made).await.expect("no node is made");
    granted(&store, &request("x", &held)).await;
    let entry = other.inspect(Some(&name)).await.unwrap().remove(0);
    assert_eq!((entry.holders.len(), entry.waiters.len()), (1, 0), "it was made twice: {entry:?}");
    assert!(store.features().late_commands, "the first request may still be on its way");
    assert_eq!(renewed(&store, lease("x", &held)).await, RenewReply::Renewed);
    assert_eq!(store.release(&lease("x", &held), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    granted(&other, &request("x", &owner())).await;
}

/// Its session, and all that it holds, goes on at the same server over another connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_connection_costs_no_lease_and_no_place() {
    let (proxy, store, other) = through_proxy().await;
    let (held, waiting, theirs) = (owner(), joining("y"), owner());
    granted(&store, &request("x", &held)).await;
    granted(&other, &request("y", &theirs)).await;
    assert_eq!(busy(&store, &waiting).await.position, Some(0));
    proxy.cut();
    // The request may be on its way when the connection ends. Then it is asked again, as the watchdog does.
    if let Err(error) = store.renew(&[lease("x", &held)]).await.remove(0) {
        assert!(error.is_transient(), "{error}");
    }
    assert_eq!(renewed(&store, lease("x", &held)).await, RenewReply::Renewed);
    other.release(&lease("y", &theirs), Duration::ZERO).await.unwrap();
    // A heartbeat makes no place.
    granted(&store, &waiting.with_enqueue(Enqueue::Heartbeat)).await;
}

/// It learned of that by its next heartbeat.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_node_others_delete_is_notified() {
    let chroot = Server::fresh_chroot();
    let store = open(&Server::shared().url(&chroot)).await;
    let (held, waiting) = (owner(), staying("x"));
    granted(&store, &request("x", &held)).await;
    let mut admin = Raw::connect(Server::shared().addr(), "admin:secret").await;
    let path = format!("/{chroot}/x");
    let first = admin.only_child(&path).await;
    let mut notices = store.watch(&waiting).await.unwrap();
    busy(&store, &waiting).await;
    let mut nodes = admin.children(&path).await;
    nodes.retain(|node| *node != first);
    admin.delete(&format!("{path}/{}", nodes[0])).await;
    // The node that it watches goes.
    store.release(&lease("x", &held), Duration::ZERO).await.unwrap();
    let notice = timeout(PATIENCE, notices.next()).await.expect("nothing says so").unwrap();
    assert!(matches!(notice, Notice::Changed), "{notice:?}");
}

/// Others never see less than what a holder counts on.
#[tokio::test(flavor = "multi_thread")]
async fn a_longer_ttl_is_shown_before_its_holder_counts_on_it() {
    let (proxy, store, other) = through_proxy().await;
    let (held, name) = (owner(), Name::new("x").unwrap());
    granted(&store, &request("x", &held)).await;
    proxy.delay(Duration::from_millis(30));
    let longer = lease("x", &held).with_ttl(Duration::from_secs(60));
    assert_eq!(renewed(&store, longer.clone()).await, RenewReply::Renewed);
    let shown = async || other.inspect(Some(&name)).await.unwrap()[0].holders[0].ttl.unwrap();
    assert_eq!(shown().await, longer.ttl);
    // Also after an answer that was lost.
    proxy.delay(Duration::ZERO);
    proxy.hold_replies();
    let longest = longer.with_ttl(Duration::from_secs(90));
    assert!(store.renew(std::slice::from_ref(&longest)).await[0].is_err());
    proxy.cut();
    proxy.heal();
    assert_eq!(renewed(&store, longest.clone()).await, RenewReply::Renewed);
    assert_eq!(shown().await, longest.ttl);
}

/// Also if it joins the queue and finds the name free.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_need_not_wait_shows_its_whole_ttl() {
    let url = Server::shared().url(&Server::fresh_chroot()) + "?timeout=5s";
    let (store, other) = (open(&url).await, open(&url).await);
    let waiting = joining("x").with_ttl(Duration::from_secs(20));
    assert_eq!(granted(&store, &waiting).await.ttl, waiting.ttl);
    let entry = other.inspect(Some(&waiting.name)).await.unwrap().remove(0);
    assert_eq!(entry.holders[0].ttl, Some(waiting.ttl));
}

/// A session outlives the leader, and fences go on to rise.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_outlives_the_leader() {
    let ensemble = ZooKeeperEnsemble::start();
    let (store, other) = (open(&ensemble.url("app")).await, open(&ensemble.url("app")).await);
    let (locks, theirs) = (locker(&store, 20), locker(&other, 20));
    let guard = locks.mutex("x").acquire().await.unwrap();
    let waiter = tokio::spawn(async move { theirs.mutex("x").acquire().await.unwrap() });
    ensemble.leader().kill();
    let verified = async {
        while guard.verify().await.is_err() {
            assert_eq!(guard.state(), State::Held);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, verified).await.expect("no leader was found");
    assert!(!waiter.is_finished(), "two hold");
    let fence = guard.fence();
    let _ = guard.release().await.unwrap();
    let second = timeout(PATIENCE, waiter).await.expect("the waiter was forgotten").unwrap();
    assert!(second.fence() > fence, "{:?} after {fence:?}", second.fence());
}

/// Its session was made for longer, and connected for its ttl. All servers of the ensemble go by that.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_process_costs_its_ttl_in_an_ensemble() {
    let ensemble = ZooKeeperEnsemble::start();
    let ttl = Duration::from_secs(2);
    for server in &ensemble.servers {
        let url = server.url("app");
        let mut worker = Worker::start(Program::this_test().on(&url));
        let before = Process::acquire(&mut worker, "x", ttl);
        let store = open(&ensemble.url("app")).await;
        busy(&store, &request("x", &owner())).await;
        Process::kill(&mut worker);
        let killed = std::time::Instant::now();
        let guard = timeout(PATIENCE, locker(&store, 2).mutex("x").acquire()).await.expect("it stays taken").unwrap();
        let freed = killed.elapsed();
        // Three of ZooKeeper, and the rest for a machine with other work.
        assert!(freed < ttl + 5 * TICK, "free only after {freed:?}");
        assert!(guard.fence() > before, "{:?} after {before:?}", guard.fence());
        let _ = guard.release().await.unwrap();
    }
}

/// Its session was made for its ttl, and goes by its entry, at the leader and at a follower.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_waiter_costs_its_entry_in_an_ensemble() {
    let ensemble = ZooKeeperEnsemble::start();
    let (ttl, entry) = (Duration::from_secs(20), Duration::from_millis(2_500));
    let mut guard = locker(&open(&ensemble.url("app")).await, 20).mutex("x").acquire().await.unwrap();
    for server in &ensemble.servers {
        let mut worker = Worker::start(Program::this_test().on(&server.url("app")));
        Process::begin_acquire(&mut worker, "x", ttl);
        let nodes = || ensemble.leader().nodes("/app/x");
        let mut before = nodes();
        // All servers have told the leader by then how long they were asked to keep its session.
        tokio::time::sleep(5 * TICK).await;
        while before.len() != 2 || nodes() != before {
            before = nodes();
            tokio::time::sleep(5 * TICK).await;
        }
        let behind = tokio::spawn(locker(&open(&ensemble.url("app")).await, 20).mutex("x").acquire());
        wait_until(PATIENCE, "one that waits behind it", || nodes().len() == 3);
        Process::kill(&mut worker);
        let killed = std::time::Instant::now();
        let _ = guard.release().await.unwrap();
        guard = timeout(PATIENCE, behind).await.expect("it waits for a dead one").unwrap().unwrap();
        let served = killed.elapsed();
        // Two of ZooKeeper, and the rest for a machine with other work.
        assert!(served < entry + 5 * TICK, "served only after {served:?}");
    }
    let _ = guard.release().await.unwrap();
}

/// The holder that goes on has lost its lease, and its successor has a larger fence.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_stopped_is_overtaken_in_an_ensemble() {
    let ensemble = ZooKeeperEnsemble::start();
    let url = ensemble.url("app");
    let mut worker = Worker::start(Program::this_test().on(&url));
    let before = Process::acquire(&mut worker, "x", Duration::from_secs(2));
    Process::stop(&mut worker, true);
    let store = open(&url).await;
    let guard = timeout(PATIENCE, locker(&store, 20).mutex("x").acquire()).await.expect("it stays taken").unwrap();
    assert!(guard.fence() > before, "{:?} after {before:?}", guard.fence());
    Process::stop(&mut worker, false);
    assert!(Process::is_lost(&mut worker));
    guard.verify().await.unwrap();
}

/// Nobody is asked for that.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_is_a_loss_at_the_deadline() {
    let server = Server::start();
    let (store, other) = (open(&server.url("app")).await, open(&server.url("app")).await);
    let guard = locker(&store, 2).mutex("x").acquire().await.unwrap();
    let fence = guard.fence();
    server.stop();
    assert_eq!(timeout(PATIENCE, guard.lost()).await.unwrap(), EndReason::Expired);
    server.cont();
    let next = timeout(PATIENCE, locker(&other, 2).mutex("x").acquire()).await.expect("the name stays taken").unwrap();
    assert!(next.fence() > fence);
}

/// It answers reads by itself, and others would learn of a lock later than its holder.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_behind_shows_what_is_held() {
    let ensemble = ZooKeeperEnsemble::start_with_links();
    let follower = ensemble.follower();
    let near = open(&ensemble.leader().url("app")).await;
    let far = open(&(ensemble.servers[follower].url("app") + "?timeout=5s")).await;
    let (name, first) = (Name::new("x").unwrap(), owner());
    granted(&near, &request("x", &first)).await;
    near.release(&lease("x", &first), Duration::ZERO).await.unwrap();
    ensemble.slow_down(follower, Duration::from_millis(25));
    let held = owner();
    granted(&near, &request("x", &held)).await;
    assert_eq!(far.inspect(Some(&name)).await.unwrap().len(), 1, "a held lock is shown as free");
    near.release(&lease("x", &held), Duration::ZERO).await.unwrap();
    let held = owner();
    granted(&near, &request("x", &held)).await;
    assert_eq!(far.release(&lease("x", &held), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    granted(&near, &request("x", &owner())).await;
    assert_eq!(far.inspect(None).await.unwrap().len(), 1);
}

/// It has its sessions on its disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_outlives_a_crash_of_the_server() {
    let server = Server::start();
    let store = open(&server.url("app")).await;
    let held = owner();
    let first = granted(&store, &request("x", &held)).await.fence;
    server.kill();
    let error = store.inspect(Some(&Name::new("x").unwrap())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    server.restart();
    let kept = async {
        loop {
            match store.renew(&[lease("x", &held)]).await.remove(0) {
                Ok(reply) => break reply,
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
        }
    };
    assert_eq!(timeout(PATIENCE, kept).await.unwrap(), RenewReply::Renewed);
    busy(&store, &request("x", &owner())).await;
    store.release(&lease("x", &held), Duration::ZERO).await.unwrap();
    assert!(granted(&store, &request("x", &owner())).await.fence > first);
}

/// One event for one release, however many wait.
#[tokio::test(flavor = "multi_thread")]
async fn each_waiter_watches_the_one_in_front_of_it_alone() {
    let server = Server::start();
    let store = open(&server.url("app")).await;
    let stays = Enqueue::Join { entry_ttl: PATIENCE, handoff_ttl: PATIENCE };
    let (held, waiting) = (owner(), ["x"; 5].map(|name| joining(name).with_enqueue(stays)));
    granted(&store, &request("x", &held)).await;
    for request in &waiting {
        busy(&store, request).await;
    }
    let watched = || server.four_letters("wchp").lines().filter(|line| line.starts_with('/')).count();
    // A session that connects again, after a silence, watches again somewhat later.
    wait_until(PATIENCE, "each to watch", || watched() == 5);
    // The middle one goes: nobody is served, and the one behind it watches another.
    store.release(&waiting[2].lease(), Duration::ZERO).await.unwrap();
    wait_until(PATIENCE, "the next to watch another", || watched() == 4);
    store.release(&lease("x", &held), Duration::ZERO).await.unwrap();
    for request in [&waiting[0], &waiting[1], &waiting[3], &waiting[4]] {
        while !matches!(store.acquire(request).await.unwrap(), AcquireReply::Granted(_)) {
            tokio::task::yield_now().await;
        }
        store.release(&request.lease(), Duration::ZERO).await.unwrap();
    }
}

/// It is served by a write of the data of a node, which no list of nodes shows.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_a_downgrade_lets_in_has_a_larger_fence() {
    let url = Server::shared().url(&Server::fresh_chroot());
    let (store, other) = (open(&url).await, open(&url).await);
    let (first, second, reader) = (owner(), staying("x").with_share(Share::WRITE), staying("x").with_share(Share::READ));
    granted(&store, &request("x", &first).with_share(Share::WRITE)).await;
    busy(&store, &second).await;
    let mut notices = other.watch(&reader).await.unwrap();
    busy(&other, &reader).await;
    store.release(&lease("x", &first).with_share(Share::WRITE), Duration::ZERO).await.unwrap();
    let written = loop {
        match store.acquire(&second).await.unwrap() {
            AcquireReply::Granted(grant) => break grant.fence,
            _ => tokio::task::yield_now().await,
        }
    };
    granted(&store, &second.with_share(Share::READ).with_enqueue(Enqueue::Heartbeat)).await;
    let notice = timeout(PATIENCE, notices.next()).await.expect("it is not served").unwrap();
    let Notice::Granted { fence, .. } = notice else { panic!("not served: {notice:?}") };
    assert!(Some(fence) > written, "{fence:?} after {written:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_dropped_at_every_poll_leaves_what_a_release_clears() {
    let calls = Calls { polls: 6, until_sent: 1, apart: &CALLS };
    calls.leave_what_a_release_clears(through_proxy).await;
}
