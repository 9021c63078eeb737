//! Later holders have larger numbers.

use std::time::Duration;

use tenure::Fence;
use tenure::store::{AcquireReply, RenewReply, Store};
use tokio::task::JoinSet;

use super::steps::{LONG, granted, granted_at_last, joined, lease, locker, request, rises};
use crate::{NotApplicable, Outcome, Subject};

fn counts(store: &dyn Store) -> Outcome {
    if store.features().fence { Ok(()) } else { Err(NotApplicable("it counts no grants")) }
}

/// After a release, after an expiry, from any handle.
pub async fn fences_rise_with_every_grant(subject: &dyn Subject) -> Outcome {
    counts(&*subject.store().await)?;
    let mut last: Option<Fence> = None;
    for round in 0..20 {
        let store = subject.store().await;
        let held = request("door", if round % 7 == 6 { Duration::from_millis(600) } else { LONG });
        let fence = granted_at_last(&store, &held).await.fence;
        assert!(fence > last, "{fence:?} after {last:?}");
        last = fence;
        if round % 7 != 6 {
            store.release(&lease(&held), Duration::ZERO).await.unwrap();
        }
    }
    Ok(())
}

/// Many tasks on one handle: the numbers are in the order of the tenures.
pub async fn fences_rise_under_contention(subject: &dyn Subject) -> Outcome {
    counts(&*subject.store().await)?;
    let locks = locker(subject).await;
    let order = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let (locks, order) = (locks.clone(), order.clone());
        tasks.spawn(async move {
            for _ in 0..10 {
                let guard = locks.mutex("door").ttl(LONG).poll_interval(Duration::from_millis(2)).acquire().await.unwrap();
                order.lock().unwrap().push(guard.fence());
                let _ = guard.release().await.unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        joined(done);
    }
    let order = order.lock().unwrap();
    assert_eq!(order.len(), 80);
    assert!(order.windows(2).all(|pair| pair[0] < pair[1]), "{order:?}");
    Ok(())
}

/// The lease that was passed on is finished, and the new one has a larger number.
pub async fn adoption_swaps_owner_and_fence(subject: &dyn Subject) -> Outcome {
    let store = subject.store().await;
    let held = request("door", LONG);
    let first = granted(&store, &held).await;
    let adopt = request("door", LONG).with_from(held.owner.clone());
    let second = granted(&store, &adopt).await;
    assert!(rises(&store, second.fence, first.fence), "{second:?} after {first:?}");
    let answers = store.renew(&[lease(&held), lease(&adopt)]).await.into_iter().map(Result::unwrap);
    assert_eq!(answers.collect::<Vec<_>>(), [RenewReply::Gone, RenewReply::Renewed]);
    Ok(())
}

/// One lease copied to two processes is adopted by one of them; a free name by none.
pub async fn one_of_two_adopters_wins(subject: &dyn Subject) -> Outcome {
    let store = subject.store().await;
    let held = request("door", LONG);
    granted(&store, &held).await;
    let adopt = || request("door", LONG).with_from(held.owner.clone());
    granted(&store, &adopt()).await;
    assert!(matches!(store.acquire(&adopt()).await.unwrap(), AcquireReply::Busy(_)));
    let free = request("free", LONG).with_from(held.owner.clone());
    assert!(matches!(store.acquire(&free).await.unwrap(), AcquireReply::Busy(_)));
    granted(&store, &request("free", LONG)).await;
    Ok(())
}
