//! All of several stores: their order, and faults of one of them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tenure::compose::AllOf;
use tenure::store::{AcquireReply, Busy, ReleaseReply, RenewReply, Request, Store};
use tenure::{ErrorKind, Lease, Locker, MemoryStore, Name, Owner, Share};
use tenure_conformance::{Fate, Faulty, Operation};
use tokio::time::{Instant, timeout};

use crate::{LONG, SOON, door, ms, released, secs, world_with};

struct Two {
    first: Faulty<MemoryStore>,
    second: Faulty<MemoryStore>,
    both: AllOf,
}

fn two() -> Two {
    let (first, second) = (Faulty::new(MemoryStore::new()), Faulty::new(MemoryStore::new()));
    let both = AllOf::new(vec![Arc::new(first.clone()), Arc::new(second.clone())]).unwrap();
    Two { first, second, both }
}

impl Two {
    /// Whether each of them has anything at the name.
    async fn taken(&self) -> [bool; 2] {
        let mut taken = [false; 2];
        for (taken, store) in taken.iter_mut().zip([&self.first, &self.second]) {
            *taken = !store.inner().inspect(None).await.unwrap().is_empty();
        }
        taken
    }

    async fn is_free_soon(&self) {
        let free = async {
            while self.taken().await != [false; 2] {
                tokio::time::sleep(ms(5)).await;
            }
        };
        timeout(SOON, free).await.expect("something is left behind");
    }
}

fn request() -> Request {
    Request::new(Name::new("door").unwrap(), Owner::generate("test").unwrap(), Share::MUTEX, LONG)
}

async fn granted(store: &dyn Store, request: &Request) -> Lease {
    match store.acquire(request).await.unwrap() {
        AcquireReply::Granted(grant) => request.lease().with_fence(grant.fence),
        other => panic!("{other:?}"),
    }
}

async fn busy(store: &dyn Store, request: &Request) -> Busy {
    match store.acquire(request).await.unwrap() {
        AcquireReply::Busy(busy) => busy,
        other => panic!("{other:?}"),
    }
}

async fn release(store: &dyn Store, lease: &Lease) -> ReleaseReply {
    store.release(lease, Duration::ZERO).await.unwrap()
}

