//! Costs of a short command.

use std::time::{Duration, Instant};

use tenure::Share;
use tenure::store::Store as _;

use crate::common::{fresh, granted, lease, owner, raw, request, wait_until_closed};

/// Open, acquire, release and close, as `tenure run x -- true` does; each part printed. Nobody else has the file open, so every
/// open reads the log through.
#[tokio::test]
async fn a_short_command_pays_little() {
    let (_dir, path) = fresh();
    let first = Instant::now();
    drop(tenure_sql::sqlite::open(&path).unwrap());
    println!("first open, which makes the file: {:?}", first.elapsed());
    let mut parts: Vec<[Duration; 4]> = Vec::new();
    for _ in 0..600 {
        wait_until_closed(&path);
        let owner = owner();
        let begun = Instant::now();
        let store = tenure_sql::sqlite::open(&path).unwrap();
        let opened = begun.elapsed();
        granted(&store, &request("x", &owner)).await;
        let acquired = begun.elapsed();
        store.release(&lease("x", &owner), Duration::ZERO).await.unwrap();
        let released = begun.elapsed();
        drop(store);
        let closed = begun.elapsed().saturating_sub(released);
        parts.push([opened, acquired.saturating_sub(opened), released.saturating_sub(acquired), closed]);
    }
    for (part, of) in ["open", "acquire", "release", "close (the thread goes on alone)"].iter().enumerate() {
        let mut times: Vec<Duration> = parts.iter().map(|times| times[part]).collect();
        times.sort_unstable();
        println!("{of}: median {:?}, p90 {:?}, max {:?}", times[300], times[540], times[599]);
    }
    let mut all: Vec<Duration> = parts.iter().map(|times| times.iter().sum()).collect();
    all.sort_unstable();
    println!("all: median {:?}, p90 {:?}, max {:?}", all[300], all[540], all[599]);
    assert!(all[300] < Duration::from_millis(20), "a short command took {:?}", all[300]);
}

/// One open store, call by call.
#[tokio::test]
async fn a_cycle_on_an_open_store() {
    const CYCLES: u32 = 2000;
    let (_dir, path) = fresh();
    let store = tenure_sql::sqlite::open(&path).unwrap();
    let begun = Instant::now();
    for _ in 0..CYCLES {
        let owner = owner();
        granted(&store, &request("x", &owner)).await;
        store.release(&lease("x", &owner), Duration::ZERO).await.unwrap();
    }
    println!("acquire and release on an open store: {:?}", begun.elapsed() / CYCLES);
}

/// A call reads all that hold its name.
#[tokio::test]
async fn readers_of_one_name() {
    const CYCLES: u32 = 50;
    let (_dir, path) = fresh();
    let store = tenure_sql::sqlite::open(&path).unwrap();
    let reader = || request("x", &owner()).with_share(Share::READ);
    let mut held = 0;
    for readers in [10, 100, 1_000] {
        for _ in held..readers {
            granted(&store, &reader()).await;
        }
        held = readers;
        let begun = Instant::now();
        for _ in 0..CYCLES {
            let reader = reader();
            granted(&store, &reader).await;
            store.release(&lease("x", &reader.owner), Duration::ZERO).await.unwrap();
        }
        let cycle = begun.elapsed() / CYCLES;
        println!("acquire and release beside {readers} readers: {cycle:?}");
        assert!(cycle < Duration::from_millis(200), "a cycle beside {readers} readers took {cycle:?}");
    }
}

/// Neither the file nor its log grows with the number of locks that ever were, also where every process ends without a checkpoint
/// and nobody releases.
#[tokio::test]
async fn the_file_and_its_log_stay_small() {
    let (_dir, path) = fresh();
    for _ in 0..40 {
        let store = tenure_sql::sqlite::open(&path).unwrap();
        for _ in 0..250 {
            let owner = owner();
            let mut short = request(&format!("job/{owner}"), &owner);
            short.ttl = Duration::from_millis(10);
            granted(&store, &short).await;
        }
    }
    let size = |suffix: &str| std::fs::metadata(format!("{}{suffix}", path.display())).unwrap().len();
    // Looking at the rows as the last user of the file would bring in the log and delete it.
    let (file, log) = (size(""), size("-wal"));
    let rows: i64 = raw(&path).query_row("SELECT count(*) FROM lock", [], |row| row.get(0)).unwrap();
    println!("after 10,000 dead names: {rows} rows, file {file} bytes, log {log} bytes");
    assert!(rows < 2000, "{rows} rows are left");
    assert!(file < 1 << 20, "the file has {file} bytes");
    assert!(log < 5 << 20, "the log has {log} bytes");
}
