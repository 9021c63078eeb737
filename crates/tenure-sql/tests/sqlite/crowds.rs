//! Those who wait at a lock file, many at once: one at a time, in order of their fences, nobody forgotten, nothing left.

use std::time::{Duration, Instant};

use tempfile::TempDir;
use tenure_testkit::crowd::{Field, is_left_clean, soak};

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
    assert!(came.tally.longest_wait() < patience, "a wait took {:?}", came.tally.longest_wait());
    came.lost_none();
    is_left_clean(&tenure_sql::sqlite::connect(&file).await.unwrap()).await;
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
    // Each killed process costs a handoff_ttl. With more kills the others would make no progress.
    let every = Some(Duration::from_secs(2));
    played("SQLite, one name, 4 processes of 1 task and mortal ones", field, 4, every, Duration::from_secs(20)).await;
}
