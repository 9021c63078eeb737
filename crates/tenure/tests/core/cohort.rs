//! A lease that goes from task to task of one process, without the store.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tenure::{Acquire, EndReason, ErrorKind, Fence, State};
use tokio::time::timeout;

use crate::scripted_store::{Call, Fate, Hints, SLOW, ScriptedStore};
use crate::{LONG, SOON, door, locker, ms, released, secs, served, settle, waiter, world, world_with};

/// Number of releases at the store. A released queue entry has no fence.
fn gives_up(store: &ScriptedStore) -> usize {
    store.calls().iter().filter(|(_, call)| matches!(call, Call::Release(lease, _) if lease.fence.is_some())).count()
}

#[tokio::test(start_paused = true)]
async fn the_next_task_gets_the_lease_with_the_next_fence_and_no_command() {
    let (_clock, store, locks) = world();
    let mut guard = door(&locks).acquire().await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..5 {
        waiters.push(waiter(door(&locks)).await);
    }
    store.forget_calls();
    for (turn, waiter) in waiters.into_iter().enumerate() {
        let (fence, token, lost) = (guard.fence().unwrap(), guard.token().clone(), guard.lost());
        if turn % 2 == 0 {
            released(guard).await;
        } else {
            drop(guard);
        }
        assert_eq!(lost.await, EndReason::Released, "the one before regards itself as the holder still");
        guard = served(waiter).await;
        assert_eq!((guard.fence(), guard.token()), (fence.next(), &token), "not the next in order");
        assert_eq!(guard.state(), State::Held);
    }
    assert!(store.acquires().is_empty() && gives_up(&store) == 0, "{:?}", store.calls());
    released(guard).await;
    assert_eq!(gives_up(&store), 1);
}

/// Other processes have their turn, however many tasks wait here.
#[tokio::test(start_paused = true)]
async fn a_turn_ends_at_the_store() {
    let (clock, store, here) = world();
    let there = locker(&clock, &store);
    let guard = door(&here).acquire().await.unwrap();
    let (first, second) = (waiter(door(&here)).await, waiter(door(&here)).await);
    let other = waiter(door(&there)).await;
    tokio::time::sleep(ms(9)).await;
    released(guard).await;
    let guard = served(first).await;
    assert_eq!(gives_up(&store), 0);
    tokio::time::sleep(ms(2)).await;
    released(guard).await;
    // This process queued at the store first. It has no other entry until it has been served.
    let guard = served(second).await;
    assert_eq!((guard.fence().unwrap().get() % 1_024, gives_up(&store)), (0, 1), "it did not go through the store");
    let third = waiter(door(&here)).await;
    tokio::time::sleep(ms(11)).await;
    released(guard).await;
    let guard = served(other).await;
    assert!(!third.is_finished(), "the other process was overtaken");
    released(guard).await;
    released(served(third).await).await;
}

/// The fence has room for a limited number. The store gives a new one.
#[tokio::test(start_paused = true)]
async fn a_grant_passes_1023_times() {
    let (_clock, store, locks) = world();
    let mut guard = door(&locks).acquire().await.unwrap();
    let (first, mut last) = (guard.fence().unwrap(), guard.fence().unwrap());
    for _ in 0..1_023 {
        let next = waiter(door(&locks)).await;
        released(guard).await;
        guard = served(next).await;
        assert!(guard.fence().unwrap() > last);
        last = guard.fence().unwrap();
    }
    assert_eq!((last.counter(), gives_up(&store)), (first.counter(), 0));
    let next = waiter(door(&locks)).await;
    released(guard).await;
    let guard = served(next).await;
    assert!(guard.fence().unwrap().counter() > first.counter() && gives_up(&store) == 1);
}

/// One task's settings are not another's.
#[tokio::test(start_paused = true)]
async fn only_the_like_of_a_lease_passes() {
    let others: [fn(Acquire) -> Acquire; 7] = [
        |acquire| acquire.ttl(LONG * 2),
        |acquire| acquire.label("another"),
        |acquire| acquire.safety_margin(ms(1)),
        |acquire| acquire.max_hold(LONG),
        Acquire::fixed_lease,
        |acquire| acquire.min_hold(secs(1)),
        |acquire| acquire.linger(secs(1)),
    ];
    for (i, other) in others.into_iter().enumerate() {
        for (held, wanted) in [(false, true), (true, false), (true, true)] {
            let plain_twins = i < 3 && held == wanted;
            let (_clock, store, locks) = world();
            let with = |changed: bool| if changed { other(door(&locks)) } else { door(&locks) };
            let guard = with(held).acquire().await.unwrap();
            let waiter = waiter(with(wanted)).await;
            let counter = guard.fence().unwrap().counter();
            let _ = guard.release().await.unwrap();
            let next = served(waiter).await.fence().unwrap().counter();
            assert_eq!((next == counter, gives_up(&store) == 0), (plain_twins, plain_twins), "case {i}, {held} {wanted}");
        }
    }
}

