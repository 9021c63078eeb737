//! The core over a store whose answers the test decides: its requests, their number, and what it
//! makes of the answers.
//!
//! Most of it runs in virtual time. A wait of a minute costs nothing then, and its length is exact
//! to the millisecond.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::unchecked_time_subtraction,
    reason = "a test stops where its set-up does"
)]

mod adopting;
mod all;
mod blocking;
mod cancelling;
mod cohort;
mod credentials;
mod electing;
mod extending;
mod handover;
mod ids;
mod late;
mod local_queue;
mod losing;
mod memory;
mod multi;
mod passing;
mod quorum;
mod reentering;
mod releasing;
mod renewing;
mod runtimes;
mod scripted_store;
mod settings;
mod supplied;
mod test_clock;
mod tries;
mod turns;
mod unequal;
mod waiting;

use std::time::Duration;

use tenure::{Acquire, Guard, Lease, Locker, ReleaseOutcome};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::scripted_store::ScriptedStore;
use crate::test_clock::TestClock;

const LONG: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(5);
/// Timeout of a call to a [`ScriptedStore`].
const LIMIT: Duration = Duration::from_millis(200);

/// A clock, a store on it, and a locker over the store.
fn world() -> (TestClock, ScriptedStore, Locker) {
    world_with(|_| ())
}

/// The same, of a store with other features.
fn world_with(change: impl FnOnce(&mut tenure::store::Features)) -> (TestClock, ScriptedStore, Locker) {
    let clock = TestClock::new();
    let store = ScriptedStore::with(clock.clone(), change);
    let locks = locker(&clock, &store);
    (clock, store, locks)
}

fn locker(clock: &TestClock, store: &ScriptedStore) -> Locker {
    Locker::builder(store.clone()).clock(clock.clone()).label("test").build().unwrap()
}

fn lease_of(guard: &tenure::Guard) -> Lease {
    Lease::new(guard.name().clone(), guard.token().clone(), tenure::Share::MUTEX, LONG).with_fence(guard.fence())
}

/// The mutex that most cases are about.
fn door(locks: &Locker) -> Acquire {
    locks.mutex("door").ttl(LONG)
}

/// Starts a task that waits. It is in the local queue when this returns.
async fn waiter(acquire: Acquire) -> JoinHandle<Guard> {
    let waiter = tokio::spawn(async { acquire.acquire().await.unwrap() });
    settle().await;
    assert!(!waiter.is_finished());
    waiter
}

async fn served(waiter: JoinHandle<Guard>) -> Guard {
    timeout(SOON, waiter).await.expect("the waiter was forgotten").unwrap()
}

async fn released(guard: Guard) {
    assert!(matches!(guard.release().await.unwrap(), ReleaseOutcome::Released));
}

/// Lets every task run until it waits, without any time passing.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

async fn until(condition: impl Fn() -> bool + Send + Sync) {
    let met = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, met).await.expect("the condition is never met");
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
