//! The core over a store whose answers the test decides: what is asked, how often, and what is made of it.
//!
//! Most of it runs in virtual time, so that a wait of a minute costs nothing and its length can be told to the millisecond.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::unchecked_time_subtraction,
    reason = "a test stops where its set-up does"
)]

mod adopting;
mod blocking;
mod cancelling;
mod cohort;
mod extending;
mod fickle;
mod given;
mod handover;
mod late;
mod losing;
mod machine;
mod memory;
mod multi;
mod passing;
mod reentering;
mod releasing;
mod renewing;
mod rooms;
mod runtimes;
mod settings;
mod tries;
mod waiting;

use std::time::Duration;

use tenure::{Acquire, Guard, Lease, Locker, ReleaseOutcome};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::fickle::Fickle;
use crate::machine::Machine;

const LONG: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(5);
/// How long a call to a [`Fickle`] store may take.
const LIMIT: Duration = Duration::from_millis(200);

/// A machine, a store on its clock, and a locker over it.
fn world() -> (Machine, Fickle, Locker) {
    world_with(|_| ())
}

/// The same, of a store with other features.
fn world_with(change: impl FnOnce(&mut tenure::store::Features)) -> (Machine, Fickle, Locker) {
    let machine = Machine::new();
    let store = Fickle::with(machine.clone(), change);
    let locks = locker(&machine, &store);
    (machine, store, locks)
}

fn locker(machine: &Machine, store: &Fickle) -> Locker {
    Locker::builder(store.clone()).clock(machine.clone()).label("test").build().unwrap()
}

fn lease_of(guard: &tenure::Guard) -> Lease {
    Lease::new(guard.name().clone(), guard.token().clone(), tenure::Share::MUTEX, LONG).with_fence(guard.fence())
}

/// The mutex that most cases are about.
fn door(locks: &Locker) -> Acquire {
    locks.mutex("door").ttl(LONG)
}

/// A task that waits, in the room when this returns.
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
