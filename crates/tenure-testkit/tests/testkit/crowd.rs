//! Those who wait in memory, many at once; and a crowd that nothing keeps apart, which is caught.

use std::time::{Duration, Instant};

use tenure::{Locker, MemoryStore};
use tenure_testkit::crowd::{Came, Field, is_left_clean, soak};
use tenure_testkit::worker::carry;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_in_memory() {
    let field = Field::new(2, soak().unwrap_or(100_000)).with(|load| (load.tasks, load.fickle) = (64, 100));
    let (locks, began) = (Locker::new(MemoryStore::new()), Instant::now());
    let came = Came { tally: carry(&locks, &field.load).await, killed: 0 };
    came.told("memory, 2 names, 64 tasks", field.check(&came), began);
    let longest = came.tally.longest_wait();
    assert!(longest < Duration::from_secs(5), "one had its turn only after {longest:?}");
    came.lost_none();
    is_left_clean(&locks).await;
}

/// Each half has a lock of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[should_panic(expected = "was inside")]
async fn two_crowds_that_do_not_share_a_store_are_caught() {
    let field = Field::new(1, 200).with(|load| (load.tasks, load.stay) = (4, Duration::from_millis(1)));
    let halves = [Locker::new(MemoryStore::new()), Locker::new(MemoryStore::new())];
    let [one, other] = halves.each_ref().map(|locks| carry(locks, &field.load));
    let (one, other) = tokio::join!(one, other);
    field.check(&Came { tally: one.and(other), killed: 0 });
}
