//! Several guards of one lease, and smaller shares.

use tenure::{EndReason, ErrorKind, ReleaseOutcome, Share, State};

use crate::scripted_store::{Call, Fate};
use crate::{LONG, ms, world};

#[tokio::test(start_paused = true)]
async fn a_name_is_given_up_as_often_as_it_was_taken() {
    let (_clock, store, locks) = world();
    let outer = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
    let (middle, inner) = (outer.reenter(), outer.reenter());
    assert_eq!((inner.token(), inner.fence()), (outer.token(), outer.fence()));
    assert_eq!(outer.holds(), 3);
    assert!(matches!(outer.release().await.unwrap(), ReleaseOutcome::StillHeld(2)));
    drop(middle);
    assert_eq!(inner.holds(), 1);
    assert_eq!(inner.state(), State::Held);
    assert!(store.releases().is_empty());
    assert!(matches!(inner.release().await.unwrap(), ReleaseOutcome::Released));
    assert_eq!(store.releases().len(), 1);
    assert!(locks.mutex("door").try_acquire().await.unwrap().is_some());
}

/// A lease that goes to another process is nobody's here any more.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_taken_out_ends_every_guard() {
    let (_clock, store, locks) = world();
    let guard = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
    let other = guard.reenter();
    let lease = guard.into_lease();
    assert_eq!((other.state(), other.end_reason()), (State::Lost, Some(EndReason::Released)));
    assert!(matches!(other.release().await.unwrap(), ReleaseOutcome::WasLost));
    assert!(store.releases().is_empty());
    let _adopted = locks.adopt(&lease).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_writer_becomes_a_reader() {
    let (_clock, _store, locks) = world();
    let guard = locks.write("page").ttl(LONG).acquire().await.unwrap();
    assert!(locks.read("page").ttl(LONG).try_acquire().await.unwrap().is_none());
    guard.downgrade(Share::READ).await.unwrap();
    let reader = locks.read("page").ttl(LONG).try_acquire().await.unwrap().unwrap();
    for share in [Share::WRITE, Share::MUTEX, Share::permits(1, 2).unwrap()] {
        let error = guard.downgrade(share).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{share:?}: {error}");
    }
    assert!(locks.write("page").ttl(LONG).try_acquire().await.unwrap().is_none());
    for guard in [guard, reader] {
        assert!(matches!(guard.release().await.unwrap(), ReleaseOutcome::Released));
    }
    assert!(locks.write("page").ttl(LONG).try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_that_had_no_answer_may_be_called_again() {
    let (_clock, store, locks) = world();
    let guard = locks.write("page").ttl(LONG).acquire().await.unwrap();
    store.fated(Fate::Unheard);
    assert!(guard.downgrade(Share::READ).await.unwrap_err().may_have_been_applied());
    assert_eq!(guard.state(), State::Held);
    store.fated(Fate::Works);
    guard.downgrade(Share::READ).await.unwrap();
    assert!(matches!(guard.release().await.unwrap(), ReleaseOutcome::Released));
}

/// The name is nobody's for a while after its release.
#[tokio::test(start_paused = true)]
async fn a_name_lingers_after_its_release() {
    let (_clock, store, locks) = world();
    let guard = locks.mutex("door").ttl(LONG).linger(ms(700)).acquire().await.unwrap();
    tokio::time::sleep(ms(900)).await;
    let _ = guard.release().await.unwrap();
    assert!(matches!(store.calls().last(), Some((_, Call::Release(_, linger))) if *linger == ms(700)));
    assert!(locks.mutex("door").try_acquire().await.unwrap().is_none());
    tokio::time::sleep(ms(701)).await;
    assert!(locks.mutex("door").try_acquire().await.unwrap().is_some());
}
