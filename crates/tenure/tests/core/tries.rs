//! One attempt after another: the token that each uses, what may be left at the store, and who
//! releases it.

use std::collections::BTreeSet;

use tenure::{Acquire, Clock, Error, ErrorKind, Guard, Locker, Owner, State};
use tokio::time::timeout;

use crate::scripted_store::{Fate, SLOW, ScriptedStore};
use crate::test_clock::TestClock;
use crate::{LIMIT, LONG, SOON, door, lease_of, locker, ms, secs, world, world_with};

/// Acquires at a store that has answered before, loses the answer to the first try, and meets `then` in all later ones.
async fn first_unheard(store: &ScriptedStore, locks: &Locker, acquire: Acquire, then: Fate) -> Result<Guard, Error> {
    let _ = locks.mutex("warm").acquire().await?.release().await?;
    store.forget_calls();
    store.fated(Fate::Unheard);
    let waiting = tokio::spawn(acquire.acquire());
    store.called().await;
    store.fated(then);
    let acquired = timeout(SOON, waiting).await.expect("it hangs").unwrap();
    store.fated(Fate::Works);
    acquired
}

#[tokio::test(start_paused = true)]
async fn an_unheard_grant_is_found_again_under_the_same_token() {
    let (_clock, store, locks) = world();
    let guard = first_unheard(&store, &locks, door(&locks), Fate::Works).await.unwrap();
    let asked: BTreeSet<Owner> = store.acquires().into_iter().map(|(_, owner)| owner).collect();
    assert_eq!(asked, BTreeSet::from([guard.token().clone()]));
}

#[tokio::test(start_paused = true)]
async fn belief_counts_from_the_send_and_not_from_the_answer() {
    let (_clock, store, locks) = world();
    store.fated(Fate::Slow);
    let ttl = secs(3);
    let guard = locks.mutex("door").ttl(ttl).acquire().await.unwrap();
    assert!(
        guard.lease_remaining() <= ttl.saturating_sub(SLOW),
        "{:?} of a grant that was {SLOW:?} on its way",
        guard.lease_remaining()
    );
    guard.extend(ttl * 2).await.unwrap();
    assert!(guard.lease_remaining() <= (ttl * 2).saturating_sub(SLOW), "{:?} of a renewal", guard.lease_remaining());
    store.fated(Fate::Works);
}

#[tokio::test(start_paused = true)]
async fn a_try_that_is_unheard_says_so_and_is_cleared_up() {
    let (_clock, store, locks) = world();
    for fate in [Fate::Unheard, Fate::Hangs] {
        store.fated(fate);
        let error = locks.mutex("door").ttl(LONG).try_acquire().await.unwrap_err();
        assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Unreachable, true));
        store.fated(Fate::Works);
        store.forget_calls();
        timeout(SOON, locks.flush_releases()).await.unwrap();
        assert_eq!(locks.list().await.unwrap(), [], "{fate:?}");
        assert_eq!(store.released().len(), 1, "{fate:?}: nothing of it can come later");
    }
}

/// A call may take its time, and no longer.
#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_is_given_up_after_its_limit() {
    let (clock, store, locks) = world();
    store.fated(Fate::Hangs);
    let started = clock.now();
    locks.mutex("door").ttl(LONG).try_acquire().await.unwrap_err();
    assert_eq!(clock.now().since(started), LIMIT);
    let (clock, store, locks) = world_with(|features| features.operation_timeout = None);
    store.fated(Fate::Hangs);
    for (ttl, limit) in [(LONG, secs(1)), (secs(3), ms(500))] {
        let started = clock.now();
        locks.mutex("door").ttl(ttl).try_acquire().await.unwrap_err();
        assert_eq!(clock.now().since(started), limit, "of a ttl of {ttl:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_cleared_up_where_nothing_can_be() {
    let (_clock, store, locks) = world();
    let guard = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
    assert!(locks.mutex("door").ttl(LONG).try_acquire().await.unwrap().is_none());
    store.fated(Fate::Fails);
    assert!(!locks.mutex("door").ttl(LONG).try_acquire().await.unwrap_err().may_have_been_applied());
    store.fated(Fate::Works);
    locks.flush_releases().await;
    assert_eq!(store.released(), [], "a busy answer and a failed send leave nothing to release");
    assert_eq!(guard.state(), State::Held);
}

/// The last release is sent after the end, and not only answered then.
#[tokio::test(start_paused = true)]
async fn late_commands_are_cleared_up_after_until_they_cannot_come() {
    for fate in [Fate::Works, Fate::Slow] {
        let (clock, store, locks) = world_with(|features| features.late_commands = true);
        let ttl = secs(2);
        store.fated(Fate::Unheard);
        let started = clock.now();
        let error = locks.mutex("door").ttl(ttl).try_acquire().await.unwrap_err();
        assert!(error.may_have_been_applied());
        store.fated(fate);
        timeout(SOON, locks.flush_releases()).await.unwrap();
        let releases = store.releases();
        let last = releases.last().unwrap().0.since(started);
        assert!(last >= ttl && releases.len() > 1, "{fate:?}: settled after {last:?}, when the acquire may still run");
    }
}

/// A guard whose first request was unanswered is given up like that request, though a later one was
/// answered.
#[tokio::test(start_paused = true)]
async fn a_guard_does_not_forget_the_try_that_was_unheard() {
    for dropped in [false, true] {
        let (clock, store, locks) = world_with(|features| features.late_commands = true);
        let ttl = secs(2);
        let guard = first_unheard(&store, &locks, locks.mutex("door").ttl(ttl), Fate::Works).await.unwrap();
        let started = clock.now();
        if dropped {
            drop(guard);
        } else {
            let _ = guard.release().await.unwrap();
        }
        timeout(SOON, locks.flush_releases()).await.unwrap();
        assert!(clock.now().since(started) >= ttl, "dropped {dropped}: the unheard acquire may still run");
    }
}

#[tokio::test(start_paused = true)]
async fn answered_tries_are_not_cleared_up_after_for_ever() {
    let (_clock, store, locks) = world_with(|features| features.late_commands = true);
    let guard = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
    for _ in 0..20 {
        assert!(locks.mutex("door").ttl(LONG).try_acquire().await.unwrap().is_none());
    }
    drop(guard);
    timeout(secs(1), locks.flush_releases()).await.expect("an answered release is repeated");
    assert_eq!(store.released().len(), 1);
}

/// The machine sleeps longer than the lease between the grant and its answer.
async fn answered_too_late(clock: &TestClock, store: &ScriptedStore, acquire: Acquire) -> Result<Guard, Error> {
    store.fated(Fate::Hangs);
    let waiting = tokio::spawn(acquire.acquire());
    store.called().await;
    clock.sleep(secs(70));
    store.answer();
    timeout(SOON, waiting).await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_came_too_late_is_not_believed() {
    let (clock, store, locks) = world();
    let guard = answered_too_late(&clock, &store, door(&locks)).await.unwrap();
    assert_eq!(guard.state(), State::Held);
    locks.flush_releases().await;
    let asked = store.acquires();
    assert!(asked.len() >= 2 && asked[0].1 != *guard.token(), "the token of the late grant was used again");
    assert!(store.released().contains(&asked[0].1), "what came too late was not given up");
    // With a supplied token there is no other token to go on with.
    let (clock, store, locks) = world();
    let acquire = door(&locks).token(Owner::from_bytes(&b"fixed"[..]));
    let error = answered_too_late(&clock, &store, acquire).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Unreachable, true));
    locks.flush_releases().await;
    assert_eq!((store.acquires().len(), store.released().len()), (1, 0));
}