/// A task's own settings hold for it, whichever task is the leader, and whatever notice it got.
#[tokio::test(start_paused = true)]
async fn time_to_stop_work_that_was_asked_for_is_kept_by_every_hand_over() {
    let (clock, store, here) = world();
    let there = locker(&clock, &store);
    let first = door(&there).acquire().await.unwrap();
    // As much as a task without the setting has in the end, and more than a handed-over lease has.
    let asked = LONG / 10;
    let mut waiters = Vec::new();
    for strict in [false, true, false, true, false] {
        let acquire = if strict { door(&here).safety_margin(asked) } else { door(&here) };
        waiters.push(tokio::spawn(async move {
            let guard = acquire.acquire().await.unwrap();
            let stop = guard.lease_remaining() - guard.remaining();
            assert!(!strict || stop >= asked, "{stop:?} to stop work");
            released(guard).await;
        }));
        settle().await;
    }
    released(first).await;
    for waiter in waiters {
        timeout(SOON, waiter).await.expect("the waiter was forgotten").unwrap();
    }
}

/// The leader polls on behalf of the first waiter, which keeps its turn.
#[tokio::test(start_paused = true)]
async fn who_asked_for_time_to_stop_work_keeps_his_turn() {
    let (clock, store, here) = world();
    let (there, elsewhere) = (locker(&clock, &store), locker(&clock, &store));
    let first = door(&there).acquire().await.unwrap();
    let strict = waiter(door(&here).safety_margin(LONG / 10)).await;
    let lax = waiter(door(&here)).await;
    let other = waiter(door(&elsewhere)).await;
    released(first).await;
    let guard = served(strict).await;
    assert!(!other.is_finished(), "the other process was served before");
    released(guard).await;
    for waiter in [lax, other] {
        released(served(waiter).await).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_carry_it_hands_over_itself() {
    let (_clock, store, locks) = world_with(|features| features.cohort = false);
    let guard = door(&locks).acquire().await.unwrap();
    let waiter = waiter(door(&locks)).await;
    let before: Fence = guard.fence().unwrap();
    released(guard).await;
    assert!(served(waiter).await.fence().unwrap().counter() > before.counter());
    assert_eq!(gives_up(&store), 1);
}

/// Waiters behind the leader name the holder, and the store's trouble, when their time is up.
#[tokio::test(start_paused = true)]
async fn those_who_do_not_ask_the_store_are_told_why_they_wait() {
    let (clock, store, locks) = world();
    let _guard = locker(&clock, &store).mutex("door").label("keeper").ttl(LONG * 10).acquire().await.unwrap();
    let _driver = waiter(door(&locks)).await;
    let error = door(&locks).wait(ms(500)).acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.holder().unwrap().owner.label()), (ErrorKind::TimedOut, Some("keeper")));
    assert!(error.to_string().contains("is held by keeper"), "{error}");
    store.fated(Fate::Fails);
    let error = door(&locks).wait(secs(5)).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    store.fated(Fate::Works);
    tokio::time::sleep(secs(5)).await;
    assert_eq!(door(&locks).wait(ms(500)).acquire().await.unwrap_err().kind(), ErrorKind::TimedOut);
}

/// One entry and one heartbeat, however many tasks wait.
#[tokio::test(start_paused = true)]
async fn a_thousand_tasks_ask_as_often_as_one() {
    let (clock, store, locks) = world();
    store.hints(Hints::Work);
    let guard = locker(&clock, &store).mutex("door").ttl(LONG * 10).acquire().await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..1_000 {
        waiters.push(tokio::spawn(door(&locks).acquire()));
    }
    settle().await;
    // All of them may have made an attempt before the first of them knew that the name was busy.
    tokio::time::sleep(secs(3)).await;
    store.forget_calls();
    tokio::time::sleep(secs(50)).await;
    let asked = store.acquires().len();
    assert!((40..=50).contains(&asked), "{asked} times in 50 s");
    assert_eq!(locks.inspect("door").await.unwrap().unwrap().waiters.len(), 1);
    for waiter in &waiters[..999] {
        waiter.abort();
    }
    released(guard).await;
    released(timeout(SOON, waiters.pop().unwrap()).await.unwrap().unwrap().unwrap()).await;
}

