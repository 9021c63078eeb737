//! Locks of Redisson in a cluster: slots that move under them, and the channels of their slots.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::store::{AcquireReply, Enqueue, ReleaseReply, RenewReply, Request, Store};
use tenure::{Error, ErrorKind, Locker, Name, Owner, Share};
use tenure_redis::Options;
use tenure_testkit::{RedisCluster, wait_until};
use tokio::time::{Instant, timeout};

use crate::cluster::{Lent, slot_of};
use crate::{LONG, PATIENCE};

async fn store(cluster: &RedisCluster, parameters: &str) -> Arc<dyn Store> {
    Options::parse(&format!("{}?{parameters}", cluster.url())).unwrap().open().await.unwrap()
}

fn asks(name: &str, share: Share) -> Request {
    Request::new(Name::new(name).unwrap(), Owner::generate("cluster").unwrap(), share, LONG)
}

async fn fence_of(store: &dyn Store, request: &Request) -> u64 {
    match store.acquire(request).await.unwrap() {
        AcquireReply::Granted(grant) => grant.fence.unwrap().get(),
        other => panic!("{other:?}"),
    }
}

/// Whether it was granted. A refusal because the slot moves says that nothing was done.
async fn is_granted(store: &dyn Store, request: &Request) -> bool {
    let answer = store.acquire(request).await;
    if answer.as_ref().is_err_and(|error| error.is_transient() && !error.may_have_been_applied()) {
        return false;
    }
    matches!(answer.unwrap(), AcquireReply::Granted(_))
}

