//! Several guards of one lease.

use tenure::{EndReason, ReleaseOutcome, State};

use crate::{LONG, world};

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
