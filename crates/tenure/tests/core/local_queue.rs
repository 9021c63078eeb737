//! Leaders of a local queue, and what becomes of the role and of its state.

use std::pin::pin;
use std::task::{Context, Waker};

use tenure::store::{Enqueue, Notice};
use tenure::{Clock, State};
use tokio::time::timeout;

use crate::scripted_store::{Call, Fate, Hints, ScriptedStore};
use crate::{LONG, SOON, door, locker, ms, released, served, settle, waiter, world};

fn joins(store: &ScriptedStore) -> usize {
    let joins = |call: &Call| matches!(call, Call::Acquire(request) if matches!(request.enqueue, Enqueue::Join { .. }));
    store.calls().iter().filter(|(_, call)| joins(call)).count()
}

/// The new leader leaves before it wakes: the next waiter gets the role, and the queue entry.
#[tokio::test(start_paused = true)]
async fn a_role_that_was_never_heard_of_passes_on_with_what_was_reached() {
    let (clock, store, locks) = world();
    let guard = door(&locker(&clock, &store)).acquire().await.unwrap();
    // All make an attempt at the same time, so each has a token of its own.
    store.fated(Fate::Slow);
    let [first, second, third] = [0; 3].map(|_| tokio::spawn(door(&locks).acquire()));
    tokio::time::sleep(ms(1_000)).await;
    store.fated(Fate::Works);
    tokio::time::sleep(ms(1_000)).await;
    assert_eq!(locks.inspect("door").await.unwrap().unwrap().waiters.len(), 1, "one place for all");
    store.forget_calls();
    first.abort();
    third.abort();
    tokio::time::sleep(ms(3_000)).await;
    assert_eq!((joins(&store), store.released().len()), (0, 0), "the place was given up: {:?}", store.calls());
    released(guard).await;
    released(timeout(SOON, second).await.expect("nobody asks for it").unwrap().unwrap()).await;
}

/// The new leader polls as the notice of the leader before it says.
#[tokio::test(start_paused = true)]
async fn a_notice_is_not_lost_with_the_task_that_heard_it() {
    let (clock, store, locks) = world();
    let _guard = door(&locker(&clock, &store)).acquire().await.unwrap();
    store.hints(Hints::Pushed);
    let (driver, _next) = (waiter(door(&locks)).await, waiter(door(&locks)).await);
    store.fated(Fate::Hangs);
    store.push(&Notice::Changed);
    settle().await;
    driver.abort();
    store.fated(Fate::Works);
    store.forget_calls();
    settle().await;
    assert_eq!(store.acquires().len(), 1, "it waits for its heartbeat");
}

/// Waiters with other settings wait while the handoffs last, and no longer.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_turn_is_told_to_those_who_sat_it_out() {
    let (clock, store, locks) = world();
    let guard = door(&locker(&clock, &store)).acquire().await.unwrap();
    let first = waiter(door(&locks)).await;
    released(guard).await;
    let guard = served(first).await;
    let other = waiter(door(&locks).label("another")).await;
    store.forget_calls();
    tokio::time::sleep(ms(3)).await;
    assert!(store.acquires().is_empty(), "it asks while the name is passed on here");
    let ended = clock.now();
    released(guard).await;
    let _other = served(other).await;
    assert_eq!(clock.now(), ended);
}

/// Served while it stood still, for longer than the lease: it has its old position in the local
/// queue, at the front.
#[tokio::test(start_paused = true)]
async fn whoever_slept_through_its_turn_is_the_next() {
    let (clock, _store, locks) = world();
    let mut context = Context::from_waker(Waker::noop());
    let guard = door(&locks).acquire().await.unwrap();
    let mut stopped = pin!(door(&locks).acquire());
    assert!(stopped.as_mut().poll(&mut context).is_pending());
    settle().await;
    assert!(stopped.as_mut().poll(&mut context).is_pending());
    let other = waiter(door(&locks)).await;
    released(guard).await;
    clock.pause(LONG * 2);
    let guard = timeout(SOON, stopped).await.expect("the waiter was forgotten").unwrap();
    assert!(guard.state() == State::Held && !other.is_finished(), "it was overtaken");
}
