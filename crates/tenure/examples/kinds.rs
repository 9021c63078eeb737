//! Every kind of lock, in a store in memory: `cargo run -p tenure --example kinds`.
//!
//! With `tenure_sql::connect(path)` or `tenure_redis::connect(url)` in the first line the same holds between processes.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use tenure::{Error, Locker, MemoryStore, Share};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let locks = Locker::new(MemoryStore::new());
    read_and_write(&locks).await?;
    take_turns_at_a_pool(&locks).await?;
    move_money(&locks).await
}

/// Any number of readers, or one writer. A writer who becomes a reader lets others read what it wrote, and no writer in between.
async fn read_and_write(locks: &Locker) -> Result<(), Error> {
    let (one, other) = (locks.read("site").acquire().await?, locks.read("site").acquire().await?);
    println!("two readers, fences {:?} and {:?}; a writer has to wait", one.fence(), other.fence());
    assert!(locks.write("site").try_acquire().await?.is_none());
    drop((one, other));
    let writer = locks.write("site").wait(Duration::from_secs(1)).acquire().await?;
    // Only this fence may be remembered by what is guarded: readers have theirs to be compared with it.
    println!("one writer, fence {:?}", writer.fence());
    writer.downgrade(Share::READ).await?;
    let reader = locks.read("site").acquire().await?;
    println!("the writer reads now, beside {:?}", reader.fence());
    Ok(())
}

/// At most three permits at once, here one for each task.
async fn take_turns_at_a_pool(locks: &Locker) -> Result<(), Error> {
    let fetches = (0..6).map(|i| {
        let permit = locks.semaphore("downloads", 3);
        tokio::spawn(async move {
            let permit = permit.acquire().await?;
            permit.run(async { println!("download {i}") }).await?;
            permit.release().await
        })
    });
    for fetch in fetches.collect::<Vec<_>>() {
        println!("{:?}", fetch.await.map_err(|error| Error::unavailable(error.to_string()))??);
    }
    Ok(())
}

/// Both accounts or none, in whatever order others name them.
async fn move_money(locks: &Locker) -> Result<(), Error> {
    let guards = locks.mutex("account/2").wait(Duration::from_secs(5)).and("account/1").acquire().await?;
    guards.run(async { println!("from account/1 to account/2") }).await?;
    for (name, fence) in guards.fences() {
        println!("{name} with fence {fence:?}");
    }
    for (name, outcome) in guards.release().await {
        println!("{name}: {:?}", outcome?);
    }
    Ok(())
}
