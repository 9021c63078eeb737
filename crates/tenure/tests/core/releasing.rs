//! Releases: their outcomes, what is repeated in the background, and what is left alone.

use std::time::Duration;

use tenure::Clock;
use tenure::{ErrorKind, ReleaseOutcome};
use tokio::time::timeout;

use crate::scripted_store::Fate;
use crate::{LONG, SOON, ms, secs, world};

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