/// Waiting does not help against a store that refuses.
#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_at_once() {
    let (clock, store, locks) = world();
    let guard = locks.mutex("gate").ttl(LONG).acquire().await.unwrap();
    store.fated(Fate::Says(ErrorKind::Refused));
    let started = clock.now();
    assert_eq!(locks.mutex("door").ttl(LONG).acquire().await.unwrap_err().kind(), ErrorKind::Refused);
    assert_eq!(locks.mutex("door").ttl(LONG).try_acquire().await.unwrap_err().kind(), ErrorKind::Refused);
    assert_eq!(clock.now(), started);
    let other = locker(&clock, &store);
    assert_eq!(other.renew(&lease_of(&guard)).await.unwrap_err().kind(), ErrorKind::Refused);
}

/// Several names are valid from the sending of their request, as one is.
#[tokio::test(start_paused = true)]
async fn belief_in_several_counts_from_the_send() {
    let (_clock, store, locks) = world();
    store.fated(Fate::Slow);
    let guards = locks.mutex("a").ttl(LONG).and("b").acquire().await.unwrap();
    assert_eq!(guards.lease_remaining(), LONG.saturating_sub(SLOW));
    store.fated(Fate::Works);
}

/// That later tries certainly failed says nothing of the first.
#[tokio::test(start_paused = true)]
async fn an_unheard_try_is_cleared_up_after_whatever_came_later() {
    let (_clock, store, locks) = world();
    let error = first_unheard(&store, &locks, door(&locks).wait(secs(1)), Fate::Fails).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Unreachable, false));
    timeout(SOON, locks.flush_releases()).await.unwrap();
    assert_eq!(locks.list().await.unwrap(), [], "the name was orphaned");
}

/// Another owner's lease on the name does not say that an unanswered request will not run.
#[tokio::test(start_paused = true)]
async fn an_unheard_try_that_found_it_busy_later_is_cleared_up() {
    let (clock, store, locks) = world_with(|features| features.late_commands = true);
    let _held = locker(&clock, &store).mutex("door").ttl(LONG).acquire().await.unwrap();
    let acquire = locks.mutex("door").ttl(secs(2)).wait(secs(1));
    assert_eq!(first_unheard(&store, &locks, acquire, Fate::Works).await.unwrap_err().kind(), ErrorKind::TimedOut);
    timeout(SOON, locks.flush_releases()).await.unwrap();
    let unheard = &store.acquires()[0].1;
    assert!(store.released().contains(unheard), "it may run late, and nobody would know of it");
}

/// A queue entry outlasts the ttl of its request, and so does its release.
#[tokio::test(start_paused = true)]
async fn a_place_is_cleared_up_for_as_long_as_it_may_stand() {
    let (clock, store, locks) = world();
    let _held = locker(&clock, &store).mutex("door").ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(locks.mutex("door").ttl(secs(1)).acquire());
    tokio::time::sleep(ms(100)).await;
    store.fated(Fate::Fails);
    waiting.abort();
    tokio::time::sleep(ms(1_800)).await;
    store.fated(Fate::Works);
    timeout(SOON, locks.flush_releases()).await.unwrap();
    assert_eq!(locks.inspect("door").await.unwrap().unwrap().waiters, []);
}
