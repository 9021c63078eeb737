//! Holders in separate processes that are stopped and killed.

use std::time::Duration;

use tenure::BootTime;

use super::steps::{LONG, PATIENCE, TTL, assert_free, granted_after, is_busy, kept, of_any_process, request};
use crate::Counter;
use crate::{Outcome, Subject};

/// Several processes count in a file that nothing protects but the lock; the fences are in the order of entry.
pub async fn no_two_processes_are_inside_at_once(subject: &dyn Subject) -> Outcome {
    let dir = tempfile::tempdir().unwrap();
    let counter = Counter::create(dir.path());
    let mut workers = Vec::new();
    for _ in 0..4 {
        workers.push(subject.process()?);
    }
    for worker in &mut workers {
        worker.begin_visits("door", dir.path(), 25);
    }
    for worker in &mut workers {
        worker.finish_visits();
    }
    counter.check(100).unwrap_or_else(|damage| panic!("{damage}"));
    Ok(())
}

/// kill -9 of a holder costs the next one the ttl and no more.
pub async fn a_killed_holder_frees_within_its_ttl(subject: &dyn Subject) -> Outcome {
    let store = subject.store().await;
    let mut worker = subject.process()?;
    let ttl = TTL * 3 / 2;
    worker.acquire("door", ttl);
    tokio::time::sleep(ttl).await;
    assert!(is_busy(&store, &request("door", LONG)).await, "the worker does not renew");
    let killed_at = BootTime::now();
    worker.kill();
    let freed = granted_after(&store, &request("door", LONG), killed_at).await;
    // A scheme that counts in whole seconds may be one behind.
    assert!(freed < kept(&store, ttl).await + subject.overtime() + Duration::from_secs(2), "free only after {freed:?}");
    Ok(())
}

/// A holder stopped for longer than its lease finds itself lost at its first look, and its successor has a larger fence.
pub async fn a_stopped_holder_is_overtaken_and_knows_it(subject: &dyn Subject) -> Outcome {
    let store = subject.store().await;
    let mut worker = subject.process()?;
    let first = worker.acquire("door", TTL);
    worker.stop(true);
    let stopped_at = BootTime::now();
    let next = request("door", LONG);
    granted_after(&store, &next, stopped_at).await;
    let second = super::steps::granted(&store, &next).await.fence;
    assert!(second > first || !store.features().fence);
    worker.stop(false);
    assert!(worker.is_lost());
    Ok(())
}

/// Time that a dead waiter may cost those behind it.
const DEAD_WAITER: Duration = Duration::from_secs(3);

/// kill -9 of a waiter keeps others out for seconds, whatever the ttl, and then nothing is left of it.
pub async fn a_killed_waiter_leaves_nothing(subject: &dyn Subject) -> Outcome {
    let locks = super::steps::locker(subject).await;
    let guard = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
    let mut waiter = subject.process()?;
    waiter.begin_acquire("door", LONG);
    tokio::time::sleep(Duration::from_millis(300)).await;
    waiter.kill();
    let _ = guard.release().await.unwrap();
    let freed = BootTime::now();
    let again = tokio::time::timeout(PATIENCE, locks.mutex("door").ttl(LONG).acquire()).await.expect("the dead waiter is served");
    let cost = BootTime::now().since(freed);
    assert!(cost < DEAD_WAITER + subject.overtime(), "the name was free of the dead waiter only after {cost:?}");
    let _ = again.unwrap().release().await.unwrap();
    let store = subject.store().await;
    while !store.inspect(Some(&super::steps::name("door"))).await.unwrap().is_empty() {
        assert!(BootTime::now().since(freed) < PATIENCE, "the place of the dead waiter stays");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Taken in one process, given up in another.
pub async fn a_lease_passes_between_processes(subject: &dyn Subject) -> Outcome {
    of_any_process(subject).await?;
    let (mut first, mut second) = (subject.process()?, subject.process()?);
    let before = first.acquire("door", LONG);
    let lease = first.hand_over();
    let after = second.adopt(&lease);
    assert!(after > before || before.is_none());
    first.kill();
    second.release();
    assert_free(subject, "door").await;
    Ok(())
}
