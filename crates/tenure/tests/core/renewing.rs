//! Renewals: when, how many at once, and what one lease costs the others.

use std::time::Duration;

use tenure::store::Store;
use tenure::{Clock, State};
use tokio::time::timeout;

use crate::scripted_store::{Fate, SLOW};
use crate::{LIMIT, LONG, ms, secs, settle, until, world, world_with};

#[tokio::test(start_paused = true)]
async fn renewals_share_batches_and_fixed_leases_stay_out() {
    let (_clock, store, locks) = world();
    let mut guards = Vec::new();
    for i in 0..500 {
        let acquire = locks.mutex(format!("door {i}")).ttl(secs(30));
        guards.push(if i % 5 == 0 { acquire.fixed_lease().acquire().await } else { acquire.acquire().await }.unwrap());
        if i % 50 == 0 {
            tokio::time::sleep(ms(20)).await;
        }
    }
    tokio::time::sleep(secs(11)).await;
    let batches: Vec<usize> = store.renewals().into_iter().map(|(_, leases)| leases.len()).collect();
    assert_eq!(batches, [400], "one batch for all that are due at about the same time");
    assert!(guards.iter().all(|guard| guard.state() == State::Held));
}

/// A third of the ttl after the last one was sent, however long its answer took.
#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_every_third_of_its_ttl() {
    let (clock, store, locks) = world();
    let started = clock.now();
    let guard = locks.mutex("door").ttl(secs(30)).acquire().await.unwrap();
    store.fated(Fate::Slow);
    tokio::time::sleep(secs(35)).await;
    let times: Vec<Duration> = store.renewals().iter().map(|(at, _)| at.since(started)).collect();
    assert_eq!(times, [secs(10), secs(20), secs(30)]);
    assert_eq!(guard.lease_remaining(), secs(25), "of the one that was sent five seconds ago");
    assert!(SLOW < LIMIT);
}

/// A renewal that failed is tried again soon, in measured steps.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_failed_is_tried_again_soon() {
    let (_clock, store, locks) = world();
    let guard = locks.mutex("door").ttl(secs(30)).acquire().await.unwrap();
    store.fated(Fate::Fails);
    tokio::time::sleep(secs(20)).await;
    let times: Vec<_> = store.renewals().into_iter().map(|(at, _)| at).collect();
    let pauses: Vec<Duration> = times.windows(2).map(|pair| pair[1].since(pair[0])).collect();
    assert!(pauses.len() > 20, "{pauses:?}");
    assert!(pauses.iter().all(|pause| (ms(187)..=ms(314)).contains(pause)), "{pauses:?}");
    assert_eq!(guard.state(), State::Jeopardy);
}

/// The watchdog sleeps until the first deadline of any lease.
#[tokio::test(start_paused = true)]
async fn a_short_lease_after_a_long_one_is_renewed_in_its_time() {
    let (_clock, store, locks) = world();
    let long = locks.mutex("long").ttl(LONG * 60).acquire().await.unwrap();
    tokio::time::sleep(ms(10)).await;
    let short = locks.mutex("short").ttl(secs(3)).acquire().await.unwrap();
    let fixed = locks.mutex("fixed").ttl(secs(2)).fixed_lease().acquire().await.unwrap();
    let cancelled = fixed.cancellation();
    timeout(secs(2), cancelled.cancelled()).await.expect("nobody looks at its deadline");
    tokio::time::sleep(LONG).await;
    assert_eq!((long.state(), short.state()), (State::Held, State::Held));
    assert!((50..=70).contains(&store.renewals().len()), "{} renewals", store.renewals().len());
}

/// A renewal that is under way stays under way when somebody else comes by. It is not sent twice.
#[tokio::test(start_paused = true)]
async fn what_is_under_way_is_not_sent_again() {
    let (_clock, store, locks) = world();
    let held = locks.mutex("held").ttl(secs(3)).acquire().await.unwrap();
    let dropped = locks.mutex("dropped").ttl(LONG).acquire().await.unwrap();
    tokio::time::sleep(ms(500)).await;
    store.fated(Fate::Slow);
    drop(dropped);
    tokio::time::sleep(ms(20)).await;
    let other = locks.mutex("other").ttl(LONG).acquire();
    let third = locks.mutex("third").ttl(secs(2)).acquire();
    let (other, third) = tokio::join!(other, third);
    locks.flush_releases().await;
    assert_eq!(store.released().len(), 1);
    store.fated(Fate::Works);
    tokio::time::sleep(secs(10)).await;
    assert!([held, other.unwrap(), third.unwrap()].iter().all(|guard| guard.state() == State::Held));
    let renewed = store.renewals().into_iter().flat_map(|(_, leases)| leases).filter(|lease| lease.name.as_str() == "held");
    assert!(renewed.count() <= 11);
}

