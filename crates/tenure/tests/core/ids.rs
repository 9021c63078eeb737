//! Ids in blocks: which of them a source gives, and what that asks of the store.

use std::collections::HashSet;

use tenure::store::{AcquireReply, Grant};
use tenure::{ErrorKind, Fence, Locker, MemoryStore};
use tokio::task::JoinSet;

use crate::scripted_store::Fate;
use crate::{LONG, door, ms, released, served, settle, waiter, world, world_with};

#[tokio::test(start_paused = true)]
async fn a_block_is_one_request_and_its_ids_are_the_fences_of_one_grant() {
    let (_clock, store, locks) = world();
    let ids = locks.ids("door");
    let first = ids.next().await.unwrap();
    for offset in 1..1_024 {
        assert_eq!(ids.next().await.unwrap(), first + offset);
    }
    assert_eq!(store.acquires().len(), 1);
    assert_eq!(u64::try_from(first).unwrap() % 1_024, 0);
    locks.flush_releases().await;
    assert!(locks.inspect("door").await.unwrap().is_none(), "the name stays taken between blocks");
    let next = ids.clone().next().await.unwrap();
    assert!(next >= first + 1_024, "{next} is of the block of {first}");
    assert_eq!(store.acquires().len(), 2);
}

/// Tasks of one process pass a lease on with the next fence of its grant. Ids must not meet it.
#[tokio::test(start_paused = true)]
async fn what_waits_in_this_process_gets_no_id() {
    let (_clock, _store, locks) = world();
    let held = locks.mutex("door").ttl(ms(3_000)).safety_margin(ms(0)).acquire().await.unwrap();
    let fence = held.fence().unwrap();
    let ids = [locks.ids("door"), locks.ids("door")];
    let mut sources = JoinSet::new();
    for ids in ids {
        sources.spawn(async move {
            let mut all = Vec::new();
            for _ in 0..1_500 {
                all.push(ids.next().await.unwrap());
            }
            all
        });
        settle().await;
    }
    let plain = waiter(locks.mutex("door").ttl(ms(3_000)).safety_margin(ms(0))).await;
    released(held).await;
    let plain = served(plain).await;
    let own = [i64::from(fence), i64::from(plain.fence().unwrap())];
    released(plain).await;
    let given = sources.join_all().await;
    assert!(given.iter().all(|ids| ids.is_sorted_by(|a, b| a < b)), "the ids of a source do not rise");
    // None is of a grant that somebody else had.
    let counters = own.map(|fence| Fence::from_token(fence.cast_unsigned()).unwrap().counter());
    assert!(!given.iter().flatten().any(|id| counters.contains(&Fence::from_token(id.cast_unsigned()).unwrap().counter())));
    let all: Vec<i64> = given.concat().into_iter().chain(own).collect();
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len(), "a number was given twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tasks_on_several_threads_get_different_ids() {
    let locks = Locker::new(MemoryStore::new());
    let shared = locks.ids("door");
    let mut tasks = JoinSet::new();
    for task in 0..16 {
        let ids = if task % 2 == 0 { shared.clone() } else { locks.ids("door") };
        tasks.spawn(async move {
            let mut all = Vec::new();
            for _ in 0..5_000 {
                all.push(ids.next().await.unwrap());
            }
            assert!(all.is_sorted_by(|a, b| a < b), "a task saw its ids fall");
            all
        });
    }
    let all = tasks.join_all().await.concat();
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), 16 * 5_000);
}

#[tokio::test(start_paused = true)]
async fn a_store_without_fences_is_refused_before_a_request() {
    let (_clock, store, locks) = world_with(|features| features.fence = false);
    let error = locks.ids("door").next().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(store.calls().is_empty());
    assert_eq!(world().2.ids("").next().await.unwrap_err().kind(), ErrorKind::Invalid);
}

/// As Redisson's: the numbers after it are of other grants.
#[tokio::test(start_paused = true)]
async fn a_grant_with_one_number_gives_one_id() {
    let (_clock, store, locks) = world_with(|features| features.cohort = false);
    let grant = |token| AcquireReply::Granted(Grant::new(Fence::from_token(token), ms(3_000)));
    store.answers([5, 6, 1_024].map(grant));
    let ids = locks.ids("door");
    for expected in [5, 6, 1_024] {
        assert_eq!(ids.next().await.unwrap(), expected);
    }
    assert_eq!(store.acquires().len(), 3);
    store.answers([grant(1_024)]);
    assert_eq!(ids.next().await.unwrap_err().kind(), ErrorKind::Unavailable, "the same number again");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_forgot_its_counter_gives_no_id_again() {
    let (_clock, store, locks) = world();
    let ids = locks.ids("door");
    for counter in [9, 8, 9, 10] {
        store.answers([AcquireReply::Granted(Grant::new(Fence::from_counter(counter), ms(3_000)))]);
    }
    for _ in 0..1_024 {
        ids.next().await.unwrap();
    }
    for _ in 0..2 {
        let error = ids.next().await.unwrap_err();
        assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("counter"), "{error}");
    }
    assert_eq!(ids.next().await.unwrap(), 10 * 1_024);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_leaves_nothing_taken() {
    let (_clock, store, locks) = world();
    let ids = locks.ids("door");
    store.fated(Fate::Hangs);
    let call = tokio::spawn({
        let ids = ids.clone();
        async move { ids.next().await }
    });
    settle().await;
    assert_eq!(store.acquires().len(), 1);
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    store.fated(Fate::Works);
    locks.flush_releases().await;
    assert!(locks.inspect("door").await.unwrap().is_none(), "the name stays taken");
    let first = ids.next().await.unwrap();
    assert!(ids.next().await.unwrap() == first + 1);
}

#[tokio::test(start_paused = true)]
async fn a_block_outlives_its_lease_and_another_holder() {
    let (_clock, store, locks) = world();
    let ids = locks.ids("door");
    let first = ids.next().await.unwrap();
    locks.flush_releases().await;
    let guard = door(&locks).acquire().await.unwrap();
    store.forget_calls();
    tokio::time::sleep(LONG * 3).await;
    for offset in 1..1_024 {
        assert_eq!(ids.next().await.unwrap(), first + offset);
    }
    assert!(store.acquires().is_empty());
    // The next block waits for the name.
    let next = tokio::spawn(async move { ids.next().await });
    settle().await;
    assert!(!next.is_finished());
    let fence = i64::from(guard.fence().unwrap());
    released(guard).await;
    assert!(next.await.unwrap().unwrap() > fence);
}

#[tokio::test(start_paused = true)]
async fn tasks_that_wait_share_one_block() {
    let (_clock, store, locks) = world();
    let ids = locks.ids("door");
    store.fated(Fate::Slow);
    let mut tasks = JoinSet::new();
    for _ in 0..10 {
        let ids = ids.clone();
        tasks.spawn(async move { ids.next().await.unwrap() });
    }
    let all: HashSet<i64> = tasks.join_all().await.into_iter().collect();
    assert_eq!((all.len(), store.acquires().len()), (10, 1));
}
