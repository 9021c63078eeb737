//! Waiting, and leaving nothing behind.

use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::StreamExt;
use tenure::{BootTime, ReleaseOutcome, State};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::steps::{
    CLEAN_UP, LONG, PATIENCE, TTL, assert_free, granted, granted_after, joined, kept, lease, locker, outcome_of, request,
    timed_out,
};
use crate::{Outcome, Subject};

/// Released by one, held by the other, well before any ttl.
pub async fn a_waiter_gets_the_name(subject: &dyn Subject) -> Outcome {
    let (here, there) = (locker(subject).await, locker(subject).await);
    let guard = here.mutex("door").ttl(LONG).acquire().await.unwrap();
    let waiter = tokio::spawn(async move { there.mutex("door").ttl(LONG).wait(PATIENCE).acquire().await.unwrap() });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiter.is_finished());
    let fence = guard.fence();
    let _ = guard.release().await.unwrap();
    let second = joined(timeout(Duration::from_secs(5), waiter).await.expect("the waiter was forgotten"));
    assert!(second.fence() > fence || fence.is_none());
    Ok(())
}

/// A leader resigns, the next one leads, and an observer sees both in order.
pub async fn leaders_follow_one_another(subject: &dyn Subject) -> Outcome {
    let (here, there, observer) = (locker(subject).await, locker(subject).await, locker(subject).await);
    let mut leaders = observer.election("billing").poll_interval(Duration::from_millis(20)).observe();
    let mut fence = None;
    let mut sees = async |label: Option<&str>| {
        let seen = async {
            loop {
                let leader = leaders.next().await.unwrap().unwrap();
                let seen = leader.as_ref().and_then(|leader| leader.fence);
                assert!(seen.is_none() || seen >= fence, "{seen:?} is seen after {fence:?}");
                fence = seen.or(fence);
                // Some stores show others no more than that somebody holds.
                let is_unnamed = label.is_some() && leader.as_ref().is_some_and(|leader| leader.label().is_none());
                if is_unnamed || leader.as_ref().and_then(|leader| leader.label()) == label {
                    return;
                }
            }
        };
        timeout(PATIENCE, seen).await.unwrap_or_else(|_| panic!("{label:?} was not seen to lead"));
    };
    sees(None).await;
    let first = here.election("billing").candidate("first").ttl(LONG).campaign().await.unwrap();
    sees(Some("first")).await;
    let second = tokio::spawn(async move { there.election("billing").candidate("second").ttl(LONG).campaign().await.unwrap() });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!second.is_finished());
    let fence_of_first = first.fence();
    let _ = first.resign().await.unwrap();
    let second = joined(timeout(PATIENCE, second).await.expect("nobody leads"));
    assert!(second.fence() > fence_of_first || fence_of_first.is_none());
    sees(Some("second")).await;
    let _ = second.resign().await.unwrap();
    sees(None).await;
    Ok(())
}

/// In time, with the holder's label; a try does not wait.
pub async fn a_wait_ends_with_who_holds(subject: &dyn Subject) -> Outcome {
    let locks = locker(subject).await;
    let _guard = locks.mutex("door").label("the-holder").ttl(LONG).acquire().await.unwrap();
    let started = BootTime::now();
    let wait = Duration::from_millis(300);
    let error = timed_out(locks.mutex("door").ttl(LONG).wait(wait).acquire().await);
    let took = BootTime::now().since(started);
    assert!(error.to_string().contains("the-holder"), "{error}");
    assert_eq!(error.holder().unwrap().owner.label(), Some("the-holder"));
    assert!(took >= wait, "it gave up after {took:?}");
    assert!(took < wait + Duration::from_secs(2), "it gave up only after {took:?}");
    assert!(locks.mutex("door").ttl(LONG).try_acquire().await.unwrap().is_none());
    Ok(())
}

/// Waiters that are aborted anywhere leave neither a lock nor a place.
pub async fn a_cancelled_wait_leaves_nothing(subject: &dyn Subject) -> Outcome {
    let locks = locker(subject).await;
    let guard = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
    let mut waiters = JoinSet::new();
    for i in 0..20 {
        let waiting = locks.mutex("door").ttl(LONG).poll_interval(Duration::from_millis(3));
        waiters.spawn(async move { timeout(Duration::from_millis(5 * i), waiting.acquire()).await });
    }
    while let Some(waiter) = waiters.join_next().await {
        assert!(waiter.unwrap().is_err(), "a waiter got in");
    }
    let _ = guard.release().await.unwrap();
    locks.flush_releases().await;
    assert_free(subject, "door").await;
    Ok(())
}

