//! Calls that are dropped before their answer: what the guard claims afterwards is never more than
//! what the store keeps.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tenure::store::Enqueue;
use tenure::{ErrorKind, Guard, Locker, Share, State};
use tokio::time::timeout;

use crate::scripted_store::{Call, Fate, ScriptedStore};
use crate::{LONG, SOON, locker, ms, settle, world};

/// Polls a call once, so that it is under way.
fn begun<F: Future + ?Sized>(call: &mut Pin<Box<F>>) {
    assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "it is over already");
}

async fn writer(locks: &Locker) -> Guard {
    locks.write("page").ttl(LONG).acquire().await.unwrap()
}

/// Begins a downgrade to a reader, and drops it before or after the store has executed it.
fn dropped_downgrade(store: &ScriptedStore, guard: &Guard) {
    store.fated(Fate::Hangs);
    begun(&mut Box::pin(guard.downgrade(Share::READ)));
    store.fated(Fate::Works);
}

/// Shares of the page's holders at the store, in order.
async fn shares(locks: &Locker) -> Vec<Share> {
    let entry = locks.inspect("page").await.unwrap();
    entry.map(|entry| entry.holders.into_iter().map(|holder| holder.share).collect()).unwrap_or_default()
}

/// The store has a reader. The next writer of the process must not take its lease over as a
/// writer's.
#[tokio::test(start_paused = true)]
async fn a_lease_whose_downgrade_was_dropped_is_not_passed_on() {
    let (clock, store, locks) = world();
    let other = locker(&clock, &store);
    let guard = writer(&locks).await;
    let next = tokio::spawn({
        let locks = locks.clone();
        async move { writer(&locks).await }
    });
    settle().await;
    dropped_downgrade(&store, &guard);
    let counter = guard.fence().unwrap().counter();
    drop(guard);
    let next = timeout(SOON, next).await.expect("the waiter was forgotten").unwrap();
    assert!(next.fence().unwrap().counter() > counter, "the lease was passed on within the process");
    assert_eq!(shares(&locks).await, [Share::WRITE]);
    assert!(other.read("page").ttl(LONG).try_acquire().await.unwrap().is_none(), "a reader beside a writer");
}

#[tokio::test(start_paused = true)]
async fn a_guard_whose_downgrade_was_dropped_says_the_smaller_share() {
    for fate in [Fate::Hangs, Fate::Unheard, Fate::Fails] {
        let (_clock, store, locks) = world();
        let guard = writer(&locks).await;
        assert_eq!(guard.share(), Share::WRITE);
        store.fated(fate);
        let downgraded = timeout(ms(1), guard.downgrade(Share::READ)).await;
        assert!(!matches!(downgraded, Ok(Ok(()))), "{fate:?}");
        store.answer();
        assert_eq!((guard.share(), guard.state()), (Share::READ, State::Held), "{fate:?}");
        guard.downgrade(Share::READ).await.unwrap();
        assert_eq!((guard.share(), shares(&locks).await), (Share::READ, vec![Share::READ]), "{fate:?}");
        let error = guard.downgrade(Share::WRITE).await.unwrap_err();
        assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Invalid, false), "{error}");
    }
}

/// Not even at a store without a queue, which knows no heartbeat and would grant a free name.
#[tokio::test(start_paused = true)]
async fn a_downgrade_to_the_same_share_asks_nothing() {
    let (_clock, store, locks) = world();
    let (mutex, writer) = (locks.mutex("door").ttl(LONG).acquire().await.unwrap(), writer(&locks).await);
    store.forget_calls();
    mutex.downgrade(Share::MUTEX).await.unwrap();
    writer.downgrade(Share::WRITE).await.unwrap();
    writer.downgrade(Share::READ).await.unwrap();
    assert_eq!(store.acquires().len(), 1, "{:?}", store.calls());
    writer.downgrade(Share::READ).await.unwrap();
    assert_eq!(store.acquires().len(), 1, "the store has answered that it shrank");
}

/// The answer to the first must not raise what the second has lowered.
#[tokio::test(start_paused = true)]
async fn of_two_downgrades_at_once_the_smaller_share_stays() {
    let (_clock, store, locks) = world();
    let permits = |weight| Share::permits(weight, 3).unwrap();
    let guard = locks.semaphore("pool", 3).permits(3).ttl(LONG).acquire().await.unwrap();
    store.fated(Fate::Slow);
    let mut first = Box::pin(guard.downgrade(permits(2)));
    begun(&mut first);
    begun(&mut Box::pin(guard.downgrade(permits(1))));
    assert_eq!(guard.share(), permits(1));
    first.await.unwrap();
    assert_eq!(guard.share(), permits(1), "it says more than the store keeps");
}

/// Nobody holds the name any more: asking for less of it takes nothing.
#[tokio::test(start_paused = true)]
async fn a_downgrade_of_a_lost_lease_takes_nothing() {
    let (_clock, store, locks) = world();
    let guard = writer(&locks).await;
    let lease = crate::lease_of(&guard).with_share(Share::WRITE);
    // Another process takes it over by its token, and releases it.
    let _ = locks.adopt(&lease).await.unwrap().release().await.unwrap();
    assert_eq!(guard.downgrade(Share::READ).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!((guard.state(), shares(&locks).await), (State::Lost, vec![]));
    let places = store
        .calls()
        .into_iter()
        .filter_map(|(_, call)| if let Call::Acquire(request) = call { Some(request.enqueue) } else { None });
    assert_eq!(places.last(), Some(Enqueue::Heartbeat), "a late one would take the name again after its release");
}

/// The store keeps less than the guard claims: the lease is not that guard's any more.
#[tokio::test(start_paused = true)]
async fn a_guard_that_says_too_much_is_lost_when_it_asks() {
    let (_clock, store, locks) = world();
    let guard = writer(&locks).await;
    let smaller = tenure::store::Request::new(guard.name().clone(), guard.token().clone(), Share::READ, LONG)
        .with_enqueue(Enqueue::Heartbeat);
    assert!(matches!(tenure::store::Store::acquire(&store, &smaller).await.unwrap(), tenure::store::AcquireReply::Granted(_)));
    assert_eq!(guard.verify().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.state(), State::Lost);
}

/// None is forgotten because its release had not begun.
#[tokio::test(start_paused = true)]
async fn everything_is_given_up_though_nobody_waits_for_it() {
    for polls in 0..4 {
        let (_clock, store, locks) = world();
        let mut guards = Vec::new();
        for i in 0..100 {
            guards.push(locks.mutex(format!("door {i}")).ttl(LONG).acquire().await.unwrap());
        }
        store.fated(Fate::Yields);
        let mut all = Box::pin(locks.release_all());
        for _ in 0..polls {
            if matches!(all.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(_)) {
                break;
            }
        }
        drop((all, guards));
        locks.flush_releases().await;
        assert_eq!(locks.list().await.unwrap().len(), 0, "left after {polls} polls");
    }
}
