//! Promises of a guard, over any store.

use std::time::Duration;

use tenure::store::ReleaseReply;
use tenure::{AcquireAll, BootTime, EndReason, ErrorKind, Guards, Locker, Owner, ReleaseOutcome, Share, State};
use tokio::time::timeout;

use super::shares::two;
use super::steps::{
    LONG, PATIENCE, TTL, assert_free, granted_after, is_busy, joined, kept, lease, listing, locker, of_any_process, outcome_of,
    request,
};
use crate::{Outcome, Subject};

/// Far beyond its ttl it is still held, and nobody else gets in.
pub async fn a_guard_renews_itself(subject: &dyn Subject) -> Outcome {
    let (locks, store) = (locker(subject).await, subject.store().await);
    let ttl = TTL * 2;
    let guard = locks.mutex("door").ttl(ttl).acquire().await.unwrap();
    let started = BootTime::now();
    while BootTime::now().since(started) < ttl * 3 / 2 {
        assert_ne!(guard.state(), State::Lost);
        assert!(is_busy(&store, &request("door", LONG)).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (kept, valid) = (guard.lease_remaining(), guard.remaining());
    assert!(valid > Duration::ZERO && valid < kept);
    assert!(matches!(outcome_of(guard.release().await), ReleaseOutcome::Released));
    assert_free(subject, "door").await;
    Ok(())
}

/// Without renewal the validity ends before anyone else can start.
pub async fn a_fixed_lease_ends_before_the_store_frees_it(subject: &dyn Subject) -> Outcome {
    let (locks, store) = (locker(subject).await, subject.store().await);
    let (ttl, margin) = (Duration::from_secs(4), Duration::from_secs(2));
    let kept = kept(&store, ttl).await;
    let started = BootTime::now();
    let guard = locks.mutex("door").ttl(ttl).safety_margin(margin).fixed_lease().acquire().await.unwrap();
    let loss = timeout(PATIENCE, guard.lost()).await.expect("a fixed lease ends");
    let took = BootTime::now().since(started);
    assert!(is_busy(&store, &request("door", LONG)).await, "another got in before the holder was notified");
    assert_eq!((loss, guard.state(), guard.remaining()), (EndReason::Expired, State::Lost, Duration::ZERO));
    assert!(guard.cancellation().is_cancelled());
    assert!(matches!(outcome_of(guard.release().await), ReleaseOutcome::WasLost));
    assert!(took + margin < kept + Duration::from_millis(150), "reported only after {took:?}");
    Ok(())
}

/// An operator breaks the lock: the next renewal tells the holder, long before its deadline.
pub async fn a_broken_lock_is_told_at_the_next_renewal(subject: &dyn Subject) -> Outcome {
    let (locks, store) = (locker(subject).await, subject.store().await);
    let ttl = Duration::from_secs(3);
    let guard = locks.mutex("door").ttl(ttl).acquire().await.unwrap();
    let broken = lease(&request("door", ttl)).with_owner(guard.token().clone());
    assert_eq!(store.release(&broken, Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    let started = BootTime::now();
    let loss = timeout(PATIENCE, guard.lost()).await.expect("the loss is reported");
    let took = BootTime::now().since(started);
    assert_eq!(loss, EndReason::Gone);
    assert!(took < ttl / 3 + ttl / 6 + Duration::from_millis(500), "reported only after {took:?}");
    Ok(())
}

/// Verify says what the store says, and the guard learns it.
pub async fn verify_asks_the_store(subject: &dyn Subject) -> Outcome {
    let (locks, store) = (locker(subject).await, subject.store().await);
    let guard = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
    guard.verify().await.unwrap();
    let broken = lease(&request("door", LONG)).with_owner(guard.token().clone());
    store.release(&broken, Duration::ZERO).await.unwrap();
    assert_eq!(guard.state(), State::Held, "nobody has notified it yet");
    assert_eq!(guard.verify().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!((guard.state(), guard.end_reason()), (State::Lost, Some(EndReason::Gone)));
    Ok(())
}

/// Work under a guard is dropped the moment the tenure ends, and not begun after it.
pub async fn work_stops_when_the_tenure_is_lost(subject: &dyn Subject) -> Outcome {
    let locks = locker(subject).await;
    let guard = locks.mutex("door").ttl(TTL * 2).fixed_lease().acquire().await.unwrap();
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
    let ttl = TTL * 2;
    let guard = locks.mutex("door").ttl(ttl).fixed_lease().acquire().await.unwrap();
    guard.extend(LONG).await.unwrap();
    assert!(guard.remaining() > LONG / 2);
    tokio::time::sleep(ttl + Duration::from_millis(200)).await;
    assert_eq!(guard.state(), State::Held);
    assert!(is_busy(&store, &request("door", LONG)).await);
    assert_eq!(guard.extend(Duration::from_millis(1)).await.unwrap_err().kind(), ErrorKind::Invalid);
    assert!(matches!(outcome_of(guard.release().await), ReleaseOutcome::Released));
    Ok(())
}

/// Renewals go well, and it ends all the same.
pub async fn a_longest_hold_ends_it(subject: &dyn Subject) -> Outcome {
    let locks = locker(subject).await;
    let (started, max) = (BootTime::now(), TTL * 2);
    let guard = locks.mutex("door").ttl(max).max_hold(max).acquire().await.unwrap();
    let loss = timeout(PATIENCE, guard.lost()).await.expect("it ends");
    let held = BootTime::now().since(started);
    assert_eq!(loss, EndReason::MaxHold);
    assert!(held >= max, "it ended after {held:?}");
    assert!(held < max + Duration::from_millis(500), "it ended only after {held:?}");
    assert!(matches!(outcome_of(guard.release().await), ReleaseOutcome::WasLost));
    assert_free(subject, "door").await;
    Ok(())
}

/// The name stays taken though the work is done, and longer than the ttl says.
pub async fn a_shortest_hold_keeps_the_name(subject: &dyn Subject) -> Outcome {
    let (locks, store) = (locker(subject).await, of_any_process(subject).await?);
    let (started, min) = (BootTime::now(), TTL * 2);
    let guard = locks.mutex("door").min_hold(min).acquire().await.unwrap();
    assert!(guard.lease_remaining() > TTL, "a crash would free it early");
    assert!(matches!(outcome_of(guard.release().await), ReleaseOutcome::Released));
    let freed = granted_after(&store, &request("door", LONG), started).await;
    assert!(freed + Duration::from_millis(5) >= min, "free after {freed:?}");
    assert!(freed < min + subject.overtime() + Duration::from_secs(2), "free only after {freed:?}");
    Ok(())
}

/// A lease leaves one guard and enters another, with a larger number; what was passed on twice fails.
pub async fn a_lease_passes_to_another(subject: &dyn Subject) -> Outcome {
    of_any_process(subject).await?;
    let (here, there) = (locker(subject).await, locker(subject).await);
    let guard = here.mutex("door").ttl(LONG).acquire().await.unwrap();
    let (fence, lost) = (guard.fence(), guard.lost());
    let lease = guard.into_lease();
    assert_eq!(timeout(PATIENCE, lost).await.unwrap(), EndReason::Released);
    let adopted = there.adopt(&lease).await.unwrap();
    assert!(adopted.fence() > fence || fence.is_none());
    assert_ne!(adopted.token(), &lease.owner);
    assert_eq!(there.adopt(&lease).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(there.renew(&lease).await.unwrap_err().kind(), ErrorKind::Lost);
    adopted.verify().await.unwrap();
    assert!(matches!(outcome_of(adopted.release().await), ReleaseOutcome::Released));
    here.flush_releases().await;
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
        let outcome = outcome_of(outcome);
        assert!(matches!(outcome, ReleaseOutcome::Released), "{name}: {outcome:?}");
    }
    assert!(guards.iter().all(|guard| guard.end_reason() == Some(EndReason::Released)));
    if listing(subject).await.is_ok() {
        assert_eq!(locks.list().await.unwrap(), []);
    }
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
        (locks.mutex("door").ttl(Duration::ZERO), "ttl of 0"),
        (locks.mutex("door").ttl(Duration::MAX), "century"),
        (locks.mutex("door").ttl(ms(1_000)).safety_margin(ms(900)), "too short"),
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

/// Any number of readers or one writer, who may become a reader; permits up to their number.
pub async fn guards_of_every_kind(subject: &dyn Subject) -> Outcome {
    two(subject).await?;
    let (here, there) = (locker(subject).await, locker(subject).await);
    let reader = here.read("page").ttl(LONG).acquire().await.unwrap();
    let other = there.read("page").ttl(LONG).try_acquire().await.unwrap().expect("readers hold together");
    assert!(there.write("page").try_acquire().await.unwrap().is_none());
    for reader in [reader, other] {
        assert!(matches!(outcome_of(reader.release().await), ReleaseOutcome::Released));
    }
    let writer = there.write("page").ttl(LONG).try_acquire().await.unwrap().expect("no reader is left");
    assert!(here.read("page").try_acquire().await.unwrap().is_none());
    writer.downgrade(Share::READ).await.unwrap();
    writer.verify().await.unwrap();
    let reader = here.read("page").ttl(LONG).wait(PATIENCE).acquire().await.unwrap();
    assert!(here.write("page").try_acquire().await.unwrap().is_none());
    assert!(reader.fence() > writer.fence() || reader.fence().is_none());

    let two = here.semaphore("pool", 3).permits(2).ttl(LONG).acquire().await.unwrap();
    assert!(there.semaphore("pool", 3).permits(2).try_acquire().await.unwrap().is_none());
    let one = there.semaphore("pool", 3).ttl(LONG).try_acquire().await.unwrap().expect("a permit is left");
    two.downgrade(Share::permits(1, 3).unwrap()).await.unwrap();
    let back = there.semaphore("pool", 3).ttl(LONG).wait(PATIENCE).acquire().await.unwrap();
    assert_eq!(here.mutex("pool").try_acquire().await.unwrap_err().kind(), ErrorKind::Mismatch);
    for guard in [writer, reader, two, one, back] {
        assert!(matches!(outcome_of(guard.release().await), ReleaseOutcome::Released));
    }
    assert_free(subject, "page").await;
    assert_free(subject, "pool").await;
    Ok(())
}

/// A downgrade acquires again, for a smaller share. An acquire with a supplied owner token is not repeated.
pub async fn a_given_token_is_not_downgraded(subject: &dyn Subject) -> Outcome {
    two(subject).await?;
    let locks = locker(subject).await;
    let writer = locks.write("page").ttl(LONG).token(Owner::from_bytes(&b"fixed"[..])).acquire().await.unwrap();
    let error = writer.downgrade(Share::READ).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Invalid, false), "{error}");
    assert_eq!((writer.state(), writer.end_reason()), (State::Held, None));
    assert!(locks.read("page").try_acquire().await.unwrap().is_none());
    assert!(matches!(outcome_of(writer.release().await), ReleaseOutcome::Released));
    assert_free(subject, "page").await;
    Ok(())
}

fn all_of(locks: &Locker, names: [&str; 3]) -> AcquireAll {
    locks.mutex(names[0]).ttl(LONG).wait(PATIENCE).and(names[1]).and(names[2])
}

async fn all_released(guards: Guards) {
    for (name, outcome) in guards.release().await {
        let outcome = outcome_of(outcome);
        assert!(matches!(outcome, ReleaseOutcome::Released), "{name}: {outcome:?}");
    }
}

/// One that is held leaves the others free; one that is lost ends the work under all.
pub async fn several_names_are_all_or_nothing(subject: &dyn Subject) -> Outcome {
    let (here, there) = (locker(subject).await, locker(subject).await);
    let names = ["door", "attic", "cellar"];
    for held in names {
        let guard = there.mutex(held).ttl(LONG).acquire().await.unwrap();
        assert!(all_of(&here, names).try_acquire().await.unwrap().is_none());
        for free in names.into_iter().filter(|name| *name != held) {
            assert_free(subject, free).await;
        }
        assert!(matches!(outcome_of(guard.release().await), ReleaseOutcome::Released));
    }
    let guards = all_of(&here, names).acquire().await.unwrap();
    assert!(guards.iter().map(tenure::Guard::name).is_sorted() && guards.iter().count() == 3);
    assert_eq!(guards.run(async { 42 }).await.unwrap(), 42);
    let second = guards.iter().nth(1).unwrap();
    let broken = lease(&request(second.name().as_str(), LONG)).with_owner(second.token().clone());
    assert!(matches!(outcome_of(there.release(&broken).await), ReleaseOutcome::Released));
    assert_eq!(second.verify().await.unwrap_err().kind(), ErrorKind::Lost);
    let error = timeout(PATIENCE, guards.run(std::future::pending::<()>())).await.expect("work is stopped").unwrap_err();
    assert_eq!((error.kind(), guards.state()), (ErrorKind::Lost, State::Lost));
    let outcomes: Vec<_> = guards.release().await.into_iter().map(|(_, outcome)| outcome_of(outcome)).collect();
    assert!(
        matches!(outcomes[..], [ReleaseOutcome::Released, ReleaseOutcome::WasLost, ReleaseOutcome::Released]),
        "{outcomes:?}"
    );
    for name in names {
        assert_free(subject, name).await;
    }
    Ok(())
}

/// Those who say the same names in opposite orders all have their turn.
pub async fn opposite_orders_never_deadlock(subject: &dyn Subject) -> Outcome {
    let (mut tasks, lockers) = (Vec::new(), [locker(subject).await, locker(subject).await]);
    for (locks, order) in lockers.iter().zip([["a", "b", "c"], ["c", "b", "a"]]) {
        for _ in 0..2 {
            let locks = locks.clone();
            tasks.push(tokio::spawn(async move {
                for _ in 0..15 {
                    all_released(all_of(&locks, order).acquire().await.unwrap()).await;
                }
            }));
        }
    }
    for task in tasks {
        joined(timeout(PATIENCE, task).await.expect("they wait for each other"));
    }
    // The last turns may have been passed on within a process, whose place at the store is given up in the background.
    for locks in lockers {
        locks.flush_releases().await;
    }
    for name in ["a", "b", "c"] {
        assert_free(subject, name).await;
    }
    Ok(())
}

/// A wait for several that is dropped with some of them held leaves nothing of them.
pub async fn a_cancelled_wait_for_several_leaves_nothing(subject: &dyn Subject) -> Outcome {
    let (here, there, store) = (locker(subject).await, locker(subject).await, subject.store().await);
    let last = there.mutex("c").ttl(LONG).acquire().await.unwrap();
    let waiter = tokio::spawn(all_of(&here, ["c", "b", "a"]).acquire());
    let deadline = tokio::time::Instant::now() + PATIENCE;
    for name in ["a", "b"] {
        while store.inspect(Some(&super::steps::name(name))).await.unwrap().is_empty() {
            assert!(tokio::time::Instant::now() < deadline, "{name} was never taken");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    waiter.abort();
    assert!(timeout(PATIENCE, waiter).await.unwrap().unwrap_err().is_cancelled());
    here.flush_releases().await;
    assert_free(subject, "a").await;
    assert_free(subject, "b").await;
    assert!(matches!(outcome_of(last.release().await), ReleaseOutcome::Released));
    assert_free(subject, "c").await;
    Ok(())
}