/// A future that was polled any number of times and then dropped leaves the name free, without waiting for a ttl.
pub async fn a_future_dropped_at_any_await_leaves_nothing(subject: &dyn Subject) -> Outcome {
    let (locks, store) = (locker(subject).await, subject.store().await);
    for polls in 0..12 {
        let mut acquire = Box::pin(locks.mutex("door").ttl(LONG).acquire());
        for _ in 0..polls {
            match acquire.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(guard) => {
                    drop(guard.unwrap());
                    acquire = Box::pin(locks.mutex("door").ttl(LONG).acquire());
                }
                Poll::Pending => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
        drop(acquire);
        timeout(CLEAN_UP, locks.flush_releases()).await.expect("the clean-up hangs");
        let next = request("door", LONG);
        granted(&store, &next).await;
        store.release(&lease(&next), Duration::ZERO).await.unwrap();
    }
    Ok(())
}

/// The same while the name is busy: the first look, the watch, the pause, the look after it.
pub async fn a_wait_dropped_at_any_await_leaves_nothing(subject: &dyn Subject) -> Outcome {
    let (locks, store) = (locker(subject).await, subject.store().await);
    let held = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
    for polls in 1..30 {
        let mut wait = Box::pin(locks.mutex("door").ttl(LONG).poll_interval(Duration::from_millis(1)).acquire());
        for _ in 0..polls {
            assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            tokio::time::sleep(Duration::from_micros(300)).await;
        }
        drop(wait);
    }
    let _ = held.release().await.unwrap();
    timeout(CLEAN_UP, locks.flush_releases()).await.expect("the clean-up hangs");
    granted(&store, &request("door", LONG)).await;
    Ok(())
}

/// Dropped inside the runtime that took it.
pub async fn a_dropped_guard_frees(subject: &dyn Subject) -> Outcome {
    let locks = locker(subject).await;
    let guard = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
    drop(guard);
    timeout(CLEAN_UP, locks.flush_releases()).await.expect("the release hangs");
    assert_free(subject, "door").await;
    Ok(())
}

/// Dropped on a thread that has no runtime.
pub async fn a_guard_dropped_outside_a_runtime_frees(subject: &dyn Subject) -> Outcome {
    let (locks, store) = (locker(subject).await, subject.store().await);
    let guard = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
    let started = BootTime::now();
    std::thread::spawn(move || drop(guard)).join().expect("drop does not panic");
    let freed = granted_after(&store, &request("door", LONG), started).await;
    assert!(freed < Duration::from_secs(5), "free only after {freed:?}");
    Ok(())
}

/// The runtime is gone: the guard is lost in time, drops in peace, and the name is free when its ttl has passed.
pub async fn a_guard_outlives_its_runtime_in_peace(subject: &dyn Subject) -> Outcome {
    let (store, theirs) = (subject.store().await, subject.store().await);
    let (started, ttl) = (BootTime::now(), TTL * 2);
    tokio::task::block_in_place(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let locks = tenure::Locker::new(theirs);
        let guard = runtime.block_on(locks.mutex("door").ttl(ttl).acquire()).unwrap();
        drop(runtime);
        assert_eq!(guard.state(), State::Held);
        std::thread::sleep(guard.remaining());
        assert_eq!(guard.state(), State::Lost);
    });
    let freed = granted_after(&store, &request("door", LONG), started).await;
    assert!(freed < kept(&store, ttl).await + subject.overtime() + Duration::from_secs(2), "free only after {freed:?}");
    Ok(())
}

/// An unprotected read-modify-write by many tasks loses nothing.
pub async fn many_tasks_take_turns(subject: &dyn Subject) -> Outcome {
    let (here, there) = (locker(subject).await, locker(subject).await);
    let number = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for task in 0..10 {
        let (locks, number) = (if task % 2 == 0 { here.clone() } else { there.clone() }, number.clone());
        tasks.spawn(async move {
            for _ in 0..10 {
                let guard = locks.mutex("door").ttl(LONG).poll_interval(Duration::from_millis(2)).acquire().await.unwrap();
                let read = number.load(Ordering::Relaxed);
                tokio::task::yield_now().await;
                number.store(read + 1, Ordering::Relaxed);
                assert!(matches!(outcome_of(guard.release().await), ReleaseOutcome::Released));
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        joined(done);
    }
    assert_eq!(number.load(Ordering::Relaxed), 100);
    Ok(())
}

/// The same without async: taken, kept alive by the background thread, and given up.
pub async fn locks_without_a_runtime(subject: &dyn Subject) -> Outcome {
    let (store, theirs) = (subject.store().await, subject.store().await);
    let work = std::thread::spawn(move || {
        let locks = tenure::blocking::Locker::connect(async move { Ok(tenure::Locker::new(theirs)) }).unwrap();
        let ttl = TTL * 2;
        let guard = locks.mutex("door").ttl(ttl).acquire().unwrap();
        assert!(locks.mutex("door").ttl(ttl).try_acquire().unwrap().is_none());
        std::thread::sleep(ttl + TTL / 4);
        assert_ne!(guard.state(), State::Lost, "nobody renewed it");
        guard.verify().unwrap();
        assert!(matches!(outcome_of(guard.release()), ReleaseOutcome::Released));
        // How a program ends: the guard goes, then the locker, then the process.
        drop(locks.mutex("door").ttl(LONG).acquire().unwrap());
    });
    let mut work = pin!(tokio::task::spawn_blocking(move || work.join().unwrap_or_else(|panic| resume_unwind(panic))));
    joined(timeout(PATIENCE, work.as_mut()).await.expect("it hangs"));
    granted(&store, &request("door", LONG)).await;
    Ok(())
}
