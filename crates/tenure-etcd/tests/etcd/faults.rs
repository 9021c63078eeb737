//! Answers that are lost, commands that come late, a history that is compacted, a server that stops.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use futures_util::StreamExt as _;
use tenure::store::{AcquireReply, Enqueue, Notice, ReleaseReply, RenewReply, Store};
use tenure::{ErrorKind, Locker, Share};
use tenure_testkit::{EtcdCluster, Proxy, wait_until};
use tokio::time::timeout;

use crate::dropped::Calls;
use crate::requests::{busy, granted, joining, lease, owner, request};
use crate::{PATIENCE, behind_proxy, behind_proxy_with, open};

#[tokio::test]
async fn a_call_whose_answer_is_lost_may_be_made_again() {
    let (proxy, store, other) = behind_proxy_with("&timeout=1s").await;
    let held = owner();
    // The lease, and the key.
    for _ in 0..3 {
        proxy.hold_replies();
        let error = store.acquire(&request("x", &held)).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Unreachable && error.may_have_been_applied(), "{error:?}");
        proxy.cut();
        proxy.heal();
    }
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

/// Each of the messages to the server is held back in turn, until its owner has been released. It then takes
/// nothing.
#[tokio::test]
async fn a_command_that_comes_after_the_release_takes_nothing() {
    for spared in 0..4 {
        for joins in [false, true] {
            let (proxy, store, other) = behind_proxy_with("&timeout=1s").await;
            let late = if joins { joining("x") } else { request("x", &owner()) };
            let first = proxy.commands();
            let acquire = tokio::spawn({
                let (store, late) = (store.clone(), late.clone());
                async move { store.acquire(&late).await }
            });
            // So many messages go through; not every call has as many.
            timeout(Duration::from_millis(300), proxy.reached(first + spared)).await.ok();
            proxy.hold_present_requests();
            let answer = acquire.await.unwrap();
            // The first try may be held back as well.
            while store.release(&late.lease(), Duration::ZERO).await.is_err() {}
            proxy.release_requests();
            // The requests that were held back arrive before this is answered.
            granted(&store, &request("y", &owner())).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
            let left = other.inspect(Some(&late.name)).await.unwrap();
            assert!(left.is_empty(), "{left:?} is left of a command that came late: {answer:?}");
        }
    }
}

/// The waiter then finds the name taken, and asks with another token. The command of the first token still takes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_comes_after_the_wait_takes_nothing() {
    let mut held_back = 0;
    for spared in 0..4 {
        let (proxy, store, other) = behind_proxy_with("&timeout=1s").await;
        let locks = Locker::new(store.clone());
        let first = proxy.commands();
        let waiting = tokio::spawn(locks.mutex("x").ttl(Duration::from_secs(30)).acquire());
        timeout(Duration::from_millis(300), proxy.reached(first + spared)).await.ok();
        proxy.hold_present_requests();
        let theirs = request("x", &owner());
        if !matches!(other.acquire(&theirs).await.unwrap(), AcquireReply::Granted(_)) {
            // It had gone through.
            proxy.heal();
            waiting.await.unwrap().unwrap().release().await.unwrap();
            continue;
        }
        held_back += 1;
        let queued = async { while other.inspect(Some(&theirs.name)).await.unwrap()[0].waiters.is_empty() {} };
        timeout(PATIENCE, queued).await.expect("it does not ask again");
        waiting.abort();
        locks.flush_releases().await;
        other.release(&theirs.lease(), Duration::ZERO).await.unwrap();
        proxy.release_requests();
        // The requests that were held back arrive before this is answered.
        granted(&store, &request("y", &owner())).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        let left = other.inspect(Some(&theirs.name)).await.unwrap();
        assert!(left.is_empty(), "{left:?} is left of a command that came late, after {spared} messages");
    }
    assert!(held_back > 0, "nothing was held back");
}