#[test]
fn one_store_is_not_several() {
    let error = AllOf::new(vec![Arc::new(MemoryStore::new())]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let error = two().both.with_fence_of(2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

/// A client that takes the lock of one store alone has fences that compare with ours.
#[tokio::test]
async fn the_fence_is_that_of_the_chosen_store() {
    let world = two();
    for _ in 0..5 {
        let alone = granted(&world.second, &request()).await;
        release(&world.second, &alone).await;
    }
    for (at, counter) in [(0, 1), (1, 7)] {
        let both = world.both.clone().with_fence_of(at).unwrap();
        let lease = granted(&both, &request()).await;
        assert_eq!(lease.fence.unwrap().counter(), counter);
        let [entry] = &both.inspect(None).await.unwrap()[..] else { panic!("one name is held") };
        assert_eq!(entry.holders[0].fence, lease.fence);
        assert_eq!(release(&both, &lease).await, ReleaseReply::Released);
    }
}

#[tokio::test]
async fn it_is_taken_in_order_and_released_in_the_reverse_order() {
    let world = two();
    world.second.at(Operation::Acquire, 1, Fate::HangsBefore);
    let asked = request();
    let acquiring = tokio::spawn({
        let (both, asked) = (world.both.clone(), asked.clone());
        async move { granted(&both, &asked).await }
    });
    world.second.called(Operation::Acquire, 1).await;
    assert_eq!(world.taken().await, [true, false]);
    world.second.heal();
    let lease = acquiring.await.unwrap();
    world.first.at(Operation::Release, 1, Fate::HangsBefore);
    let releasing = tokio::spawn({
        let both = world.both.clone();
        async move { release(&both, &lease).await }
    });
    world.first.called(Operation::Release, 1).await;
    assert_eq!(world.taken().await, [true, false]);
    world.first.heal();
    assert_eq!(releasing.await.unwrap(), ReleaseReply::Released);
}

#[tokio::test]
async fn nothing_is_kept_while_another_store_is_busy() {
    let world = two();
    let alone = granted(&world.second, &request()).await;
    let answer = busy(&world.both, &request()).await;
    assert_eq!(answer.holder.unwrap().owner, alone.owner);
    assert_eq!(world.taken().await, [false, true]);
    // If the first cannot be released, the caller has to do it.
    world.first.at(Operation::Release, 1, Fate::Lost);
    let error = world.both.acquire(&request()).await.unwrap_err();
    assert!(error.is_transient() && error.may_have_been_applied(), "{error}");
    assert_eq!(world.taken().await, [true, true]);
}

#[tokio::test(start_paused = true)]
async fn a_silent_second_store_is_reported_in_time_and_nothing_is_left() {
    let world = two();
    world.second.plan(|_, _| Fate::HangsBefore);
    let began = Instant::now();
    let error = world.both.acquire(&request()).await.unwrap_err();
    assert_eq!(began.elapsed(), secs(1), "one operation timeout");
    assert!(error.kind() == ErrorKind::Unreachable && error.may_have_been_applied(), "{error}");
    assert!(error.to_string().contains("memory"), "it does not say which: {error}");
    world.first.inner().release(&request().lease(), Duration::ZERO).await.unwrap();
}

/// Through a locker, which cleans up: the reply of a store is lost, or the request. Another who asks meets a name that is free
/// everywhere, though the one who tried once is gone.
#[tokio::test(start_paused = true)]
async fn a_lost_reply_costs_a_try_and_leaves_nothing() {
    for fate in [Fate::FailsAfter, Fate::Lost, Fate::FailsBefore, Fate::HangsBefore, Fate::HangsAfter] {
        for (first, once) in [(true, false), (false, false), (false, true)] {
            let world = two();
            let locks = Locker::new(world.both.clone());
            let faulty = if first { &world.first } else { &world.second };
            faulty.at(Operation::Acquire, 1, fate);
            if once {
                locks.mutex("door").try_acquire().await.unwrap_err();
            } else {
                let guard = locks.mutex("door").wait(secs(30)).acquire().await.unwrap();
                assert!(faulty.calls(Operation::Acquire) > 1);
                let entries = world.both.inspect(None).await.unwrap();
                assert_eq!(entries[0].holders[0].owner, *guard.token(), "{fate:?}");
                guard.release().await.unwrap();
            }
            // What hangs goes on for nobody.
            world.is_free_soon().await;
        }
    }
}

#[tokio::test]
async fn a_supplied_token_is_released_where_it_was_granted_and_nowhere_else() {
    let world = two();
    let supplied = || request().with_owner(Owner::from_bytes(&b"fixed"[..])).with_generated(false);
    // Another client's, with the same token.
    granted(&world.second, &supplied()).await;
    busy(&world.both, &supplied()).await;
    assert_eq!(world.taken().await, [false, true]);
    world.second.at(Operation::Acquire, 1, Fate::Lost);
    let error = world.both.acquire(&supplied()).await.unwrap_err();
    assert!(error.may_have_been_applied(), "{error}");
    assert_eq!(world.taken().await, [false, true]);
    world.second.at(Operation::Acquire, 1, Fate::FailsBefore);
    let error = world.both.acquire(&supplied()).await.unwrap_err();
    assert!(!error.may_have_been_applied(), "{error}");
    assert_eq!(world.taken().await, [false, true]);
}

/// The first store forgets: the next client takes it there, and meets the holder in the second.
#[tokio::test]
async fn one_store_that_forgets_gives_the_name_to_nobody_else() {
    let world = two();
    let lease = granted(&world.both, &request()).await;
    release(&world.first, &lease).await;
    busy(&world.both, &request()).await;
    assert_eq!(world.taken().await, [false, true]);
    assert_eq!(*world.both.renew(std::slice::from_ref(&lease)).await[0].as_ref().unwrap(), RenewReply::Gone);
    // Its holder learns it now, and has its time to stop.
    busy(&world.both, &request()).await;
    assert_eq!(world.taken().await, [false, true]);
    assert_eq!(release(&world.both, &lease).await, ReleaseReply::NotHeld);
    assert_eq!(world.taken().await, [false, false]);
}

/// It keeps the name taken at the other until the holder has stopped.
#[tokio::test]
async fn a_guard_ends_when_one_store_has_lost_its_lease() {
    for first in [true, false] {
        let world = two();
        let locks = Locker::new(world.both.clone());
        let guard = locks.mutex("door").ttl(ms(3_600)).acquire().await.unwrap();
        guard.verify().await.unwrap();
        let store = if first { &world.first } else { &world.second };
        let lease = crate::lease_of(&guard);
        assert_eq!(release(store.inner(), &lease).await, ReleaseReply::Released);
        let entry = locks.inspect("door").await.unwrap().expect("it is not free");
        assert_eq!(entry.holders[0].owner, guard.token().lingering());
        timeout(SOON, guard.lost()).await.expect("it is lost at its next renewal");
        assert_eq!(world.taken().await, [!first, first], "it is free before the holder has stopped");
        world.is_free_soon().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_needs_every_store() {
    let world = two();
    let lease = granted(&world.both, &request()).await;
    for fate in [Fate::Lost, Fate::FailsAfter, Fate::HangsBefore] {
        world.second.at(Operation::Renew, 1, fate);
        let error = world.both.renew(std::slice::from_ref(&lease)).await.remove(0).unwrap_err();
        assert!(error.is_transient() && error.may_have_been_applied(), "{error}");
    }
    assert_eq!(world.both.renew(&[lease]).await.remove(0).unwrap(), RenewReply::Renewed);
}

#[tokio::test(start_paused = true)]
async fn a_silent_store_keeps_no_other_from_being_released() {
    let world = two();
    let lease = granted(&world.both, &request()).await;
    world.second.plan(|_, _| Fate::HangsBefore);
    // One that answers at once needs no time.
    world.first.plan(|_, _| Fate::Yields);
    let began = Instant::now();
    let error = world.both.release(&lease, Duration::ZERO).await.unwrap_err();
    assert!(error.may_have_been_applied() && began.elapsed() <= secs(1), "{error}");
    assert_eq!(world.taken().await, [false, true]);
    world.second.heal();
    // It was not the owner's any more in the first.
    assert_eq!(release(&world.both, &lease).await, ReleaseReply::NotHeld);
    assert_eq!(world.taken().await, [false, false]);
}

/// A holder that asks for a smaller share keeps its lease when the answer does not come.
#[tokio::test]
async fn a_downgrade_that_fails_takes_nothing_from_its_holder() {
    let world = two();
    let writer = request().with_share(Share::WRITE);
    granted(&world.both, &writer).await;
    world.second.at(Operation::Acquire, 1, Fate::Lost);
    let reader = writer.with_share(Share::READ);
    let error = world.both.acquire(&reader).await.unwrap_err();
    assert!(error.may_have_been_applied(), "{error}");
    assert_eq!(world.taken().await, [true, true]);
    granted(&world.both, &reader).await;
    assert_eq!(release(&world.both, &reader.lease()).await, ReleaseReply::Released);
}

/// The lease goes back to its old owner where it was taken over. A silent store is not waited for before that.
#[tokio::test(start_paused = true)]
async fn an_adoption_that_fails_takes_nothing_from_the_old_owner() {
    for fate in [Fate::Fails(ErrorKind::Unavailable), Fate::Lost, Fate::FailsAfter, Fate::HangsBefore] {
        let world = two();
        let held = granted(&world.both, &request()).await;
        world.second.plan(move |_, _| fate);
        let error = world.both.acquire(&request().with_from(held.owner.clone())).await.unwrap_err();
        assert!(error.may_have_been_applied(), "{error}");
        let renewed = world.first.inner().renew(std::slice::from_ref(&held)).await;
        assert!(matches!(renewed[..], [Ok(RenewReply::Renewed)]), "{error}: {renewed:?}");
    }
}

/// Dropped at each of its polls: what it may have left, its release clears.
#[tokio::test]
async fn a_call_dropped_at_any_await_leaves_what_a_release_clears() {
    for call in ["acquire", "busy", "renew", "release"] {
        for polls in 1.. {
            let world = two();
            let asked = request();
            if call != "acquire" {
                granted(if call == "busy" { &world.second as &dyn Store } else { &world.both }, &asked).await;
            }
            for store in [&world.first, &world.second] {
                store.plan(|_, _| Fate::Yields);
            }
            let (leases, other) = ([asked.lease()], request());
            let dropped = match call {
                "acquire" => polled(polls, world.both.acquire(&asked)).await,
                "busy" => polled(polls, world.both.acquire(&other)).await,
                "renew" => polled(polls, world.both.renew(&leases)).await,
                _ => polled(polls, world.both.release(&leases[0], Duration::ZERO)).await,
            };
            world.first.heal();
            world.second.heal();
            for owner in [&asked, &other] {
                world.both.release(&owner.lease(), Duration::ZERO).await.unwrap();
            }
            world.is_free_soon().await;
            granted(&world.both, &request()).await;
            if !dropped {
                assert!(polls > 2, "{call} gave way at no store");
                break;
            }
        }
    }
}

/// Such a store has released by then whatever it took before another refused: the token is used up.
#[tokio::test(start_paused = true)]
async fn a_refused_try_is_not_repeated_with_its_token() {
    let (_, store, locks) = world_with(|features| {
        (features.token_per_try, features.queue) = (true, false);
    });
    store.answers([AcquireReply::Refused { until: secs(1), why: "it may have forgotten leases".to_owned() }]);
    let guard = door(&locks).acquire().await.unwrap();
    let [(_, first), (_, second)] = &store.acquires()[..] else { panic!("two tries") };
    assert_ne!(first, second);
    released(guard).await;
}

/// Polls a call so many times and drops it. Returns whether it was dropped before its end.
async fn polled(polls: usize, call: impl Future) -> bool {
    let mut call = Box::pin(call);
    for _ in 0..polls {
        if call.as_mut().now_or_never().is_some() {
            return false;
        }
        tokio::task::yield_now().await;
    }
    true
}

/// Its holder needs time to stop, also if a downgrade is how it learns of the loss.
#[tokio::test]
async fn what_a_downgrade_finds_gone_keeps_the_name_taken_elsewhere() {
    let world = two();
    let locks = Locker::new(world.both.clone());
    let guard = locks.write("door").acquire().await.unwrap();
    let lost = Lease::new(Name::new("door").unwrap(), guard.token().clone(), Share::WRITE, LONG);
    release(&world.second, &lost).await;
    let error = guard.downgrade(Share::READ).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(world.taken().await, [true, false], "until the guard is released or dropped");
    drop(guard);
    world.is_free_soon().await;
}
