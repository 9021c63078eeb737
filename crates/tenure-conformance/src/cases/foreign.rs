//! Values and keys that others put at a name, and a store that falls silent.

use std::sync::Arc;
use std::time::Duration;

use tenure::store::{AcquireReply, ReleaseReply, RenewReply};
use tenure::{BootTime, ErrorKind, Share};
use tokio::time::timeout;

use super::steps::{CLEAN_UP, LONG, PATIENCE, granted, is_busy, lease, locker, name, renew, request, timed_out};
use crate::{Outcome, Plant, Subject};

/// A client that knows nothing of us keeps us out, and our release does not free it.
pub async fn a_foreign_lock_and_ours_exclude_each_other(subject: &dyn Subject) -> Outcome {
    let store = subject.store().await;
    for theirs in [&b"\xffforeign"[..], b"1", b""] {
        subject.plant(&name("door"), &Plant::Value(theirs, Some(LONG)))?;
        let ours = request("door", LONG);
        let AcquireReply::Busy(busy) = store.acquire(&ours).await.unwrap() else { panic!("granted over {theirs:?}") };
        let holder = busy.holder.expect("the reply names the holder");
        assert_eq!((holder.owner.as_bytes(), holder.owner.label()), (theirs, None));
        assert_eq!(store.release(&lease(&ours), Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
        assert!(is_busy(&store, &ours).await);
        subject.plant(&name("door"), &Plant::Nothing)?;
        granted(&store, &ours).await;
        assert_eq!(store.release(&lease(&ours), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    }
    Ok(())
}

/// A lock that never ends by itself is busy like any other, and told as what it is.
pub async fn a_lock_without_expiry_is_told(subject: &dyn Subject) -> Outcome {
    let locks = locker(subject).await;
    subject.plant(&name("door"), &Plant::Value(b"1", None))?;
    let error = timed_out(locks.mutex("door").ttl(LONG).wait(Duration::from_millis(200)).acquire().await);
    assert_eq!(error.holder().unwrap().ttl, None);
    assert!(error.to_string().contains("never ends"), "{error}");
    Ok(())
}

/// A key that is no lock is refused at once, and stays as it is. The holder of the name has lost it, and is notified.
pub async fn another_type_is_refused_and_left_alone(subject: &dyn Subject) -> Outcome {
    let (locks, store) = (locker(subject).await, subject.store().await);
    subject.plant(&name("door"), &Plant::OtherType)?;
    let error = timeout(PATIENCE, locks.mutex("door").acquire()).await.expect("it is waited for").unwrap_err();
    assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Mismatch, false), "{error}");
    let shares = [Share::MUTEX, Share::READ, Share::permits(1, 3).unwrap()];
    for share in shares.into_iter().filter(|share| *share == Share::MUTEX || store.features().shares) {
        let lost = lease(&request("door", LONG)).with_share(share);
        assert_eq!(store.release(&lost, Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld, "{share:?}");
        assert_eq!(renew(&store, &lost).await, RenewReply::Gone, "{share:?}");
    }
    assert_eq!(store.inspect(Some(&name("door"))).await.unwrap_err().kind(), ErrorKind::Mismatch);
    Ok(())
}

/// A missing answer is reported as such, and within the operation timeout. If it is not reported as possibly applied, it was not.
pub async fn a_silent_store_is_told_within_the_timeout(subject: &dyn Subject) -> Outcome {
    let (locks, store) = (locker(subject).await, subject.store().await);
    for locks in [&locks, &tenure::Locker::new(Arc::clone(&store))] {
        let _ = locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    }
    subject.silence(true)?;
    if store.features().timed_calls {
        let (request, limit) = (request("door", LONG), store.features().limit(LONG));
        let calls = async {
            let renewed = store.renew(&[request.lease()]).await.remove(0);
            let released = store.release(&request.lease(), LONG).await;
            [store.acquire(&request).await.unwrap_err(), renewed.unwrap_err(), released.unwrap_err()]
        };
        for error in timeout(limit * 5, calls).await.expect("it promises to end its calls") {
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        }
    }
    let started = BootTime::now();
    let error = locks.mutex("late").ttl(Duration::from_secs(3)).try_acquire().await.unwrap_err();
    let took = BootTime::now().since(started);
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(took < Duration::from_secs(1), "told only after {took:?}");
    subject.silence(false)?;
    if !error.may_have_been_applied() {
        // It found no connection to send it by.
        let left = store.inspect(Some(&name("late"))).await.unwrap();
        assert!(left.is_empty(), "{error}: {left:?}");
    }
    Ok(())
}

/// An acquisition given up while the store was silent is cleared up when it answers again, not after the ttl.
pub async fn what_was_sent_to_a_silent_store_is_cleared(subject: &dyn Subject) -> Outcome {
    let (locks, store) = (locker(subject).await, subject.store().await);
    let _ = locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    subject.silence(true)?;
    let given_up = timeout(Duration::from_millis(700), locks.mutex("door").ttl(LONG).acquire()).await;
    assert!(given_up.is_err(), "a silent store answered: {given_up:?}");
    subject.silence(false)?;
    timeout(CLEAN_UP, locks.flush_releases()).await.expect("the clean-up hangs");
    granted(&store, &request("door", LONG)).await;
    Ok(())
}