/// The watch begins at a revision that is gone. The waiter asks again, and has the name.
#[tokio::test(flavor = "multi_thread")]
async fn a_compacted_history_forgets_no_waiter() {
    let etcd = EtcdCluster::of(1).start();
    let (store, held) = (open(&etcd.url("a/")).await, owner());
    granted(&store, &request("x", &held)).await;
    let waiting = joining("x");
    assert_eq!(busy(&store, &waiting).await.position, Some(0));
    // Before the stream is read, so its start is gone.
    etcd.ctl(&["put", "other", "1"]);
    etcd.ctl(&["put", "other", "2"]);
    let revision = granted(&store, &request("y", &owner())).await.fence.unwrap().counter();
    etcd.ctl(&["compact", &revision.to_string()]);
    let mut notices = store.watch(&waiting).await.unwrap();
    let notice = timeout(PATIENCE, notices.next()).await.expect("it is silent").unwrap();
    assert_eq!(notice, Notice::Changed);
    let locks = Locker::new(open(&etcd.url("a/")).await);
    let guard = tokio::spawn(locks.mutex("x").acquire());
    store.release(&waiting.lease(), Duration::ZERO).await.unwrap();
    etcd.ctl(&["compact", &(revision + 1).to_string()]);
    store.release(&lease("x", &held), Duration::ZERO).await.unwrap();
    drop(timeout(PATIENCE, guard).await.expect("the waiter was forgotten").unwrap().unwrap());
}

