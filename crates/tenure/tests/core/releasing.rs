//! Releases: their outcomes, what is repeated in the background, and what is left alone.

use std::time::Duration;

use tenure::Clock;
use tenure::{EndReason, ErrorKind, ReleaseOutcome, State};
use tokio::time::timeout;

use crate::scripted_store::{Fate, ScriptedStore};
use crate::{LONG, SOON, lease_of, locker, ms, secs, world};

#[tokio::test(start_paused = true)]
async fn a_release_that_was_answered_is_sent_once_and_ends_the_renewals() {
    let (_clock, store, locks) = world();
    let guard = locks.mutex("door").ttl(secs(3)).acquire().await.unwrap();
    assert!(matches!(guard.release().await.unwrap(), ReleaseOutcome::Released));
    tokio::time::sleep(LONG).await;
    assert_eq!((store.released().len(), store.renewals().len()), (1, 0));
    assert_eq!(locks.list().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_release_without_an_answer_is_unknown_and_goes_on() {
    let (_clock, store, locks) = world();
    let guard = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
    tokio::time::sleep(secs(10)).await;
    store.fated(Fate::Fails);
    match guard.release().await.unwrap() {
        // A renewal that is sent now may be executed last of all.
        ReleaseOutcome::Unknown { until, error } => assert!(until == LONG && error.is_transient(), "{until:?} {error}"),
        other => panic!("{other:?}"),
    }
    tokio::time::sleep(ms(300)).await;
    store.fated(Fate::Works);
    timeout(SOON, locks.flush_releases()).await.unwrap();
    assert_eq!(locks.list().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_dropped_half_way_goes_on() {
    let (_clock, store, locks) = world();
    let guard = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
    store.fated(Fate::Hangs);
    assert!(timeout(ms(50), guard.release()).await.is_err());
    store.fated(Fate::Works);
    timeout(SOON, locks.flush_releases()).await.unwrap();
    assert_eq!(locks.list().await.unwrap(), []);
}

/// A withdrawn permission does not come back: the refusal is reported, and the store asked once.
#[tokio::test(start_paused = true)]
async fn a_refused_release_is_told_and_not_repeated() {
    let (_clock, store, locks) = world();
    for dropped in [false, true] {
        let guard = locks.mutex(format!("door {dropped}")).ttl(LONG).fixed_lease().acquire().await.unwrap();
        store.fated(Fate::Says(ErrorKind::Refused));
        store.forget_calls();
        if dropped {
            drop(guard);
        } else {
            assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Refused);
        }
        timeout(SOON, locks.flush_releases()).await.unwrap();
        assert_eq!(store.released().len(), 1, "dropped {dropped}");
        store.fated(Fate::Works);
    }
}

/// A full disk may have room again, a connection may come back.
#[tokio::test(start_paused = true)]
async fn a_clean_up_that_may_go_through_later_is_repeated() {
    for fate in [Fate::Says(ErrorKind::Damaged), Fate::Says(ErrorKind::Unavailable), Fate::Fails, Fate::Hangs] {
        let (_clock, store, locks) = world();
        let guard = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
        store.fated(fate);
        drop(guard);
        tokio::time::sleep(secs(3)).await;
        assert!(store.released().len() > 3, "{fate:?}: {} tries", store.released().len());
        store.fated(Fate::Works);
        timeout(SOON, locks.flush_releases()).await.unwrap();
        assert_eq!(locks.list().await.unwrap(), [], "{fate:?}");
    }
}

/// Once the lease has ended at the store by itself, nothing is left to release.
#[tokio::test(start_paused = true)]
async fn a_clean_up_ends_with_the_lease() {
    let (clock, store, locks) = world();
    let guard = locks.mutex("door").ttl(secs(3)).acquire().await.unwrap();
    store.fated(Fate::Fails);
    let dropped_at = clock.now();
    drop(guard);
    timeout(secs(4), locks.flush_releases()).await.expect("it is cleared up for ever");
    let took = clock.now().since(dropped_at);
    assert!(took >= secs(3), "given up after {took:?}, when the lease still stood");
}

/// Another client may have held the name after the deadline, whatever the store says now.
#[tokio::test(start_paused = true)]
async fn a_release_after_the_loss_says_so_and_frees_what_is_left() {
    let (_clock, store, locks) = world();
    let guard = locks.mutex("door").ttl(secs(3)).fixed_lease().acquire().await.unwrap();
    assert_eq!(timeout(SOON, guard.lost()).await.unwrap(), EndReason::Expired);
    assert!(matches!(guard.release().await.unwrap(), ReleaseOutcome::WasLost));
    assert_eq!(store.released().len(), 1);
    assert_eq!(locks.list().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_finds_another_says_so() {
    let (clock, store, locks) = world();
    let guard = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
    let _ = locker(&clock, &store).release(&lease_of(&guard)).await.unwrap();
    assert!(matches!(guard.release().await.unwrap(), ReleaseOutcome::WasLost));
}

#[tokio::test(start_paused = true)]
async fn everything_is_given_up_at_once_and_each_once() {
    let (_clock, store, locks) = world();
    let guards = [locks.mutex("door").ttl(LONG).acquire().await.unwrap(), locks.mutex("gate").ttl(LONG).acquire().await.unwrap()];
    let mut outcomes = locks.release_all().await;
    outcomes.sort_by(|a, b| a.0.cmp(&b.0));
    let names: Vec<_> = outcomes.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["door", "gate"]);
    assert!(outcomes.iter().all(|(_, outcome)| matches!(outcome, Ok(ReleaseOutcome::Released))), "{outcomes:?}");
    for guard in guards {
        assert_eq!((guard.state(), guard.end_reason()), (State::Lost, Some(EndReason::Released)));
        assert!(matches!(guard.release().await.unwrap(), ReleaseOutcome::WasLost));
    }
    locks.flush_releases().await;
    assert_eq!(store.released().len(), 2, "a token is released once");
    assert!(locks.release_all().await.is_empty());
}

/// Released early or dropped, the name stays taken by nobody until its shortest hold is over.
#[tokio::test(start_paused = true)]
async fn a_shortest_hold_outlasts_the_guard() {
    for dropped in [false, true] {
        let (clock, store, locks) = world();
        let started = clock.now();
        let min = secs(20);
        let guard = locks.mutex("door").ttl(secs(3)).min_hold(min).acquire().await.unwrap();
        assert_eq!(guard.lease_remaining(), min, "a crash would free it early");
        tokio::time::sleep(secs(5)).await;
        if dropped {
            drop(guard);
        } else {
            assert!(matches!(guard.release().await.unwrap(), ReleaseOutcome::Released));
        }
        locks.flush_releases().await;
        assert_eq!(linger(&store), secs(15), "dropped {dropped}");
        assert!(locks.mutex("door").ttl(LONG).try_acquire().await.unwrap().is_none());
        let _next = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
        let freed = clock.now().since(started);
        assert!(freed >= min && freed < min + secs(2), "free after {freed:?}");
    }
    // One that is over leaves nothing behind.
    let (_clock, store, locks) = world();
    let guard = locks.mutex("door").ttl(secs(3)).min_hold(secs(1)).acquire().await.unwrap();
    tokio::time::sleep(secs(2)).await;
    let _ = guard.release().await.unwrap();
    assert_eq!(linger(&store), Duration::ZERO);
}

fn linger(store: &ScriptedStore) -> Duration {
    store.releases().last().unwrap().2
}

/// A lease that left its guard is not renewed, not released, and not held by the guard.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_passed_on_is_left_alone() {
    let (clock, store, locks) = world();
    let guard = locks.mutex("door").ttl(secs(3)).acquire().await.unwrap();
    let (token, fence, lost) = (guard.token().clone(), guard.fence(), guard.lost());
    let lease = guard.into_lease();
    assert_eq!((&lease.owner, lease.fence, lease.ttl, lease.name.as_str()), (&token, fence, secs(3), "door"));
    assert_eq!(timeout(SOON, lost).await.unwrap(), EndReason::Released);
    tokio::time::sleep(secs(2)).await;
    assert_eq!((store.renewals().len(), store.released().len()), (0, 0));
    assert!(locker(&clock, &store).inspect("door").await.unwrap().is_some());
}

/// A name lingers from its first release, however often the release is sent.
#[tokio::test(start_paused = true)]
async fn a_linger_counts_from_the_first_try() {
    let (clock, store, locks) = world();
    let guard = locks.mutex("door").ttl(LONG).linger(secs(20)).acquire().await.unwrap();
    store.fated(Fate::Fails);
    let free_at = clock.now() + secs(20);
    drop(guard);
    tokio::time::sleep(secs(2)).await;
    store.fated(Fate::Works);
    timeout(SOON, locks.flush_releases()).await.unwrap();
    let releases = store.releases();
    assert!(releases.len() > 3 && releases.iter().all(|(at, _, linger)| *at + *linger == free_at), "{releases:?}");
}

/// A release that takes its time is not overtaken by a renewal.
#[tokio::test(start_paused = true)]
async fn nothing_is_renewed_once_its_release_was_sent() {
    let (_clock, store, locks) = world();
    let guard = locks.mutex("door").ttl(secs(3)).acquire().await.unwrap();
    tokio::time::sleep(ms(950)).await;
    store.fated(Fate::Slow);
    assert!(matches!(guard.release().await.unwrap(), ReleaseOutcome::Released));
    assert_eq!(store.renewals().len(), 0, "it was due while the release was under way");
}

/// The store's code fails in the middle of a release: that is sent again.
#[tokio::test(start_paused = true)]
async fn a_release_that_panics_is_repeated() {
    let (_clock, store, locks) = world();
    let guard = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
    store.fated(Fate::Panics);
    drop(guard);
    timeout(SOON, locks.flush_releases()).await.expect("nobody sees to it");
    assert_eq!(store.released().len(), 2);
    assert_eq!(locks.list().await.unwrap(), []);
}

/// Of a lease that another process holds: the name stays taken by nobody for as long as was asked.
#[tokio::test(start_paused = true)]
async fn a_lease_of_another_process_is_released_with_a_linger() {
    let (_machine, _store, locks) = world();
    let lease = locks.mutex("door").ttl(LONG).acquire().await.unwrap().into_lease();
    let century = Duration::from_secs(101 * 365 * 86_400);
    assert_eq!(locks.release_lingering(&lease, century).await.unwrap_err().kind(), ErrorKind::Invalid);
    assert!(matches!(locks.release_lingering(&lease, secs(5)).await.unwrap(), ReleaseOutcome::Released));
    let held = locks.inspect("door").await.unwrap().unwrap();
    assert!(held.holders[0].owner.lingers_after().is_some());
    tokio::time::sleep(secs(5)).await;
    assert_eq!(locks.list().await.unwrap(), []);
}
