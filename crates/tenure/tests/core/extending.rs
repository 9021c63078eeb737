//! Prolonging a lease, and renewing one by its token.

use std::pin::pin;

use tenure::Clock;
use tenure::{EndReason, ErrorKind, State};
use tokio::time::timeout;

use crate::scripted_store::{Fate, SLOW};
use crate::{LIMIT, LONG, SOON, lease_of, locker, ms, secs, world};

#[tokio::test(start_paused = true)]
async fn an_extension_lasts_and_later_renewals_keep_to_it() {
    let (clock, store, locks) = world();
    let fixed = locks.mutex("fixed").ttl(secs(3)).fixed_lease().acquire().await.unwrap();
    let guard = locks.mutex("door").ttl(secs(3)).acquire().await.unwrap();
    fixed.extend(LONG).await.unwrap();
    guard.extend(LONG).await.unwrap();
    let extended = clock.now();
    assert_eq!((fixed.lease_remaining(), guard.lease_remaining()), (LONG, LONG));
    store.forget_calls();
    tokio::time::sleep(LONG - secs(10)).await;
    assert_eq!((fixed.state(), guard.state()), (State::Held, State::Held));
    let renewals = store.renewals();
    let times: Vec<_> = renewals.iter().map(|(at, _)| at.since(extended)).collect();
    assert_eq!(times, [secs(20), secs(40)]);
    assert!(renewals.iter().all(|(_, leases)| leases.len() == 1 && leases[0].ttl == LONG));
    assert!(locks.mutex("fixed").ttl(LONG).try_acquire().await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_shorter_extension_shortens_nothing() {
    let (clock, store, ours) = world();
    let theirs = locker(&clock, &store);
    for unheard in [false, true] {
        let guard = ours.mutex("door").ttl(LONG).safety_margin(ms(100)).fixed_lease().acquire().await.unwrap();
        store.fated(if unheard { Fate::Unheard } else { Fate::Works });
        assert_eq!(guard.extend(ms(900)).await.is_err(), unheard);
        store.fated(Fate::Works);
        // By its token anyone may ask for less. The lease gets no shorter.
        theirs.renew(&lease_of(&guard).with_ttl(ms(100))).await.unwrap();
        tokio::time::sleep(secs(1)).await;
        assert_eq!(guard.state(), State::Held);
        assert!(theirs.mutex("door").ttl(LONG).try_acquire().await.unwrap().is_none(), "two hold");
        let _ = guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_extension_that_cannot_work_is_refused_and_changes_nothing() {
    let (clock, store, locks) = world();
    let guard = locks.mutex("door").ttl(LONG).fixed_lease().acquire().await.unwrap();
    let remaining = guard.remaining();
    assert_eq!(guard.extend(ms(1)).await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!((guard.remaining(), store.renewals().len()), (remaining, 0));
    store.fated(Fate::Hangs);
    let error = guard.extend(LONG * 2).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Unreachable, true));
    assert_eq!((guard.state(), guard.remaining()), (State::Held, remaining - LIMIT));
    store.fated(Fate::Works);
    let _ = locker(&clock, &store).release(&lease_of(&guard)).await.unwrap();
    assert_eq!(guard.extend(LONG).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!((guard.state(), guard.end_reason()), (State::Lost, Some(EndReason::Gone)));
    assert_eq!(guard.extend(LONG).await.unwrap_err().kind(), ErrorKind::Lost);
}

/// A renewal is under way. The extension goes out after it, with its own ttl, and one at a time.
#[tokio::test(start_paused = true)]
async fn an_extension_goes_behind_a_renewal_that_is_under_way() {
    let (_clock, store, locks) = world();
    let guard = locks.mutex("door").ttl(secs(30)).acquire().await.unwrap();
    store.fated(Fate::Slow);
    tokio::time::sleep(secs(10) + ms(10)).await;
    let mut extending = pin!(guard.extend(LONG));
    assert!(timeout(ms(10), extending.as_mut()).await.is_err());
    let error = guard.extend(LONG * 2).await.unwrap_err();
    assert_eq!((error.kind(), store.renewals().len()), (ErrorKind::Invalid, 1));
    extending.await.unwrap();
    let sent: Vec<_> = store.renewals().into_iter().map(|(at, leases)| (at, leases[0].ttl)).collect();
    assert_eq!([sent[0].1, sent[1].1], [secs(30), LONG]);
    assert_eq!(sent[1].0.since(sent[0].0), SLOW, "it waits for the next renewal");
    assert!(guard.lease_remaining() > secs(59));
}

/// The store's code fails, or the guard is released: the caller of the extension gets an error.
#[tokio::test(start_paused = true)]
async fn whoever_extends_is_told_when_nobody_will_answer() {
    let (_clock, store, locks) = world();
    let guard = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
    store.fated(Fate::Panics);
    let error = timeout(SOON, guard.extend(LONG)).await.expect("it hangs").unwrap_err();
    assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Unavailable, true));
    assert_eq!(guard.state(), State::Held, "it may be tried again");
    guard.extend(LONG).await.unwrap();
    store.fated(Fate::Slow);
    tokio::time::sleep(LONG / 3 + ms(10)).await;
    // A renewal is under way, and the extension waits for it.
    let (outcome, _) = tokio::join!(guard.extend(LONG), locks.release_all());
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Lost);
    // So is one whose own renewal is under way.
    let guard = locks.mutex("gate").ttl(LONG).acquire().await.unwrap();
    let (outcome, _) = tokio::join!(guard.extend(LONG), async {
        tokio::time::sleep(ms(10)).await;
        locks.release_all().await
    });
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Lost);
}

