//! A supplied owner token may be another client's: less is done with it.

use tenure::{ErrorKind, Owner, ReleaseOutcome};
use tokio::time::timeout;

use crate::scripted_store::Fate;
use crate::{LONG, SOON, lease_of, locker, ms, secs, world};

fn fixed() -> Owner {
    Owner::from_bytes(&b"fixed"[..])
}

#[tokio::test(start_paused = true)]
async fn a_supplied_token_is_neither_retried_nor_cleared_up() {
    let (_clock, store, locks) = world();
    store.fated(Fate::Unheard);
    let error = locks.mutex("door").ttl(LONG).token(fixed()).acquire().await.unwrap_err();
    assert!(error.may_have_been_applied());
    store.fated(Fate::Works);
    locks.flush_releases().await;
    assert_eq!((store.acquires().len(), store.released().len()), (1, 0));
    // A lease that ends by its longest hold is certainly still ours at the store.
    let capped = locks.mutex("capped").ttl(LONG).max_hold(ms(50)).token(fixed()).acquire().await.unwrap();
    timeout(SOON, capped.lost()).await.unwrap();
    assert!(matches!(capped.release().await.unwrap(), ReleaseOutcome::WasLost));
    locks.flush_releases().await;
    assert_eq!(store.released().len(), 1);
    store.forget_calls();
    // A lease that the store has dropped is not released: another client may hold with the token by
    // now.
    for dropped in [false, true] {
        let guard = locks.mutex("gate").ttl(secs(1)).fixed_lease().token(fixed()).acquire().await.unwrap();
        timeout(SOON, guard.lost()).await.unwrap();
        tokio::time::sleep(guard.lease_remaining()).await;
        if dropped {
            drop(guard);
        } else {
            assert!(matches!(guard.release().await.unwrap(), ReleaseOutcome::WasLost));
        }
        locks.flush_releases().await;
        assert_eq!(store.released(), []);
    }
}

/// A request that certainly failed may be repeated, with any token.
#[tokio::test(start_paused = true)]
async fn a_supplied_token_rides_out_an_outage_in_which_nothing_was_sent() {
    let (_clock, store, locks) = world();
    let _ = locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    store.fated(Fate::Fails);
    let waiting = tokio::spawn(async move { locks.mutex("door").ttl(LONG).token(fixed()).acquire().await });
    for _ in 0..3 {
        store.called().await;
    }
    store.fated(Fate::Works);
    assert_eq!(timeout(SOON, waiting).await.unwrap().unwrap().unwrap().token(), &fixed());
}

#[tokio::test(start_paused = true)]
async fn a_supplied_tokens_release_is_sent_once() {
    let (clock, store, ours) = world();
    let theirs = locker(&clock, &store);
    let guard = ours.mutex("door").ttl(LONG).token(fixed()).acquire().await.unwrap();
    store.fated(Fate::Unheard);
    assert!(matches!(guard.release().await.unwrap(), ReleaseOutcome::Unknown { .. }));
    store.fated(Fate::Works);
    let next = theirs.mutex("door").ttl(LONG).token(fixed()).acquire().await.unwrap();
    ours.flush_releases().await;
    next.verify().await.expect("the first holder's release was repeated and freed the second's lock");
    let dropped = ours.mutex("gate").ttl(LONG).token(fixed()).acquire().await.unwrap();
    store.fated(Fate::Unheard);
    drop(dropped);
    ours.flush_releases().await;
    assert_eq!(store.released().len(), 2);
    assert_eq!(theirs.adopt(&lease_of(&next)).await.unwrap_err().kind(), ErrorKind::Invalid);
}

/// An answered release is not sent again, by guard or by drop. Each answered renewal makes it
/// certain for another ttl that the lease is ours.
#[tokio::test(start_paused = true)]
async fn a_supplied_tokens_lock_is_released() {
    let (_clock, store, locks) = world();
    for (dropped, held) in [(false, ms(0)), (true, ms(0)), (false, LONG)] {
        store.forget_calls();
        let guard = locks.mutex("door").ttl(secs(3)).token(fixed()).acquire().await.unwrap();
        tokio::time::sleep(held).await;
        if dropped {
            drop(guard);
        } else {
            assert!(matches!(guard.release().await.unwrap(), ReleaseOutcome::Released));
        }
        locks.flush_releases().await;
        assert_eq!(store.released(), [fixed()], "dropped {dropped}, after {held:?}");
        assert_eq!(locks.list().await.unwrap(), []);
    }
}