/// A mutex is handed over by the event itself: its fence is the revision of the deletion.
#[tokio::test]
async fn a_hand_over_needs_no_question() {
    let (proxy, store, other) = behind_proxy().await;
    let (held, waiting) = (owner(), joining("x"));
    granted(&other, &request("x", &held)).await;
    busy(&store, &waiting).await;
    let mut notices = store.watch(&waiting).await.unwrap();
    // The watch has begun when a heartbeat behind it is answered.
    let watching = tokio::spawn(async move { (notices.next().await, notices) });
    busy(&store, &waiting.clone().with_enqueue(Enqueue::Heartbeat)).await;
    let mut asked = 0;
    let rests = async {
        while asked != proxy.commands() {
            asked = proxy.commands();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(PATIENCE, rests).await.expect("it asks all the time");
    other.release(&lease("x", &held), Duration::ZERO).await.unwrap();
    let (notice, _notices) = timeout(PATIENCE, watching).await.expect("nobody told the waiter").unwrap();
    assert!(matches!(notice, Some(Notice::Granted { ref owner, .. }) if *owner == waiting.owner), "{notice:?}");
    // An acknowledgement of HTTP/2 may go out.
    assert!(proxy.commands() <= asked + 1, "{} messages for one hand-over", proxy.commands() - asked);
    assert_eq!(store.renew(&[waiting.lease()]).await.remove(0).unwrap(), RenewReply::Renewed);
}

/// A reader that waits behind another reader is notified as well.
#[tokio::test]
async fn readers_behind_a_writer_are_notified_together() {
    let etcd = EtcdCluster::shared();
    let store = open(&etcd.url(&EtcdCluster::fresh_prefix())).await;
    let writer = request("x", &owner()).with_share(Share::WRITE);
    granted(&store, &writer).await;
    let readers = [joining("x").with_share(Share::READ), joining("x").with_share(Share::READ)];
    let mut notices = Vec::new();
    for reader in &readers {
        busy(&store, reader).await;
        notices.push(store.watch(reader).await.unwrap());
    }
    let both = async {
        let [first, second] = &mut notices[..] else { unreachable!("there are two") };
        tokio::join!(first.next(), second.next())
    };
    let release = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        store.release(&writer.lease(), Duration::ZERO).await.unwrap()
    };
    let ((first, second), _) = timeout(PATIENCE, async { tokio::join!(both, release) }).await.expect("one was forgotten");
    for (notice, reader) in [first, second].into_iter().zip(&readers) {
        assert!(matches!(notice, Some(Notice::Granted { ref owner, .. }) if *owner == reader.owner), "{notice:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_survive_a_crash_of_the_server() {
    let etcd = EtcdCluster::of(1).start();
    let store = open(&(etcd.url("a/") + "&timeout=3s")).await;
    let (held, waits) = (owner(), joining("x"));
    let before = granted(&store, &request("x", &held)).await.fence.unwrap();
    etcd.kill(0);
    let error = store.inspect(None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error:?}");
    etcd.restart(0);
    assert_eq!(store.renew(&[lease("x", &held)]).await.remove(0).unwrap(), RenewReply::Renewed);
    assert_eq!(busy(&store, &waits).await.position, Some(0));
    assert_eq!(store.release(&lease("x", &held), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    assert!(granted(&store, &waits).await.fence.unwrap() > before);
}

/// A stopped server is reported within the timeout, and the lease is there when it goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_server_is_waited_for_no_longer_than_the_timeout() {
    let etcd = EtcdCluster::of(1).start();
    let store = open(&(etcd.url("a/") + "&timeout=300ms")).await;
    let held = owner();
    granted(&store, &request("x", &held)).await;
    etcd.stop(0);
    for _ in 0..2 {
        let began = std::time::Instant::now();
        let error = store.renew(&[lease("x", &held)]).await.remove(0).unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(1), "took {:?}", began.elapsed());
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error:?}");
    }
    etcd.cont(0);
    let renewed = async { while store.renew(&[lease("x", &held)]).await.remove(0).ok() != Some(RenewReply::Renewed) {} };
    timeout(PATIENCE, renewed).await.expect("it does not find the way back");
}

/// The connection dies under a wait. The waiter keeps its place, and is served.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_survives_its_connection() {
    let (etcd, prefix) = (EtcdCluster::shared(), EtcdCluster::fresh_prefix());
    let proxy = Proxy::start_opaque(etcd.addr(0));
    let other = open(&etcd.url(&prefix)).await;
    let held = owner();
    granted(&other, &request("x", &held)).await;
    let locks = Locker::new(open(&EtcdCluster::url_at(proxy.addr(), &prefix)).await);
    let waits = tokio::spawn(locks.mutex("x").acquire());
    let waiters = async || other.inspect(None).await.unwrap().pop().map_or(0, |entry| entry.waiters.len());
    while waiters().await == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // A place that was made anew would be behind this one.
    let second = joining("x");
    busy(&*other, &second).await;
    proxy.cut();
    other.release(&lease("x", &held), Duration::ZERO).await.unwrap();
    let guard = timeout(PATIENCE, waits).await.expect("it was forgotten").unwrap().unwrap();
    assert_eq!(busy(&*other, &second.with_enqueue(Enqueue::Heartbeat)).await.position, Some(0));
    drop(guard);
}

/// The session of another client has one lease for all of its keys.
#[tokio::test]
async fn a_foreign_key_goes_alone_and_its_session_stays() {
    let (etcd, prefix) = (EtcdCluster::shared(), EtcdCluster::fresh_prefix());
    let store = open(&etcd.url(&prefix)).await;
    let session = etcd.ctl(&["lease", "grant", "60"]).split_whitespace().nth(1).unwrap().to_owned();
    let key = |name: &str| format!("{prefix}{name}/{session}");
    let names = ["stays", "released", "adopted"];
    for name in names {
        etcd.ctl(&["put", &format!("--lease={session}"), &key(name), ""]);
    }
    let foreign = |name: &str| tenure::Owner::from_bytes(key(name).into_bytes());
    let released = store.release(&lease("released", &foreign("released")), Duration::ZERO).await.unwrap();
    assert_eq!(released, ReleaseReply::Released);
    let adopting = request("adopted", &owner()).with_from(Some(foreign("adopted")));
    granted(&store, &adopting).await;
    store.release(&adopting.lease(), Duration::ZERO).await.unwrap();
    // A revocation in the background has time to run.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(etcd.ctl(&["lease", "timetolive", &session]).contains("granted"), "the session was ended");
    assert!(!etcd.ctl(&["get", &key("stays")]).is_empty(), "another lock of the session was freed");
    assert!(etcd.ctl(&["get", &key("released")]).is_empty());
}

/// The long lease of a shortest hold runs down. A renewal does not make it long again.
#[tokio::test]
async fn renewals_let_a_long_first_lease_run_down() {
    let (etcd, prefix) = (EtcdCluster::shared(), EtcdCluster::fresh_prefix());
    let store = open(&etcd.url(&prefix)).await;
    let (held, short) = (owner(), Duration::from_secs(3));
    let long = request("x", &held).with_ttl(Duration::from_secs(7));
    let before = granted(&store, &long).await.fence;
    let renewing = lease("x", &held).with_ttl(short);
    let left = async || store.inspect(Some(&long.name)).await.unwrap()[0].holders[0].ttl.unwrap();
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_secs(8) {
        let asked = std::time::Instant::now();
        assert_eq!(store.renew(std::slice::from_ref(&renewing)).await.remove(0).unwrap(), RenewReply::Renewed);
        // It never has less than was asked for: the answer is rounded up.
        let left = left().await;
        assert!(left + asked.elapsed() >= short, "{left:?} are left");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert!(left().await <= short, "a crash would leave the name taken for {:?}", left().await);
    let entry = store.inspect(Some(&long.name)).await.unwrap();
    assert!(entry[0].holders[0].fence >= before, "{entry:?} after {before:?}");
}

/// A waiter whose connection falls silent has another watch after its next heartbeat.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_is_not_left_on_a_dead_watch() {
    let (etcd, prefix) = (EtcdCluster::shared(), EtcdCluster::fresh_prefix());
    let proxy = Proxy::start_opaque(etcd.addr(0));
    let url = format!("etcd://{},{}?prefix={prefix}&timeout=300ms", proxy.addr(), etcd.addr(0));
    let (store, other) = (open(&url).await, open(&etcd.url(&prefix)).await);
    let (held, waiting) = (owner(), joining("x"));
    granted(&other, &request("x", &held)).await;
    busy(&store, &waiting).await;
    let mut notices = store.watch(&waiting).await.unwrap();
    let watching = tokio::spawn(async move { notices.next().await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    proxy.black_hole();
    let beat = waiting.clone().with_enqueue(Enqueue::Heartbeat);
    let heard = async { while store.acquire(&beat).await.is_err() {} };
    timeout(PATIENCE, heard).await.expect("it does not find the other way");
    // The watch begins.
    tokio::time::sleep(Duration::from_millis(200)).await;
    other.release(&lease("x", &held), Duration::ZERO).await.unwrap();
    // A dead watch ends by itself, with another notice.
    let notice = timeout(PATIENCE, watching).await.expect("it watches a dead connection").unwrap();
    assert!(matches!(notice, Some(Notice::Granted { .. })), "{notice:?}");
}

/// The watches that a member has.
fn watches(etcd: &EtcdCluster) -> u64 {
    let (mut connection, mut text) = (TcpStream::connect(etcd.addr(0)).unwrap(), String::new());
    connection.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    connection.read_to_string(&mut text).unwrap();
    let number = text.lines().find_map(|line| line.strip_prefix("etcd_debugging_mvcc_watcher_total "));
    number.expect("it counts them").parse().unwrap()
}

/// A watch on a connection that falls silent ends by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_connection_ends_its_watches() {
    // A member of its own, so that no other watch is there.
    let etcd = EtcdCluster::of(1).start();
    let proxy = Proxy::start_opaque(etcd.addr(0));
    let store = open(&(EtcdCluster::url_at(proxy.addr(), "a/") + "&timeout=10s")).await;
    let (held, waiting) = (owner(), joining("x"));
    granted(&open(&etcd.url("a/")).await, &request("x", &held)).await;
    busy(&store, &waiting).await;
    let mut notices = store.watch(&waiting).await.unwrap();
    let watching = tokio::spawn(async move { notices.next().await });
    wait_until(PATIENCE, "the watch", || watches(&etcd) == 1);
    // What says that it was made comes before this answer.
    busy(&store, &waiting.with_enqueue(Enqueue::Heartbeat)).await;
    proxy.black_hole();
    let notice = timeout(Duration::from_secs(12), watching).await.expect("it watches a dead connection").unwrap();
    assert_eq!(notice, Some(Notice::Changed));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_database_grants_nothing_and_says_so() {
    let etcd = EtcdCluster::of(1).quota(4 << 20).start();
    // It takes a while to fill it.
    let kept = Duration::from_secs(600);
    let (store, held) = (open(&(etcd.url("a/") + "&timeout=10s")).await, owner());
    let lease = |name| lease(name, &held).with_ttl(kept);
    granted(&store, &request("x", &held).with_ttl(kept)).await;
    granted(&store, &request("z", &held).with_ttl(kept)).await;
    let filler = "x".repeat(120_000);
    let fills = || etcd.etcdctl().args(["put", &format!("filler{}", owner()), &filler]).output().unwrap();
    while fills().status.success() {}
    let error = store.acquire(&request("y", &owner())).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("alarm disarm"), "{error:?}");
    // The write that filled the database has the same answer, and was applied.
    assert!(error.may_have_been_applied(), "{error:?}");
    // Leases are renewed, and names are released: neither needs room.
    assert_eq!(store.renew(&[lease("x")]).await.remove(0).unwrap(), RenewReply::Renewed);
    assert_eq!(store.release(&lease("x"), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    // A name that is to stay taken stays so by the lease that it has.
    assert_eq!(store.release(&lease("z"), Duration::from_secs(5)).await.unwrap(), ReleaseReply::Released);
    assert_eq!(store.inspect(None).await.unwrap().len(), 1);
    // It cannot stay for longer than that lease.
    let longer = store.release(&lease("z"), 2 * kept).await.unwrap_err();
    assert_eq!(longer.kind(), ErrorKind::Unavailable, "{longer:?}");
}

/// A connection ends with its runtime, so each has its own, and keeps it.
#[test]
fn two_runtimes_have_two_connections() {
    let proxy = Proxy::start_opaque(EtcdCluster::shared().addr(0));
    let runtimes = [(); 2].map(|()| tokio::runtime::Runtime::new().unwrap());
    let store = runtimes[0].block_on(open(&(EtcdCluster::url_at(proxy.addr(), &EtcdCluster::fresh_prefix()) + "&timeout=10s")));
    for _ in 0..5 {
        for runtime in &runtimes {
            assert!(runtime.block_on(store.inspect(None)).unwrap().is_empty());
        }
    }
    assert_eq!(proxy.accepted(), 2);
}

/// A documented hole: revisions fall back, and fences with them.
#[tokio::test(flavor = "multi_thread")]
async fn a_restored_backup_sets_fences_back() {
    let etcd = EtcdCluster::of(1).start();
    let store = open(&(etcd.url("a/") + "&timeout=3s")).await;
    etcd.save("old");
    let held = owner();
    let mut before = None;
    for name in ["w", "x", "y"] {
        before = granted(&store, &request(name, &held)).await.fence;
    }
    etcd.restore("old");
    let error = store.inspect(None).await;
    assert!(error.is_err() || error.is_ok_and(|entries| entries.is_empty()));
    assert_eq!(store.renew(&[lease("y", &held)]).await.remove(0).unwrap(), RenewReply::Gone);
    let after = granted(&store, &request("y", &owner())).await.fence;
    assert!(after.is_some() && after < before, "{after:?} after {before:?}");
}

#[tokio::test]
async fn a_name_that_is_taken_is_not_granted_to_a_try() {
    let (etcd, prefix) = (EtcdCluster::shared(), EtcdCluster::fresh_prefix());
    let (store, other) = (open(&etcd.url(&prefix)).await, open(&etcd.url(&prefix)).await);
    granted(&store, &request("x", &owner())).await;
    for _ in 0..3 {
        busy(&other, &request("x", &owner())).await;
    }
    assert_eq!(other.inspect(None).await.unwrap().len(), 1);
}

#[tokio::test]
async fn every_call_dropped_at_every_poll_leaves_what_a_release_clears() {
    let calls = Calls { polls: 10, until_sent: 10, apart: &[] };
    calls.leave_what_a_release_clears(crate::behind_proxy).await;
}
