//! Three members: one of them dies, stops, or is cut off.

use std::time::{Duration, Instant};

use tenure::store::{AcquireReply, Grant, RenewReply, Request, Store};
use tenure::{ErrorKind, Fence, Locker};
use tenure_etcd::Options;
use tenure_testkit::{EtcdCluster, Program, Proxy, Signal, Worker, wait_until};
use tokio::time::timeout;

use crate::requests::{granted, lease, owner, request};
use crate::{PATIENCE, open};

/// Renews until it is renewed.
async fn renewed(store: &dyn Store, lease: &tenure::Lease) {
    let renewed = async {
        loop {
            match store.renew(std::slice::from_ref(lease)).await.remove(0) {
                Ok(reply) => return assert_eq!(reply, RenewReply::Renewed),
                Err(error) => assert!(error.is_transient(), "{error:?}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, renewed).await.expect("it does not find the way back");
}

/// Asks until it is granted: on a busy machine the leader may change by itself.
async fn taken(store: &dyn Store, request: &Request) -> Grant {
    let taken = async {
        loop {
            match store.acquire(request).await {
                Ok(AcquireReply::Granted(grant)) => return grant,
                Ok(busy) => panic!("not granted: {busy:?}"),
                Err(error) => assert!(error.is_transient(), "{error:?}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, taken).await.expect("it does not find a leader")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_survives_its_leader() {
    let etcd = EtcdCluster::of(3).start();
    let (store, held) = (open(&etcd.url("a/")).await, owner());
    let before = taken(&*store, &request("x", &held)).await.fence;
    let locks = Locker::new(open(&etcd.url("a/")).await);
    let waits = tokio::spawn(locks.mutex("x").acquire());
    let leader = etcd.leader();
    etcd.kill(leader);
    renewed(&store, &lease("x", &held)).await;
    assert!(!waits.is_finished(), "it was granted beside the holder");
    let released = async { while store.release(&lease("x", &held), Duration::ZERO).await.is_err() {} };
    timeout(PATIENCE, released).await.expect("it cannot release");
    let guard = timeout(PATIENCE, waits).await.expect("the waiter was forgotten").unwrap().unwrap();
    assert!(guard.fence() > before, "{:?} after {before:?}", guard.fence());
    etcd.restart(leader);
    drop(guard);
}

/// The member in use stops: another one answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_member_is_left() {
    let etcd = EtcdCluster::of(3).start();
    let (store, held) = (open(&etcd.url("a/")).await, owner());
    taken(&*store, &request("x", &held)).await;
    etcd.stop(0);
    renewed(&store, &lease("x", &held)).await;
    taken(&*store, &request("y", &owner())).await;
    etcd.cont(0);
}

/// A new process is not held up by the first member of the URL: one that stands still, or is no etcd.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_member_that_does_not_answer_stops_no_new_process() {
    let etcd = EtcdCluster::of(3).start();
    etcd.stop(0);
    let (store, held) = (open(&etcd.url("a/")).await, owner());
    taken(&*store, &request("x", &held)).await;
    etcd.cont(0);
    let other = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("etcd://{},{}?prefix=a/", other.local_addr().unwrap(), etcd.addr(1));
    tokio::spawn(async move {
        while let Ok((client, _)) = other.accept().await {
            client.try_write(b"HTTP/1.1 400 Bad Request\r\n\r\n").ok();
        }
    });
    renewed(&open(&url).await, &lease("x", &held)).await;
}

/// It refuses each request, and a client that came to it stayed there.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_learns_is_left() {
    let etcd = EtcdCluster::of(1).start();
    let learner = etcd.add_learner();
    let proxy = Proxy::start_opaque(etcd.addr(0));
    let store = open(&format!("etcd://{},{},{}?prefix=a/", proxy.addr(), learner.addr(), etcd.addr(0))).await;
    let held = owner();
    granted(&store, &request("x", &held)).await;
    proxy.refuse();
    proxy.cut();
    renewed(&store, &lease("x", &held)).await;
}

/// Hosts of two clusters have two locks of each name.
#[tokio::test(flavor = "multi_thread")]
async fn two_clusters_in_one_url_are_refused() {
    let (one, two) = (EtcdCluster::shared(), EtcdCluster::of(1).start());
    for (first, second) in [(one.addr(0), two.addr(0)), (two.addr(0), one.addr(0))] {
        let refused = async {
            loop {
                let began = Instant::now();
                match Options::parse(&format!("etcd://{first},{second}")).unwrap().open().await {
                    // It waits so long for the others, and one may be slow to say of which cluster it is.
                    Ok(_) if began.elapsed() >= Duration::from_millis(100) => {}
                    opened => return opened.map(drop).unwrap_err(),
                }
            }
        };
        let error = timeout(PATIENCE, refused).await.expect("it serves two clusters");
        assert!(error.kind() == ErrorKind::Refused && error.to_string().contains("another cluster"), "{error:?}");
    }
    // One of them was silent at first. Its answers do not count later.
    let proxy = Proxy::start_opaque(one.addr(0));
    let silent = Proxy::start_opaque(two.addr(0));
    silent.black_hole();
    let url = format!("etcd://{},{}?timeout=300ms", proxy.addr(), silent.addr());
    let store = open(&url).await;
    silent.heal();
    proxy.refuse();
    proxy.cut();
    let refused = async {
        loop {
            let error = store.acquire(&request("x", &owner())).await.unwrap_err();
            if error.kind() == ErrorKind::Refused {
                return error;
            }
        }
    };
    let error = timeout(PATIENCE, refused).await.expect("it serves two clusters");
    assert!(error.to_string().contains("another cluster"), "{error:?}");
}

/// A follower asks the leader for one lease after another, for each stream of renewals.
#[tokio::test(flavor = "multi_thread")]
async fn many_leases_at_a_follower_far_from_the_leader_are_renewed() {
    let etcd = EtcdCluster::of(3).links().start();
    let leader = etcd.leader();
    let store = open(&(EtcdCluster::url_at(etcd.addr((leader + 1) % 3), "a/") + "&timeout=3s")).await;
    let (held, names) = (owner(), (0..120).map(|at| format!("n{at}")).collect::<Vec<_>>());
    for names in names.chunks(40) {
        let all: Vec<_> = names.iter().map(|name| request(name, &held)).collect();
        assert!(store.acquire_all(&all).await.unwrap().is_some());
    }
    etcd.link(leader).delay(Duration::from_millis(30));
    let leases: Vec<_> = names.iter().map(|name| lease(name, &held)).collect();
    for (at, reply) in store.renew(&leases).await.into_iter().enumerate() {
        assert_eq!(reply.unwrap(), RenewReply::Renewed, "lease {at}");
    }
}

/// A lease without a key was renewed by a leader, and the next one takes the key. The former may have been
/// deposed by then, so its renewal does not count.
#[tokio::test(flavor = "multi_thread")]
async fn a_kept_lease_does_not_count_under_the_next_leader() {
    let etcd = EtcdCluster::of(3).links().start();
    let leader = etcd.leader();
    let proxy = Proxy::start_opaque(etcd.addr((leader + 1) % 3));
    let store = open(&(EtcdCluster::url_at(proxy.addr(), "a/") + "&timeout=20s")).await;
    let held = owner();
    taken(&*store, &request("x", &held)).await;
    let leased = || etcd.ctl(&["lease", "list"]).lines().nth(1).unwrap().to_owned();
    let kept = leased();
    store.release(&lease("x", &held), Duration::ZERO).await.unwrap();
    assert_eq!(leased(), kept, "the lease is kept");
    // It is renewed slowly, so that the write behind it can be held back.
    etcd.link(leader).delay(Duration::from_millis(200));
    let mut rounds = 0;
    let asks = loop {
        rounds += 1;
        assert!(rounds <= 10, "it is never held back");
        let asking = request("x", &owner());
        let asks = tokio::spawn({
            let (store, asking) = (store.clone(), asking.clone());
            async move { granted(&*store, &asking).await }
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        proxy.hold_present_requests();
        tokio::time::sleep(Duration::from_millis(700)).await;
        if !asks.is_finished() {
            break asks;
        }
        // It was held back too late.
        proxy.release_requests();
        store.release(&asking.lease(), Duration::ZERO).await.unwrap();
    };
    etcd.kill(leader);
    etcd.leader();
    proxy.release_requests();
    let grant = timeout(PATIENCE, asks).await.expect("it is not granted").unwrap();
    assert_eq!(store.inspect(None).await.unwrap()[0].holders[0].fence, grant.fence);
    // It would be kept for the ttl.
    let kept_on = || etcd.ctl(&["lease", "list"]).contains(kept.trim());
    wait_until(PATIENCE, "the lease of the earlier term to end", || !kept_on());
}

/// A member that its clients cannot reach, and the others can.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_out_of_reach_is_left() {
    let etcd = EtcdCluster::of(3).start();
    let proxy = Proxy::start_opaque(etcd.addr(0));
    let url = format!("etcd://{},{}?prefix=a/", proxy.addr(), etcd.addr(1));
    let (store, held) = (open(&url).await, owner());
    taken(&*store, &request("x", &held)).await;
    proxy.black_hole();
    renewed(&store, &lease("x", &held)).await;
    proxy.heal();
}

/// Without a majority nothing is granted and nothing is renewed, and no lease ends before its ttl when it is
/// back.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_nothing_is_granted() {
    let etcd = EtcdCluster::of(3).start();
    let (store, held) = (open(&(etcd.url("a/") + "&timeout=500ms")).await, owner());
    taken(&*store, &request("x", &held)).await;
    etcd.stop(1);
    etcd.stop(2);
    for _ in 0..3 {
        let error = store.acquire(&request("y", &owner())).await.unwrap_err();
        assert!(error.is_transient(), "{error:?}");
        assert!(store.renew(&[lease("x", &held)]).await.remove(0).unwrap_err().is_transient());
    }
    etcd.cont(1);
    etcd.cont(2);
    renewed(&store, &lease("x", &held)).await;
}

/// A holder that stands still is overtaken. It knows, and the later holder's fence is larger.
#[test]
fn a_holder_that_stands_still_has_the_smaller_fence() {
    let etcd = EtcdCluster::of(3).start();
    let url = etcd.url("a/");
    let start = || Worker::start(Program::this_test().on(&url));
    let (mut first, mut second) = (start(), start());
    let before: Option<Fence> = first.acquire("x", Duration::from_secs(2));
    first.signal(Signal::Stop);
    let after = second.acquire("x", Duration::from_secs(10));
    assert!(before.is_some() && after > before, "{after:?} after {before:?}");
    first.signal(Signal::Cont);
    let deadline = Instant::now() + PATIENCE;
    while first.state() != "Lost" {
        assert!(Instant::now() < deadline, "it does not know: {}", first.state());
        std::thread::sleep(Duration::from_millis(10));
    }
    second.release();
}

/// A leader stops for longer than the leases last, and goes on. What it thinks has ended was renewed elsewhere.
///
/// It asks for 16 revocations at a time. Those first ones go under with its term, and it waits 5.6 s for them.
/// Then it asks for others, as a follower whose wishes reach the leader.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_goes_on_ends_no_lease_that_was_renewed_elsewhere() {
    const TTL: Duration = Duration::from_secs(6);
    const MANY: u32 = 24;
    let etcd = EtcdCluster::of(3).election(Duration::from_millis(300)).start();
    let holders = Locker::new(open(&etcd.url("a/")).await);
    let others = Locker::new(open(&etcd.url("a/")).await);
    for round in 0..2 {
        let name = |at: u32| format!("{round}.{at}");
        let mut held = Vec::new();
        for at in 0..MANY {
            held.push(holders.mutex(name(at)).ttl(TTL).acquire().await.unwrap());
        }
        let waits: Vec<_> = (0..2).map(|_| tokio::spawn(others.mutex(name(0)).ttl(TTL).acquire())).collect();
        let leader = etcd.leader();
        etcd.stop(leader);
        tokio::time::sleep(2 * TTL).await;
        etcd.cont(leader);
        tokio::time::sleep(Duration::from_secs(8)).await;
        assert!(waits.iter().all(|waits| !waits.is_finished()), "round {round}: another holds as well");
        for (at, guard) in held.iter().enumerate() {
            let verified = async {
                loop {
                    match guard.verify().await {
                        Err(error) if error.is_transient() => tokio::time::sleep(Duration::from_millis(20)).await,
                        verified => return verified,
                    }
                }
            };
            let verified = timeout(PATIENCE, verified).await.expect("nobody answers");
            assert!(verified.is_ok(), "round {round}: lease {at} is gone: {verified:?}");
        }
        held.clear();
        // Both have kept their place, or have another.
        let served = waits.into_iter().map(async |waits| drop(waits.await.unwrap().unwrap()));
        timeout(PATIENCE, futures_util::future::join_all(served)).await.expect("a waiter was forgotten");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_survive_the_death_of_all_members() {
    let etcd = EtcdCluster::of(3).start();
    let (store, held) = (open(&etcd.url("a/")).await, owner());
    let before = taken(&*store, &request("x", &held)).await.fence;
    etcd.restart_all();
    renewed(&store, &lease("x", &held)).await;
    let reply = store.acquire(&request("x", &owner())).await.unwrap();
    assert!(matches!(reply, AcquireReply::Busy(_)), "{reply:?}");
    assert!(taken(&*store, &request("y", &owner())).await.fence > before);
}

/// A leader that the others cannot hear any more. Its clients reach it, and the others as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_its_members_grants_and_renews_nothing() {
    let etcd = EtcdCluster::of(3).links().start();
    let leader = etcd.leader();
    let at_leader = open(&(EtcdCluster::url_at(etcd.addr(leader), "a/") + "&timeout=500ms")).await;
    let (store, held) = (open(&etcd.url("a/")).await, owner());
    let before = taken(&*store, &request("x", &held)).await.fence;
    etcd.link(leader).black_hole();
    let error = timeout(PATIENCE, async {
        loop {
            if let Err(error) = at_leader.renew(&[lease("x", &held)]).await.remove(0) {
                return error;
            }
        }
    });
    assert!(error.await.expect("it renews what it cannot promise").is_transient());
    renewed(&store, &lease("x", &held)).await;
    let again = async {
        loop {
            if let Ok(AcquireReply::Granted(grant)) = store.acquire(&request("y", &owner())).await {
                return grant.fence;
            }
        }
    };
    assert!(timeout(PATIENCE, again).await.expect("the others grant nothing") > before);
    etcd.link(leader).heal();
    renewed(&at_leader, &lease("x", &held)).await;
}

/// The others have died, and one alone elects nobody. It gives up after 7 s.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_without_a_leader_says_so() {
    let etcd = EtcdCluster::of(3).start();
    let store = open(&(EtcdCluster::url_at(etcd.addr(0), "a/") + "&timeout=15s")).await;
    let held = owner();
    taken(&*store, &request("x", &held)).await;
    etcd.kill(1);
    etcd.kill(2);
    let told = async {
        loop {
            let error = store.renew(&[lease("x", &held)]).await.remove(0).err();
            if let Some(error) = error.filter(|error| error.to_string().contains("says: request timed out")) {
                return error;
            }
        }
    };
    let error = timeout(2 * PATIENCE, told).await.expect("it never says so");
    assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Unreachable, true), "{error:?}");
}

/// It keeps every lease for one and a half of its election timeouts.
#[tokio::test(flavor = "multi_thread")]
async fn leases_end_later_with_a_longer_election_timeout() {
    let etcd = EtcdCluster::of(1).election(Duration::from_secs(5)).start();
    let store = open(&etcd.url("a/")).await;
    assert!(store.features().late_end >= Duration::from_millis(1_500), "{:?}", store.features().late_end);
    let brief = request("x", &owner()).with_ttl(Duration::from_secs(1));
    granted(&*store, &brief).await;
    let id = etcd.ctl(&["lease", "list"]).lines().nth(1).unwrap().to_owned();
    let said = etcd.ctl(&["lease", "timetolive", id.trim()]);
    let kept = said.split_once("TTL(").and_then(|(_, rest)| rest.split_once('s')?.0.parse().ok());
    let kept: u64 = kept.unwrap_or_else(|| panic!("{said}"));
    assert!(kept > 2, "it is granted for {kept} s, so nothing is tested");
    let late = Duration::from_secs(kept - brief.ttl.as_secs());
    assert!(store.features().late_end >= late, "{:?} for {late:?}", store.features().late_end);
}