/// A fixed lease whose extension died with its task is not renewed by the next.
#[tokio::test(start_paused = true)]
async fn a_fixed_lease_stays_fixed_after_an_extension_that_failed() {
    let (_clock, store, locks) = world();
    for fate in [Fate::Panics, Fate::Fails] {
        let guard = locks.mutex("door").ttl(secs(3)).fixed_lease().acquire().await.unwrap();
        store.forget_calls();
        store.fated(fate);
        guard.extend(LONG).await.unwrap_err();
        store.fated(Fate::Works);
        assert_eq!(timeout(SOON, guard.lost()).await.unwrap(), EndReason::Expired);
        assert_eq!(store.renewals().len(), 1, "{fate:?}");
        drop(guard);
        locks.flush_releases().await;
    }
}

/// Anybody who has the token may renew, without a guard.
#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_and_released_by_its_token() {
    let (clock, store, locks) = world();
    let guard = locks.mutex("door").ttl(secs(3)).fixed_lease().acquire().await.unwrap();
    let (theirs, lease) = (locker(&clock, &store), lease_of(&guard));
    theirs.renew(&lease).await.unwrap();
    let entry = theirs.inspect("door").await.unwrap().unwrap();
    assert_eq!((entry.name.as_str(), entry.holders[0].ttl), ("door", Some(LONG)));
    assert_eq!(theirs.inspect("gate").await.unwrap(), None);
    store.fated(Fate::Short);
    let error = theirs.renew(&lease).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Unavailable, true));
    store.fated(Fate::Works);
    assert!(matches!(theirs.release(&lease).await.unwrap(), tenure::ReleaseOutcome::Released));
    assert!(matches!(theirs.release(&lease).await.unwrap(), tenure::ReleaseOutcome::WasLost));
    assert_eq!(theirs.renew(&lease).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(theirs.renew(&lease.with_ttl(ms(1))).await.unwrap_err().kind(), ErrorKind::Invalid);
}

/// A ttl counts when it was granted: after a failure the lease is renewed as before.
#[tokio::test(start_paused = true)]
async fn an_extension_that_failed_leaves_the_ttl_as_it_was() {
    let (_clock, store, locks) = world();
    let guard = locks.mutex("door").ttl(secs(3)).acquire().await.unwrap();
    store.fated(Fate::Fails);
    guard.extend(LONG).await.unwrap_err();
    store.fated(Fate::Works);
    store.forget_calls();
    tokio::time::sleep(secs(10)).await;
    assert_eq!(guard.state(), State::Held);
    let renewed = store.renewals();
    assert!(renewed.len() >= 9 && renewed.iter().all(|(_, leases)| leases[0].ttl == secs(3)), "{renewed:?}");
}
