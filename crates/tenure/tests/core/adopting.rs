//! A lease that passes from one guard to another.

use tenure::ErrorKind;
use tenure::store::AcquireReply;
use tokio::time::timeout;

use crate::scripted_store::Fate;
use crate::{LONG, SOON, ms, secs, world};

/// An unknown outcome is not repeated, and what it may have left is released.
#[tokio::test(start_paused = true)]
async fn an_unheard_adoption_is_told_and_cleared_up() {
    let (clock, store, locks) = world();
    let lease = locks.mutex("door").ttl(LONG).acquire().await.unwrap().into_lease();
    store.forget_calls();
    store.fated(Fate::Unheard);
    let error = locks.adopt(&lease).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Unreachable, true));
    store.fated(Fate::Works);
    timeout(SOON, locks.flush_releases()).await.unwrap();
    assert_eq!((store.acquires().len(), locks.list().await.unwrap().len()), (1, 0));
    // An answer that comes too late to be valid counts as lost.
    let lease = locks.mutex("gate").ttl(LONG).acquire().await.unwrap().into_lease();
    store.fated(Fate::Hangs);
    let mut adopting = std::pin::pin!(locks.adopt(&lease));
    assert!(timeout(ms(10), adopting.as_mut()).await.is_err());
    clock.pause(secs(70));
    store.answer();
    assert_eq!(adopting.await.unwrap_err().kind(), ErrorKind::Lost);
    locks.flush_releases().await;
    assert_eq!(locks.list().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn an_adoption_by_a_store_that_takes_no_part_is_told() {
    let (_clock, store, locks) = world();
    let lease = locks.mutex("door").ttl(LONG).acquire().await.unwrap().into_lease();
    store.answers([AcquireReply::Refused { until: secs(7), why: "it may have forgotten leases".to_owned() }]);
    let error = locks.adopt(&lease).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let _adopted = locks.adopt(&lease).await.expect("the lease still stands");
}
