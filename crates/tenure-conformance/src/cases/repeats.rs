//! Every call may be repeated after an unknown outcome.

use std::time::Duration;

use tenure::Owner;
use tenure::store::{AcquireReply, ReleaseReply, RenewReply};

use super::steps::{HANDOFF_TTL, LONG, assert_free, granted, is_busy, lease, of_any_process, request, rises};
use crate::{Outcome, Subject};

/// An acquire that runs twice is one tenure, with the later number.
pub async fn a_repeated_acquire_is_one_tenure(subject: &dyn Subject) -> Outcome {
    let store = subject.store().await;
    let held = request("door", LONG);
    let first = granted(&store, &held).await;
    let second = granted(&store, &held).await;
    assert!(rises(&store, second.fence, first.fence), "{second:?} after {first:?}");
    assert!(is_busy(&store, &request("door", LONG)).await);
    store.release(&lease(&held), Duration::ZERO).await.unwrap();
    assert_free(subject, "door").await;
    Ok(())
}

/// A repetition of an acquire lasts its ttl, and one that runs late does not end what was prolonged meanwhile.
pub async fn a_repeated_acquire_never_shortens(subject: &dyn Subject) -> Outcome {
    let store = subject.store().await;
    let held = request("door", LONG);
    let brief = held.clone().with_ttl(HANDOFF_TTL);
    granted(&store, &brief).await;
    for repeated in [&held, &brief] {
        granted(&store, repeated).await;
        let left = store.inspect(Some(&held.name)).await.unwrap().pop().expect("it is held").holders[0].ttl.expect("leases end");
        // Some ends are written in whole seconds.
        assert!(left <= LONG + Duration::from_secs(1) && left > LONG / 2, "of {LONG:?} {left:?} is left");
    }
    Ok(())
}

/// Two users of one supplied owner token are two users.
pub async fn a_given_token_is_busy_for_its_second_user(subject: &dyn Subject) -> Outcome {
    let store = subject.store().await;
    let given = request("door", LONG).with_owner(Owner::from_bytes(&b"fixed"[..])).with_generated(false);
    granted(&store, &given).await;
    assert!(is_busy(&store, &given).await);
    assert_eq!(store.release(&lease(&given), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    granted(&store, &given).await;
    Ok(())
}

/// A renewal that runs twice is one.
pub async fn a_repeated_renewal_is_harmless(subject: &dyn Subject) -> Outcome {
    let store = subject.store().await;
    let held = request("door", LONG);
    granted(&store, &held).await;
    let twice = [lease(&held), lease(&held)];
    for answer in store.renew(&twice).await {
        assert_eq!(answer.unwrap(), RenewReply::Renewed);
    }
    Ok(())
}

/// The second release finds nothing, or another's lease, and leaves it alone.
pub async fn a_repeated_release_frees_once(subject: &dyn Subject) -> Outcome {
    let store = subject.store().await;
    let (first, second) = (request("door", LONG), request("door", LONG));
    granted(&store, &first).await;
    assert_eq!(store.release(&lease(&first), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    assert_eq!(store.release(&lease(&first), Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
    granted(&store, &second).await;
    assert_eq!(store.release(&lease(&first), Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
    assert!(is_busy(&store, &request("door", LONG)).await);
    Ok(())
}

/// A release with a linger that runs twice is answered alike, and does not start the linger again.
pub async fn a_repeated_linger_is_released(subject: &dyn Subject) -> Outcome {
    let store = of_any_process(subject).await?;
    let held = request("door", LONG);
    granted(&store, &held).await;
    assert_eq!(store.release(&lease(&held), Duration::from_secs(5)).await.unwrap(), ReleaseReply::Released);
    let before = store.inspect(Some(&held.name)).await.unwrap().pop().expect("it lingers").holders[0].ttl;
    assert_eq!(store.release(&lease(&held), LONG).await.unwrap(), ReleaseReply::Released);
    let after = store.inspect(Some(&held.name)).await.unwrap().pop().expect("it lingers").holders[0].ttl;
    assert!(after <= before, "the linger was {before:?} and is {after:?}");
    Ok(())
}

/// An adoption whose answer was lost succeeds when it is asked again.
pub async fn a_repeated_adoption_is_one_tenure(subject: &dyn Subject) -> Outcome {
    let store = subject.store().await;
    let held = request("door", LONG);
    granted(&store, &held).await;
    let adopt = request("door", LONG).with_from(held.owner.clone());
    granted(&store, &adopt).await;
    assert!(matches!(store.acquire(&adopt).await.unwrap(), AcquireReply::Granted(_)));
    Ok(())
}
