//! Those who wait at a lock file or in memory, many at once: as `redis_queue.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test stops where its set-up does")]

use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tenure::{Locker, MemoryStore};
use tenure_testkit::worker::carry;

#[path = "queue/crowd.rs"]
mod crowd;

use crowd::{Came, Field, soak};

/// Leases and places of the dead have ended by then.
const OVER: Duration = Duration::from_secs(6);

/// Nobody holds, and nobody waits.
async fn is_left_clean(locks: &Locker) {
    let began = Instant::now();
    loop {
        let left = locks.list().await.unwrap();
        if left.is_empty() {
            return;
        }
        assert!(began.elapsed() < OVER, "left behind: {left:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn played(what: &str, field: Field, processes: u64, kill_every: Option<Duration>, patience: Duration) {
    let (dir, began) = (TempDir::new().unwrap(), Instant::now());
    let file = dir.path().join("locks.db");
    let url = format!("sqlite:{}", file.display());
    let (field, came) = tokio::task::spawn_blocking(move || {
        let came = field.crowd(&url, processes, kill_every);
        (field, came)
    })
    .await
    .unwrap();
    came.told(what, field.check(&came), began);
    assert!(came.tally.longest_wait() < patience, "one waited for {:?}", came.tally.longest_wait());
    assert_eq!(came.tally.lost, 0, "leases were lost");
    is_left_clean(&opened(&file).await).await;
}

async fn opened(file: &Path) -> Locker {
    tenure_sql::sqlite::connect(file).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_at_one_file() {
    let field = Field::new(2, soak().unwrap_or(10_000)).with(|load| (load.tasks, load.fickle) = (16, 100));
    played("SQLite, 2 names, 3 processes of 16 tasks", field, 3, None, Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_of_single_tasks_at_one_file_that_dies() {
    let field = Field::new(1, soak().map_or(800, |visits| visits / 100));
    let field = field.with(|load| (load.fickle, load.stay) = (100, Duration::from_millis(1)));
    // A dead one costs its claim: more often, and those who live would get nowhere.
    let every = Some(Duration::from_secs(2));
    played("SQLite, one name, 4 processes of 1 task and mortal ones", field, 4, every, Duration::from_secs(20)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_in_memory() {
    let field = Field::new(2, soak().unwrap_or(100_000)).with(|load| (load.tasks, load.fickle) = (64, 100));
    let (locks, began) = (Locker::new(MemoryStore::new()), Instant::now());
    let came = Came { tally: carry(&locks, &field.load).await, killed: 0 };
    came.told("memory, 2 names, 64 tasks", field.check(&came), began);
    assert!(came.tally.longest_wait() < Duration::from_secs(5), "one waited for {:?}", came.tally.longest_wait());
    assert_eq!(came.tally.lost, 0, "leases were lost");
    is_left_clean(&locks).await;
}

/// The crowd is caught when nothing keeps it apart: each half has a lock of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[should_panic(expected = "was inside")]
async fn two_crowds_that_do_not_share_a_store_are_caught() {
    let field = Field::new(1, 200).with(|load| (load.tasks, load.stay) = (4, Duration::from_millis(1)));
    let halves = [Locker::new(MemoryStore::new()), Locker::new(MemoryStore::new())];
    let [one, other] = halves.each_ref().map(|locks| carry(locks, &field.load));
    let (one, other) = tokio::join!(one, other);
    field.check(&Came { tally: one.and(other), killed: 0 });
}

/// Not a case: the workers of these tests begin here.
#[test]
fn worker() {
    tenure_testkit::worker::entry();
}