/// However many come and go, one task renews their leases, and it ends with the locker.
#[tokio::test(start_paused = true)]
async fn one_task_looks_after_all_and_ends_with_the_locker() {
    let (clock, store, locks) = world();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let handles = store.handles();
    let guards = [locks.mutex("a").ttl(secs(2)).acquire().await.unwrap(), locks.mutex("b").ttl(secs(3)).acquire().await.unwrap()];
    for _ in 0..100 {
        tokio::time::sleep(ms(50)).await;
        drop(locks.mutex("brief").ttl(secs(2)).acquire().await.unwrap());
        assert_eq!(tasks(), before + 1);
    }
    locks.flush_releases().await;
    drop(guards);
    store.fated(Fate::Fails);
    drop(locks);
    // Not before the last release went through.
    tokio::time::sleep(ms(200)).await;
    assert_eq!(tasks(), before + 1);
    store.fated(Fate::Works);
    until(|| tasks() == before).await;
    assert_eq!(store.handles(), handles - 1, "something still holds the connection");
    assert_eq!(store.inspect(None).await.unwrap(), []);
    drop(clock);
}

/// A store that panics once costs a task, and no lock; the next task waits a moment before it tries again.
#[tokio::test(start_paused = true)]
async fn a_panic_in_a_store_costs_no_lock() {
    let (_clock, store, locks) = world();
    let guard = locks.mutex("door").ttl(secs(2)).acquire().await.unwrap();
    let dropped = locks.mutex("dropped").ttl(LONG).acquire().await.unwrap();
    store.fated(Fate::Panics);
    until(|| store.fate() == Fate::Works).await;
    drop(dropped);
    tokio::time::sleep(secs(3)).await;
    assert_eq!(guard.state(), State::Held);
    let times: Vec<_> = store.renewals().into_iter().map(|(at, _)| at).collect();
    assert_eq!(times[1].since(times[0]), ms(100));
    assert_eq!(store.released().len(), 1);
}

/// One short lock among long ones renews on its own terms.
#[tokio::test(start_paused = true)]
async fn a_short_lease_does_not_hurry_the_long_ones() {
    let (clock, store, locks) = world_with(|features| features.operation_timeout = None);
    store.fated(Fate::SlowByLease);
    let mut guards = Vec::new();
    for i in 0..200 {
        guards.push(locks.mutex(format!("door {i}")).ttl(secs(4)).acquire().await.unwrap());
    }
    let started = clock.now();
    while clock.now().since(started) < secs(60) {
        if let Ok(short) = locks.mutex("short").ttl(ms(300)).acquire().await {
            tokio::time::sleep(ms(150)).await;
            drop(short);
        }
    }
    let held = guards.iter().filter(|guard| guard.state() != State::Lost).count();
    assert_eq!(held, guards.len());
}

/// Nobody comes by: the task that failed starts the next one itself.
#[tokio::test(start_paused = true)]
async fn a_panic_is_followed_by_a_task_that_renews() {
    let (_clock, store, locks) = world();
    let guard = locks.mutex("door").ttl(secs(3)).acquire().await.unwrap();
    store.fated(Fate::Panics);
    tokio::time::sleep(LONG).await;
    assert_eq!(guard.state(), State::Held);
}

/// Nothing is due for a long time: the task ends all the same, and lets go of the store.
#[tokio::test(start_paused = true)]
async fn a_task_that_sleeps_ends_with_its_locker() {
    let (_clock, store, locks) = world();
    let _lease = locks.mutex("door").ttl(LONG * 60).acquire().await.unwrap().into_lease();
    settle().await;
    drop(locks);
    settle().await;
    assert_eq!((store.handles(), tokio::runtime::Handle::current().metrics().num_alive_tasks()), (1, 0));
}
