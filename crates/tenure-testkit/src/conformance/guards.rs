//! What a guard promises, over any store.

use std::time::Duration;

use tenure::{BootTime, ErrorKind, Locker, Loss, Release, Released, State};
use tokio::time::timeout;

use super::{LONG, Outcome, PATIENCE, Subject, TTL, assert_free, granted_after, is_busy, lease, locker, request};

/// Far beyond its ttl it is still held, and nobody else gets in.
pub async fn a_guard_renews_itself(subject: &dyn Subject) -> Outcome {
    let (locks, store) = (locker(subject).await, subject.store().await);
    let guard = locks.mutex("door").acquire().await.unwrap();
    let started = BootTime::now();
    while BootTime::now().since(started) < TTL * 2 {
        assert_eq!(guard.state(), State::Held);
        assert!(is_busy(&store, &request("door", LONG)).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(guard.remaining() > Duration::ZERO && guard.remaining() < guard.lease_remaining());
    assert!(matches!(guard.release().await.unwrap(), Release::Released));
    assert_free(subject, "door").await;
    Ok(())
}

/// Without renewal the holder stops believing before anyone else can start.
pub async fn a_fixed_lease_ends_before_the_store_frees_it(subject: &dyn Subject) -> Outcome {
    let (locks, store) = (locker(subject).await, subject.store().await);
    let guard = locks.mutex("door").fixed_lease().acquire().await.unwrap();
    let loss = timeout(PATIENCE, guard.lost()).await.expect("a fixed lease ends");
    assert!(is_busy(&store, &request("door", LONG)).await, "another got in before the holder was told");
    assert_eq!((loss, guard.state(), guard.remaining()), (Loss::Expired, State::Lost, Duration::ZERO));
    assert!(guard.cancellation().is_cancelled());
    assert!(matches!(guard.release().await.unwrap(), Release::WasLost));
    Ok(())
}

/// An operator breaks the lock: the next renewal tells the holder, long before its deadline.
pub async fn a_broken_lock_is_told_at_the_next_renewal(subject: &dyn Subject) -> Outcome {
    let (locks, store) = (locker(subject).await, subject.store().await);
    let ttl = Duration::from_secs(3);
    let guard = locks.mutex("door").ttl(ttl).acquire().await.unwrap();
    let broken = tenure::Lease { owner: guard.token(), ..lease(&request("door", ttl)) };
    assert_eq!(store.release(&broken, Duration::ZERO).await.unwrap(), Released::Released);
    let started = BootTime::now();
    let loss = timeout(PATIENCE, guard.lost()).await.expect("the loss is told");
    let took = BootTime::now().since(started);
    assert_eq!(loss, Loss::Gone);
    assert!(took < ttl / 3 + ttl / 6 + Duration::from_millis(500), "told only after {took:?}");
    Ok(())
}

/// Verify says what the store says, and the guard learns it.
pub async fn verify_asks_the_store(subject: &dyn Subject) -> Outcome {
    let (locks, store) = (locker(subject).await, subject.store().await);
    let guard = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
    guard.verify().await.unwrap();
    let broken = tenure::Lease { owner: guard.token(), ..lease(&request("door", LONG)) };
    store.release(&broken, Duration::ZERO).await.unwrap();
    assert_eq!(guard.state(), State::Held, "nobody has told it yet");
    assert_eq!(guard.verify().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!((guard.state(), guard.loss()), (State::Lost, Some(Loss::Gone)));
    Ok(())
}

/// Work under a guard is dropped the moment the tenure ends, and not begun after it.
pub async fn work_stops_when_the_tenure_is_lost(subject: &dyn Subject) -> Outcome {
    let locks = locker(subject).await;
    let guard = locks.mutex("door").fixed_lease().acquire().await.unwrap();
    assert_eq!(guard.run(async { 42 }).await.unwrap(), 42);
    let error = timeout(PATIENCE, guard.run(std::future::pending::<()>())).await.expect("work is stopped").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("door"), "{error}");
    assert_eq!(guard.run(async { panic!("begun after the loss") }).await.unwrap_err().kind(), ErrorKind::Lost);
    Ok(())
}

/// An extension holds for longer than the first ttl, also for a fixed lease.
pub async fn a_lease_is_extended(subject: &dyn Subject) -> Outcome {
    let (locks, store) = (locker(subject).await, subject.store().await);
    let guard = locks.mutex("door").fixed_lease().acquire().await.unwrap();
    guard.extend(LONG).await.unwrap();
    assert!(guard.remaining() > LONG / 2);
    tokio::time::sleep(TTL + Duration::from_millis(200)).await;
    assert_eq!(guard.state(), State::Held);
    assert!(is_busy(&store, &request("door", LONG)).await);
    assert_eq!(guard.extend(Duration::from_millis(1)).await.unwrap_err().kind(), ErrorKind::Invalid);
    assert!(matches!(guard.release().await.unwrap(), Release::Released));
    Ok(())
}

/// Renewals go well, and it ends all the same.
pub async fn a_longest_hold_ends_it(subject: &dyn Subject) -> Outcome {
    let locks = locker(subject).await;
    let started = BootTime::now();
    let guard = locks.mutex("door").max_hold(TTL * 2).acquire().await.unwrap();
    let loss = timeout(PATIENCE, guard.lost()).await.expect("it ends");
    let held = BootTime::now().since(started);
    assert_eq!(loss, Loss::MaxHold);
    assert!(held >= TTL * 2 && held < TTL * 2 + Duration::from_millis(500), "{held:?}");
    assert!(matches!(guard.release().await.unwrap(), Release::WasLost));
    assert_free(subject, "door").await;
    Ok(())
}

/// The name stays taken though the work is done, and longer than the ttl says.
pub async fn a_shortest_hold_keeps_the_name(subject: &dyn Subject) -> Outcome {
    let (locks, store) = (locker(subject).await, subject.store().await);
    let (started, min) = (BootTime::now(), TTL * 2);
    let guard = locks.mutex("door").min_hold(min).acquire().await.unwrap();
    assert!(guard.lease_remaining() > TTL, "a crash would free it early");
    assert!(matches!(guard.release().await.unwrap(), Release::Released));
    let freed = granted_after(&store, &request("door", LONG), started).await;
    assert!(freed + Duration::from_millis(5) >= min, "free after {freed:?}");
    assert!(freed < min + Duration::from_secs(2), "free only after {freed:?}");
    Ok(())
}

/// A lease leaves one guard and enters another, with a larger number; what was passed on twice fails.
pub async fn a_lease_passes_to_another(subject: &dyn Subject) -> Outcome {
    let (here, there) = (locker(subject).await, locker(subject).await);
    let guard = here.mutex("door").ttl(LONG).acquire().await.unwrap();
    let (fence, lost) = (guard.fence(), guard.lost());
    let lease = guard.into_lease();
    assert_eq!(timeout(PATIENCE, lost).await.unwrap(), Loss::GivenUp);
    let adopted = there.adopt(&lease).await.unwrap();
    assert!(adopted.fence() > fence || fence.is_none());
    assert_ne!(adopted.token(), lease.owner);
    assert_eq!(there.adopt(&lease).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(there.renew(&lease).await.unwrap_err().kind(), ErrorKind::Lost);
    adopted.verify().await.unwrap();
    assert!(matches!(adopted.release().await.unwrap(), Release::Released));
    here.settled().await;
    assert_free(subject, "door").await;
    Ok(())
}

/// The guards that are left are lost, and the names are free.
pub async fn everything_is_given_up_at_once(subject: &dyn Subject) -> Outcome {
    let locks = locker(subject).await;
    let mut guards = Vec::new();
    for i in 0..20 {
        guards.push(locks.mutex(format!("door {i}")).ttl(LONG).acquire().await.unwrap());
    }
    let outcomes = locks.release_all().await;
    assert_eq!(outcomes.len(), guards.len());
    for (name, outcome) in outcomes {
        assert!(matches!(outcome, Ok(Release::Released)), "{name}: {outcome:?}");
    }
    assert!(guards.iter().all(|guard| guard.loss() == Some(Loss::GivenUp)));
    assert_eq!(locks.list().await.unwrap(), []);
    Ok(())
}

/// Refused before anything is sent, by name and with the fix.
pub async fn settings_that_cannot_work_are_refused(subject: &dyn Subject) -> Outcome {
    let locks = locker(subject).await;
    let too_long = "n".repeat(locks.store().features().max_name + 1);
    let ms = Duration::from_millis;
    for (bad, why) in [
        (locks.mutex(""), "empty"),
        (locks.mutex("a\nb"), "control"),
        (locks.mutex(&too_long), "bytes"),
        (locks.mutex("door").ttl(Duration::ZERO), "ttl of 0ns"),
        (locks.mutex("door").ttl(Duration::MAX), "century"),
        (locks.mutex("door").ttl(ms(1_000)).guard(ms(900)), "too short"),
        (locks.mutex("door").min_hold(Duration::MAX), "century"),
        (locks.mutex("door").max_hold(Duration::ZERO), "longest hold"),
        (locks.mutex("door").max_hold(ms(1)).min_hold(ms(2)), "longest hold"),
        (locks.mutex("door").label("a\nb"), "label"),
    ] {
        let error = bad.acquire().await.unwrap_err();
        assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Invalid, false), "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
    assert!(Locker::builder(subject.store().await).drift(2.0).build().is_err());
    assert_eq!(locks.inspect("door").await.unwrap(), None);
    Ok(())
}
