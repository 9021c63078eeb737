//! Leases end by themselves, and what comes late changes nothing.

use std::time::Duration;

use tenure::BootTime;
use tenure::store::{ReleaseReply, RenewReply};

use super::steps::{LONG, TTL, granted, granted_after, is_busy, lease, of_any_process, renew, request};
use crate::{Outcome, Subject};

/// Not a moment before the ttl, and soon after it.
pub async fn a_lease_ends_by_itself_and_not_before(subject: &dyn Subject) -> Outcome {
    let store = subject.store().await;
    let sent_at = BootTime::now();
    let kept = granted(&store, &request("door", TTL)).await.ttl;
    let freed = granted_after(&store, &request("door", LONG), sent_at).await;
    // Stores count in whole milliseconds.
    assert!(freed + Duration::from_millis(2) >= kept, "free after {freed:?}");
    assert!(freed < kept + subject.overtime() + Duration::from_secs(2), "free only after {freed:?}");
    Ok(())
}

/// A renewal counts from when it is executed.
pub async fn renewal_restarts_the_ttl(subject: &dyn Subject) -> Outcome {
    let store = subject.store().await;
    let ttl = TTL * 2;
    let held = request("door", ttl);
    granted(&store, &held).await;
    tokio::time::sleep(TTL / 2).await;
    let renewed_at = BootTime::now();
    assert_eq!(renew(&store, &lease(&held)).await, RenewReply::Renewed);
    let freed = granted_after(&store, &request("door", LONG), renewed_at).await;
    assert!(freed + Duration::from_millis(2) >= ttl, "free {freed:?} after the renewal");
    Ok(())
}

/// A renewal for less, or one that runs after a later one for more, never ends a lease that is valid for its holder.
pub async fn renewal_never_shortens(subject: &dyn Subject) -> Outcome {
    let store = subject.store().await;
    let held = request("door", LONG);
    granted(&store, &held).await;
    let brief = lease(&held).with_ttl(LONG / 100);
    assert_eq!(renew(&store, &brief).await, RenewReply::Renewed);
    let left = store.inspect(Some(&held.name)).await.unwrap()[0].holders[0].ttl.unwrap();
    assert!(left > LONG / 2, "{left:?} is left");
    Ok(())
}

/// Every lease has its own answer, whatever became of its neighbours.
pub async fn many_leases_are_answered_in_order(subject: &dyn Subject) -> Outcome {
    let store = subject.store().await;
    let mut leases = Vec::new();
    for i in 0..257 {
        let held = request(&format!("door {i}"), LONG);
        if i % 3 != 0 {
            granted(&store, &held).await;
        }
        leases.push(lease(&held));
    }
    let answers = store.renew(&leases).await;
    assert_eq!(answers.len(), leases.len());
    for (i, answer) in answers.into_iter().enumerate() {
        let expected = if i % 3 == 0 { RenewReply::Gone } else { RenewReply::Renewed };
        assert_eq!(answer.unwrap(), expected, "lease {i}");
    }
    assert!(store.renew(&[]).await.is_empty());
    Ok(())
}

/// A renewal after the release brings nothing back.
pub async fn a_late_renewal_does_not_resurrect(subject: &dyn Subject) -> Outcome {
    let store = subject.store().await;
    let held = request("door", LONG);
    granted(&store, &held).await;
    store.release(&lease(&held), Duration::ZERO).await.unwrap();
    assert_eq!(renew(&store, &lease(&held)).await, RenewReply::Gone);
    granted(&store, &request("door", LONG)).await;
    Ok(())
}

/// An owner whose lease has ended can neither renew nor free what is now another's.
pub async fn a_late_owner_harms_nobody(subject: &dyn Subject) -> Outcome {
    let store = subject.store().await;
    let (old, new) = (request("door", Duration::from_millis(600)), request("door", LONG));
    granted(&store, &old).await;
    granted_after(&store, &new, BootTime::now()).await;
    let late = lease(&old).with_ttl(Duration::from_millis(400));
    assert_eq!(renew(&store, &late).await, RenewReply::Gone);
    assert_eq!(store.release(&late, Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(is_busy(&store, &request("door", LONG)).await, "the new owner's lease was shortened or freed");
    Ok(())
}

/// While a name lingers it is taken, and no renewal, release or acquisition of the old owner matches it.
pub async fn a_lingering_name_is_nobodys(subject: &dyn Subject) -> Outcome {
    let store = of_any_process(subject).await?;
    let (held, linger) = (request("door", LONG), TTL * 2);
    granted(&store, &held).await;
    let released_at = BootTime::now();
    store.release(&lease(&held), linger).await.unwrap();
    assert_eq!(renew(&store, &lease(&held)).await, RenewReply::Gone);
    assert!(is_busy(&store, &held).await, "the released owner got it back");
    let freed = granted_after(&store, &request("door", LONG), released_at).await;
    assert!(freed + Duration::from_millis(2) >= linger, "free after {freed:?}");
    assert!(freed < linger + subject.overtime() + Duration::from_secs(2), "free only after {freed:?}");
    Ok(())
}

/// A client that is shown the value of a lingering name can free it by that value.
pub async fn a_lingering_name_can_be_broken(subject: &dyn Subject) -> Outcome {
    let store = of_any_process(subject).await?;
    let held = request("door", LONG);
    granted(&store, &held).await;
    store.release(&lease(&held), LONG).await.unwrap();
    let shown = store.inspect(Some(&held.name)).await.unwrap().pop().expect("it lingers").holders.remove(0);
    assert_eq!(shown.owner.lingers_after(), Some(held.owner.clone()), "{shown}");
    assert!(shown.to_string().contains("kept taken"), "{shown}");
    let broken = lease(&held).with_owner(shown.owner);
    assert_eq!(store.release(&broken, Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    granted(&store, &request("door", LONG)).await;
    Ok(())
}