/// Each subset of the keys of a name is moved before the rest. Whatever is where, nobody else gets in and no lease is lost.
async fn holds_in_every_state_of_a_move(scheme: &str, share: Share, others: &[Share]) {
    let cluster = Lent::of(2);
    // What cannot be done half way is refused when its time is up.
    let parameters = format!("scheme={scheme}&timeout=150ms");
    let (ours, theirs) = (store(&cluster, &parameters).await, store(&cluster, &parameters).await);
    let (slot, handle) = (slot_of(&cluster, b"door"), tokio::runtime::Handle::current());
    let mut mover = cluster.mover();
    for which in 0_u32.. {
        let from = cluster.serving(slot).unwrap();
        let held = asks("door", share);
        let first = fence_of(&*ours, &held).await;
        let waits = asks("door", share).with_enqueue(Enqueue::Join { entry_ttl: LONG, handoff_ttl: LONG });
        if scheme == "redisson-fair" {
            assert!(!is_granted(&*theirs, &waits).await);
        }
        let half_way = async || {
            for share in others {
                let next = asks("door", *share);
                assert!(!is_granted(&*theirs, &next).await, "{share:?} beside {:?}, {which:b}", held.share);
                // It was not done, and not begun.
                let released = theirs.release(&next.lease(), Duration::ZERO).await;
                assert!(!matches!(released, Ok(ReleaseReply::Released)), "{share:?}, {which:b}");
            }
            let renewed = ours.renew(&[held.lease()]).await.remove(0);
            // A reader has two keys.
            if share == Share::READ && renewed.as_ref().is_err_and(Error::is_transient) {
                return;
            }
            assert_eq!(renewed.unwrap(), RenewReply::Renewed, "{which:b}");
            // A lock that says all in one key is shown. Of the others it is said that they move.
            for shown in [ours.inspect(Some(&held.name)).await, ours.inspect(None).await] {
                let may_be_refused = ![Share::MUTEX, Share::WRITE].contains(&share);
                if may_be_refused && shown.as_ref().is_err_and(Error::is_transient) {
                    continue;
                }
                let entries = shown.unwrap();
                assert!(!entries.is_empty() && !entries[0].holders.is_empty(), "{entries:?}, {which:b}");
            }
            // The holder itself is never refused for good.
            let again = ours.acquire(&held).await;
            assert!(matches!(again, Ok(AcquireReply::Granted(_))) || again.is_err_and(|error| error.is_transient()));
        };
        let mut subsets = 0;
        tokio::task::block_in_place(|| {
            let first = |keys: &mut Vec<&[u8]>| {
                subsets = 1_u32 << keys.len();
                keys.sort_unstable();
                let mut at = 0;
                keys.retain(|_| {
                    at += 1;
                    which >> (at - 1) & 1 == 1
                });
            };
            mover.move_slot_by(slot, from, 1 - from, first, || handle.block_on(timeout(PATIENCE, half_way())).expect("it hangs"));
            wait_until(PATIENCE, "both servers to agree", || cluster.serves(1 - from, slot) && !cluster.serves(from, slot));
        });
        assert_eq!(ours.renew(&[held.lease()]).await.remove(0).unwrap(), RenewReply::Renewed, "{which:b}");
        for share in others {
            assert!(!is_granted(&*theirs, &asks("door", *share)).await, "{share:?}, {which:b}");
        }
        if scheme == "redisson-fair" {
            // It may have lost its place: then it takes another.
            let _ = theirs.release(&waits.lease(), Duration::ZERO).await.unwrap();
        }
        assert_eq!(ours.release(&held.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released, "{which:b}");
        let next = asks("door", share);
        assert!(fence_of(&*theirs, &next).await > first, "{which:b}");
        assert_eq!(theirs.release(&next.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
        if which + 1 == subsets {
            assert!(subsets >= 4, "the name has {subsets} subsets of keys");
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mutex_is_held_while_its_slot_moves() {
    holds_in_every_state_of_a_move("redisson", Share::MUTEX, &[Share::MUTEX, Share::READ, Share::WRITE]).await;
}

/// The key of its hold may have gone before the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_holds_while_its_slot_moves() {
    holds_in_every_state_of_a_move("redisson", Share::READ, &[Share::MUTEX, Share::WRITE]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_holds_while_its_slot_moves() {
    holds_in_every_state_of_a_move("redisson", Share::WRITE, &[Share::MUTEX, Share::READ, Share::WRITE]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_are_held_while_their_slot_moves() {
    let all = Share::permits(2, 2).unwrap();
    holds_in_every_state_of_a_move("redisson", all, &[Share::permits(1, 2).unwrap(), all]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fair_lock_is_held_while_its_slot_moves() {
    holds_in_every_state_of_a_move("redisson-fair", Share::MUTEX, &[Share::MUTEX]).await;
}

/// Channels of a cluster that are listened to at a node.
fn channels(cluster: &RedisCluster, at: usize) -> usize {
    cluster.servers()[at].command(&["PUBSUB", "SHARDCHANNELS"]).values().len()
}

/// It is notified by the channel of its slot, and is so where that has gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_listens_where_its_slot_has_gone() {
    for scheme in ["redisson", "redisson-fair"] {
        let cluster = RedisCluster::start(2, 0);
        let parameters = format!("scheme={scheme}&poll_interval=30s");
        let (ours, theirs) = (Locker::new(store(&cluster, &parameters).await), Locker::new(store(&cluster, &parameters).await));
        let slot = slot_of(&cluster, b"door");
        for _ in 0..2 {
            let from = cluster.serving(slot).unwrap();
            let held = ours.mutex("door").ttl(LONG).acquire().await.unwrap();
            let waits = tokio::spawn(theirs.mutex("door").ttl(LONG).acquire());
            tokio::task::block_in_place(|| {
                wait_until(PATIENCE, "the waiter to listen", || channels(&cluster, from) > 0);
                cluster.mover().move_slot(slot, from, 1 - from, || ());
                wait_until(PATIENCE, "the waiter to listen at the other node", || {
                    channels(&cluster, 1 - from) > 0 && channels(&cluster, from) == 0
                });
            });
            held.release().await.unwrap();
            let released = Instant::now();
            let guard = timeout(PATIENCE, waits).await.unwrap_or_else(|_| panic!("{scheme}: it hangs")).unwrap().unwrap();
            assert!(released.elapsed() < Duration::from_secs(5), "{scheme}: only after {:?}", released.elapsed());
            guard.release().await.unwrap();
        }
    }
}

/// Who listens at the node that serves the slot is notified of a release behind its back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_half_way_is_published() {
    let (cluster, handle) = (Lent::of(2), tokio::runtime::Handle::current());
    let store = store(&cluster, "scheme=redisson").await;
    let held = asks("door", Share::MUTEX);
    fence_of(&*store, &held).await;
    let slot = slot_of(&cluster, b"door");
    let from = cluster.serving(slot).unwrap();
    let mut client = cluster.servers()[from].connect().unwrap();
    client.command(&["SSUBSCRIBE", "redisson_lock__channel:{door}"]).unwrap();
    tokio::task::block_in_place(|| {
        let the_lock = |keys: &mut Vec<&[u8]>| keys.retain(|key| *key == b"door");
        cluster.mover().move_slot_by(slot, from, 1 - from, the_lock, || {
            let released = handle.block_on(store.release(&held.lease(), Duration::ZERO));
            assert_eq!(released.unwrap(), ReleaseReply::Released);
            let message = client.receive().expect("a message");
            assert_eq!(message.values().last(), Some(&&b"0"[..]), "{message:?}");
        });
    });
}

/// One store, many tasks, and listeners that come and go. `door` is held by another throughout.
async fn answers_stay_whose_they_are(cluster: &RedisCluster, meanwhile: impl FnOnce()) {
    let parameters = "scheme=redisson&timeout=10s";
    let theirs = store(cluster, parameters).await;
    fence_of(&*theirs, &asks("door", Share::MUTEX)).await;
    let (ours, stop) = (store(cluster, parameters).await, Arc::new(AtomicBool::new(false)));
    meanwhile();
    let tasks = (0..8).map(|at| {
        let (ours, stop) = (Arc::clone(&ours), Arc::clone(&stop));
        tokio::spawn(async move {
            for turn in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let request = asks(&if at < 2 { "door".to_owned() } else { format!("door {at} {turn}") }, Share::MUTEX);
                match ours.acquire(&request).await {
                    Ok(AcquireReply::Granted(_)) => {
                        assert!(at >= 2, "granted beside the holder");
                        let _ = ours.release(&request.lease(), Duration::ZERO).await;
                    }
                    Ok(_) => assert!(at < 2, "{at} is busy"),
                    Err(error) => assert!(error.is_transient() && error.to_string().contains("BUSY"), "{error}"),
                }
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    // More of them than are left at once.
    for at in 0..600 {
        let request = asks(&format!("listens {at}"), Share::MUTEX);
        let watch = ours.watch(&request).await.unwrap();
        let _ = ours.acquire(&request).await;
        drop(watch);
        let _ = ours.release(&request.lease(), Duration::ZERO).await;
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        timeout(PATIENCE, task).await.expect("it hangs").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_not_mixed_up_by_listeners() {
    answers_stay_whose_they_are(&Lent::of(1), || ()).await;
}

/// As Redis 6.2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_not_mixed_up_where_slots_have_no_channels() {
    let cluster = Lent::of(1);
    cluster.servers()[0].cli("ACL SETUSER default -ssubscribe -sunsubscribe -spublish");
    answers_stay_whose_they_are(&cluster, || ()).await;
}

/// A server that runs a script for longer answers all else by an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_not_mixed_up_by_a_busy_server() {
    let cluster = RedisCluster::start(1, 0);
    cluster.servers()[0].cli("CONFIG SET busy-reply-threshold 5");
    let mut client = cluster.servers()[0].connect().unwrap();
    let script = move || {
        for _ in 0..10 {
            let _ = client.command(&["EVAL", "for i = 1, 1000000 do end", "0"]);
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    answers_stay_whose_they_are(&cluster, || drop(std::thread::spawn(script))).await;
}

/// A node is not left with a channel for each name that was ever waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn channels_that_nobody_listens_to_are_left() {
    let cluster = Lent::of(1);
    let store = store(&cluster, "scheme=redisson").await;
    let listens = asks("door", Share::MUTEX);
    let _one_that_stays = store.watch(&listens).await.unwrap();
    fence_of(&*store, &listens).await;
    let mut most = 0;
    for at in 0..600 {
        let request = asks(&format!("door {at}"), Share::MUTEX);
        let watch = store.watch(&request).await.unwrap();
        fence_of(&*store, &request).await;
        most = most.max(channels(&cluster, 0));
        drop(watch);
    }
    assert!((2..=300).contains(&most), "{most} channels at once");
    // It is notified, and asks again.
    fence_of(&*store, &listens).await;
    let stays = cluster.servers()[0].command(&["PUBSUB", "SHARDNUMSUB", "redisson_lock__channel:{door}"]);
    assert_eq!(format!("{stays:?}").matches("Int(1)").count(), 1, "{stays:?}");
}

/// Redisson itself keeps the keys of such a name in two slots.
#[tokio::test]
async fn a_name_with_keys_in_two_slots_is_refused() {
    let cluster = Lent::of(1);
    let store = store(&cluster, "scheme=redisson").await;
    for name in ["a{b", "a}b", "{}a"] {
        let asked = asks(name, Share::MUTEX);
        let errors = [
            store.acquire(&asked).await.unwrap_err(),
            store.release(&asked.lease(), Duration::ZERO).await.unwrap_err(),
            store.inspect(Some(&asked.name)).await.unwrap_err(),
        ];
        for error in errors {
            assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("another slot"), "{name}: {error}");
        }
    }
    for name in ["a", "{a}b", "a{b}c"] {
        fence_of(&*store, &asks(name, Share::MUTEX)).await;
    }
    let error = Options::parse(&format!("{}?scheme=redisson", cluster.url())).unwrap().cluster().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("Options::open"), "{error}");
}

/// As the page about rights has it.
#[tokio::test]
async fn one_may_use_the_keys_of_one_lock() {
    let cluster = Lent::of(1);
    let rules = "ACL SETUSER app on >secret +@all ~door ~*{door}* &*{door}*";
    assert_eq!(cluster.servers()[0].cli(rules), "OK");
    let url = cluster.url().replace("://", "://app:secret@");
    for (scheme, shares) in [("redisson", &[Share::MUTEX, Share::READ][..]), ("redisson-fair", &[Share::MUTEX])] {
        let store = Options::parse(&format!("{url}?scheme={scheme}&timeout=10s")).unwrap().open().await.unwrap();
        for share in shares {
            let request = asks("door", *share);
            let _watch = store.watch(&request).await.unwrap();
            fence_of(&*store, &request).await;
            assert_eq!(store.inspect(Some(&request.name)).await.unwrap()[0].holders.len(), 1);
            assert_eq!(store.release(&request.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
            let error = store.acquire(&asks("gate", *share)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        }
    }
}
