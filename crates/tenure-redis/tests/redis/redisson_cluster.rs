//! Locks of Redisson in a cluster: slots that move under them, and the channels of their slots.

use std::sync::Arc;
use std::time::Duration;

use tenure::store::{AcquireReply, Enqueue, ReleaseReply, RenewReply, Request, Store};
use tenure::{ErrorKind, Locker, Name, Owner, Share};
use tenure_redis::Options;
use tenure_testkit::{RedisCluster, wait_until};
use tokio::time::{Instant, timeout};

use crate::cluster::slot_of;
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
    match store.acquire(request).await {
        Ok(answer) => matches!(answer, AcquireReply::Granted(_)),
        Err(error) => {
            assert!(error.is_transient() && !error.may_have_been_applied(), "{error:?}");
            false
        }
    }
}

/// Each subset of the keys of a name is moved before the rest. Whatever is where, nobody else gets in and no lease is lost.
async fn holds_in_every_state_of_a_move(scheme: &str, share: Share, others: &[Share]) {
    let cluster = RedisCluster::start(2, 0);
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
            let renewed = ours.renew(&[held.lease()]).await;
            let [Ok(RenewReply::Renewed)] = renewed[..] else {
                // Readers and permits have two keys.
                assert!(matches!(&renewed[..], [Err(error)] if error.is_transient()), "{renewed:?}, {which:b}");
                assert!(![Share::MUTEX, Share::WRITE].contains(&share), "{renewed:?}, {which:b}");
                return;
            };
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
        let renewed = ours.renew(&[held.lease()]).await;
        assert!(matches!(renewed[..], [Ok(RenewReply::Renewed)]), "{renewed:?}, {which:b}");
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
            let guard = timeout(PATIENCE, waits).await.expect("it hangs").unwrap().unwrap();
            assert!(released.elapsed() < Duration::from_secs(5), "{scheme}: after {:?}", released.elapsed());
            guard.release().await.unwrap();
        }
    }
}

/// A node is not left with a channel for each name that was ever waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn channels_that_nobody_listens_to_are_left() {
    let cluster = RedisCluster::start(1, 0);
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
    let cluster = RedisCluster::start(1, 0);
    let store = store(&cluster, "scheme=redisson").await;
    for name in ["a{b", "a}b", "{}a"] {
        let error = store.acquire(&asks(name, Share::MUTEX)).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("another slot"), "{name}: {error}");
    }
    for name in ["a", "{a}b", "a{b}c"] {
        fence_of(&*store, &asks(name, Share::MUTEX)).await;
    }
    let error = Options::parse(&format!("{}?scheme=redisson", cluster.url())).unwrap().cluster().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("Options::open"), "{error}");
}