/// The longer lease was for the task that asked, which did not wait for the answer. It may have been sent.
#[tokio::test(start_paused = true)]
async fn an_abandoned_extension_is_not_passed_on() {
    for sent in [false, true] {
        let (_clock, store, locks) = world();
        let guard = door(&locks).acquire().await.unwrap();
        let next = waiter(door(&locks)).await;
        let mut extension = Box::pin(guard.extend(LONG * 60));
        if sent {
            store.fated(Fate::Slow);
            assert!(timeout(ms(1), extension.as_mut()).await.is_err());
        } else {
            let _ = extension.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        drop(extension);
        drop(guard);
        store.fated(Fate::Works);
        let next = served(next).await;
        tokio::time::sleep(SLOW).await;
        assert!(next.lease_remaining() <= LONG, "{:?}", next.lease_remaining());
        store.forget_calls();
        tokio::time::sleep(LONG / 2).await;
        let renewals = store.renewals();
        assert!(!renewals.is_empty() && renewals.iter().all(|(_, leases)| leases[0].ttl == LONG), "{renewals:?}");
    }
}

/// Shares that fit beside each other need no handoffs.
#[tokio::test(start_paused = true)]
async fn readers_of_a_process_come_in_together() {
    let (_clock, _store, locks) = world();
    let writer = locks.write("page").ttl(LONG).acquire().await.unwrap();
    let readers: Vec<_> = (0..200).map(|_| tokio::spawn(locks.read("page").ttl(LONG).acquire())).collect();
    tokio::time::sleep(secs(1)).await;
    released(writer).await;
    let guards = timeout(ms(100), futures_util::future::join_all(readers)).await.expect("they come in one by one");
    assert!(guards.into_iter().all(|guard| guard.unwrap().unwrap().state() == State::Held));
}

/// The guard of a waiter that is dropped before it wakes goes to the next one, and to the store
/// after the last.
#[tokio::test(start_paused = true)]
async fn what_nobody_took_passes_on() {
    let (_clock, store, locks) = world();
    let mut context = Context::from_waker(Waker::noop());
    let guard = door(&locks).acquire().await.unwrap();
    let (mut first, mut second) = (Box::pin(door(&locks).acquire()), Box::pin(door(&locks).acquire()));
    for _ in 0..5 {
        assert!(first.as_mut().poll(&mut context).is_pending() && second.as_mut().poll(&mut context).is_pending());
        settle().await;
    }
    released(guard).await;
    drop(first);
    let Poll::Ready(guard) = second.as_mut().poll(&mut context) else { panic!("it went to nobody") };
    drop(second);
    let guard = guard.unwrap();
    let third = pin!(door(&locks).acquire());
    let mut third = third;
    for _ in 0..5 {
        assert!(third.as_mut().poll(&mut context).is_pending());
        settle().await;
    }
    released(guard).await;
    assert_eq!(gives_up(&store), 0);
    third.set(door(&locks).acquire());
    locks.flush_releases().await;
    assert!(locks.inspect("door").await.unwrap().is_none(), "it was kept by nobody");
}

/// Served while its process stood still, for longer than the lease, and the others left the local
/// queue: it waits on.
#[tokio::test(start_paused = true)]
async fn whoever_slept_through_its_turn_has_another() {
    let (clock, _store, locks) = world();
    let mut context = Context::from_waker(Waker::noop());
    let guard = door(&locks).acquire().await.unwrap();
    let first = waiter(door(&locks)).await;
    let mut stopped = Box::pin(door(&locks).acquire());
    assert!(stopped.as_mut().poll(&mut context).is_pending());
    let last = waiter(door(&locks)).await;
    released(guard).await;
    released(served(first).await).await;
    settle().await;
    last.abort();
    settle().await;
    clock.pause(LONG * 2);
    // The acquisition has the watchdog read its table.
    released(locks.mutex("elsewhere").acquire().await.unwrap()).await;
    let guard = timeout(LONG, stopped).await.expect("the waiter was forgotten").unwrap();
    assert_eq!(guard.state(), State::Held);
}
