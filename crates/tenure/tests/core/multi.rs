//! Several names at once, all or nothing.

use std::time::Duration;

use tenure::{AcquireAll, EndReason, ErrorKind, Guards, Locker, Name, ReleaseOutcome, State};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::scripted_store::{Call, Fate, SLOW, ScriptedStore};
use crate::{LONG, SOON, lease_of, locker, ms, secs, settle, world, world_with};

fn three(locks: &Locker) -> AcquireAll {
    locks.mutex("c").ttl(LONG).and("a").and("b").and("c")
}

async fn waiter(acquire: AcquireAll) -> JoinHandle<Guards> {
    let waiter = tokio::spawn(async { acquire.acquire().await.unwrap() });
    settle().await;
    assert!(!waiter.is_finished());
    waiter
}

async fn taken(waiter: JoinHandle<Guards>) -> Guards {
    timeout(SOON, waiter).await.expect("the waiter was forgotten").unwrap()
}

async fn held(locks: &Locker) -> Vec<String> {
    let mut names: Vec<_> = locks.list().await.unwrap().into_iter().map(|entry| entry.name.to_string()).collect();
    names.sort();
    names
}

fn names(guards: &Guards) -> Vec<Name> {
    guards.iter().map(|guard| guard.name().clone()).collect()
}

fn expected(names: &[&str]) -> Vec<Name> {
    names.iter().map(|name| Name::new(name).unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn free_names_are_taken_in_the_time_of_one() {
    let (_clock, store, locks) = world();
    store.fated(Fate::Slow);
    let started = Instant::now();
    let guards = three(&locks).acquire().await.unwrap();
    assert_eq!((started.elapsed(), store.acquires().len()), (SLOW, 3), "{:?}", store.calls());
    assert_eq!(names(&guards), expected(&["a", "b", "c"]));
    assert!(guards.fences().all(|(_, fence)| fence.is_some()) && guards.fences().count() == 3);
    assert_eq!((guards.state(), guards.end_reason()), (State::Held, None));
    assert!(guards.remaining() > LONG / 2 && guards.remaining() < guards.lease_remaining());
    let released = guards.release().await;
    assert_eq!(released.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>(), expected(&["a", "b", "c"]));
    assert!(released.iter().all(|(_, release)| matches!(release, Ok(ReleaseOutcome::Released))), "{released:?}");
    assert_eq!(started.elapsed(), SLOW * 2, "they were released one after another");
    store.fated(Fate::Works);
    assert!(held(&locks).await.is_empty());
}

fn three_for(locks: &Locker, wait: Duration) -> AcquireAll {
    locks.mutex("c").ttl(LONG).wait(wait).and("a").and("b")
}

/// The wait is one for all: the second name has what the first left of it.
#[tokio::test(start_paused = true)]
async fn one_deadline_for_all() {
    let (clock, store, locks) = world();
    let there = locker(&clock, &store);
    let first = there.mutex("a").ttl(LONG).acquire().await.unwrap();
    let _last = there.mutex("c").ttl(LONG).acquire().await.unwrap();
    let started = Instant::now();
    let waiter = tokio::spawn(three_for(&locks, secs(5)).acquire());
    tokio::time::sleep(secs(3)).await;
    let _ = first.release().await.unwrap();
    let error = timeout(secs(10), waiter).await.unwrap().unwrap().unwrap_err();
    assert_eq!((error.kind(), started.elapsed()), (ErrorKind::TimedOut, secs(5)), "{error}");
    assert_eq!(held(&locks).await, ["c"]);
}

/// For all in one step, and then to learn who holds one.
#[tokio::test(start_paused = true)]
async fn who_has_no_time_asks_no_further_than_he_gets() {
    let (clock, store, locks) = world();
    let _held = locker(&clock, &store).mutex("b").ttl(LONG).acquire().await.unwrap();
    store.forget_calls();
    assert!(three(&locks).try_acquire().await.unwrap().is_none());
    assert_eq!(asked(&store), expected(&["a", "b", "c", "a", "b"]));
}

/// The names of the requests, in order.
fn asked(store: &ScriptedStore) -> Vec<Name> {
    let name = |(_, call): (_, Call)| if let Call::Acquire(request) = call { Some(request.name) } else { None };
    store.calls().into_iter().filter_map(name).collect()
}

/// A name that is known to be busy is not tried, and the others are not taken in vain.
#[tokio::test(start_paused = true)]
async fn names_that_others_here_wait_for_are_waited_for_at_once() {
    let (clock, store, locks) = world();
    let _held = locker(&clock, &store).mutex("b").ttl(LONG).acquire().await.unwrap();
    let _first = waiter(locks.mutex("b").ttl(LONG).into()).await;
    store.forget_calls();
    let _second = waiter(three(&locks)).await;
    assert_eq!(asked(&store), expected(&["a"]));
}

/// Of two clients without time to wait that begin in the same moment, one gets all.
#[tokio::test(start_paused = true)]
async fn tries_do_not_cost_each_other_everything() {
    for lead in 0..40 {
        let (clock, store, here) = world();
        let there = locker(&clock, &store);
        let second = async {
            for _ in 0..lead {
                tokio::task::yield_now().await;
            }
            there.mutex("b").ttl(LONG).and("a").and("c").try_acquire().await.unwrap()
        };
        store.fated(if lead % 2 == 0 { Fate::Slow } else { Fate::Works });
        let (one, other) = tokio::join!(three(&here).try_acquire(), second);
        assert!(one.unwrap().is_some() != other.is_some(), "lead {lead}");
    }
}

/// A name that is lost while a later one is waited for is taken again, before the guards are
/// returned.
#[tokio::test(start_paused = true)]
async fn a_loss_on_the_way_begins_anew() {
    let (clock, store, locks) = world();
    let there = locker(&clock, &store);
    let blocker = there.mutex("c").ttl(LONG).acquire().await.unwrap();
    let waiter = waiter(three(&locks)).await;
    let entry = locks.inspect("a").await.unwrap().unwrap();
    let lost = lease_of(&blocker).with_owner(entry.holders[0].owner.clone()).with_name(entry.name);
    let _ = there.release(&lost).await.unwrap();
    let thief = there.mutex("a").ttl(LONG).acquire().await.unwrap();
    tokio::time::sleep(LONG).await;
    assert_eq!(held(&locks).await, ["a", "c"], "b is kept though a is lost");
    let _ = blocker.release().await.unwrap();
    settle().await;
    assert!(!waiter.is_finished(), "it regards itself as the holder of a, which another has");
    let fence = thief.fence();
    let _ = thief.release().await.unwrap();
    let guards = taken(waiter).await;
    for guard in &guards {
        guard.verify().await.unwrap();
    }
    assert!(guards.fences().next().unwrap().1 > fence);
}

/// A fixed lease begins when all are held, however long that took.
#[tokio::test(start_paused = true)]
async fn fixed_leases_are_kept_until_all_are_held() {
    let (clock, store, locks) = world();
    let last = locker(&clock, &store).mutex("c").ttl(LONG).acquire().await.unwrap();
    let waiter = waiter(locks.mutex("a").ttl(secs(10)).fixed_lease().and("b").and("c")).await;
    let owner = locks.inspect("a").await.unwrap().unwrap().holders[0].owner.clone();
    tokio::time::sleep(secs(101)).await;
    let _ = last.release().await.unwrap();
    let guards = taken(waiter).await;
    assert_eq!(guards.iter().next().unwrap().token(), &owner, "it was lost on the way");
    assert!(guards.remaining() > ms(8_800), "{:?}", guards.remaining());
    assert_eq!(timeout(secs(20), guards.lost()).await.unwrap().1, EndReason::Expired, "somebody renews them");
}

/// So does a longest hold. Its end is reported without a call.
#[tokio::test(start_paused = true)]
async fn a_longest_hold_begins_when_all_are_held() {
    let (clock, store, locks) = world();
    let last = locker(&clock, &store).mutex("c").ttl(LONG * 10).acquire().await.unwrap();
    let waiter = waiter(locks.mutex("a").ttl(LONG).max_hold(secs(5)).and("b").and("c")).await;
    tokio::time::sleep(secs(101)).await;
    let _ = last.release().await.unwrap();
    let guards = taken(waiter).await;
    let begun = Instant::now();
    assert!(guards.iter().next().unwrap().remaining() == secs(5), "{guards:?}");
    let cancelled: Vec<_> = guards.iter().map(tenure::Guard::cancellation).collect();
    for token in cancelled {
        timeout(LONG, token.cancelled()).await.expect("nobody tells");
    }
    assert_eq!((begun.elapsed(), guards.end_reason().unwrap().1), (secs(5), EndReason::MaxHold));
    let at_once = locks.mutex("d").ttl(LONG).max_hold(LONG * 3).and("e").acquire().await.unwrap();
    tokio::time::sleep(LONG * 3 - ms(1)).await;
    assert_eq!(at_once.state(), State::Held, "renewals do not go on");
    assert_eq!(timeout(ms(2), at_once.lost()).await.unwrap().1, EndReason::MaxHold);
}

/// A pause after the work is not due where no work has begun.
#[tokio::test(start_paused = true)]
async fn names_that_come_back_unused_do_not_linger() {
    let (clock, store, locks) = world();
    let all = |locks: &Locker| locks.mutex("a").ttl(LONG).linger(LONG).min_hold(LONG).and("b").and("c");
    let last = locker(&clock, &store).mutex("c").ttl(LONG).acquire().await.unwrap();
    assert!(all(&locks).try_acquire().await.unwrap().is_none());
    assert_eq!(held(&locks).await, ["c"]);
    let waiter = waiter(all(&locks)).await;
    assert_eq!(held(&locks).await, ["a", "b", "c"]);
    waiter.abort();
    settle().await;
    locks.flush_releases().await;
    assert_eq!(held(&locks).await, ["c"]);
    let _ = last.release().await.unwrap();
    let _ = all(&locks).acquire().await.unwrap().release().await;
    assert_eq!(held(&locks).await, ["a", "b", "c"], "the pause after the work is due");
}

#[tokio::test(start_paused = true)]
async fn work_ends_with_the_first_that_is_lost() {
    let (clock, store, locks) = world();
    let guards = three(&locks).acquire().await.unwrap();
    assert_eq!(guards.run(async { 7 }).await.unwrap(), 7);
    let broken = lease_of(guards.iter().nth(1).unwrap());
    let _ = locker(&clock, &store).release(&broken).await.unwrap();
    let (name, loss) = {
        let lost = guards.lost();
        let error = timeout(LONG, guards.run(std::future::pending::<()>())).await.expect("it goes on").unwrap_err();
        assert!(error.kind() == ErrorKind::Lost && error.to_string().contains("\"b\""), "{error}");
        lost.await
    };
    assert_eq!((name.as_str(), loss, guards.state()), ("b", EndReason::Gone, State::Lost));
    assert_eq!((guards.end_reason(), guards.remaining()), (Some((&name, loss)), Duration::ZERO));
    assert_eq!(held(&locks).await, ["a", "c"], "those that stand cover the end of the work");
    let released = guards.release().await;
    let gone: Vec<_> = released.iter().map(|(_, release)| matches!(release, Ok(ReleaseOutcome::WasLost))).collect();
    assert_eq!(gone, [false, true, false]);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_waited_for() {
    let (_clock, store, locks) = world();
    drop(locks.mutex("z").acquire().await.unwrap());
    locks.flush_releases().await;
    for fate in [Fate::Fails, Fate::Unheard] {
        store.fated(fate);
        assert!(three(&locks).try_acquire().await.unwrap_err().is_transient());
        let waiter = waiter(three(&locks)).await;
        tokio::time::sleep(secs(7)).await;
        store.fated(Fate::Works);
        drop(taken(waiter).await);
        locks.flush_releases().await;
        assert!(held(&locks).await.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_one_is_the_answer_for_all() {
    let (clock, store, locks) = world();
    let _other_kind = locker(&clock, &store).semaphore("b", 3).ttl(LONG).acquire().await.unwrap();
    let started = Instant::now();
    for acquire in [three(&locks), three_for(&locks, LONG), three_for(&locks, Duration::ZERO)] {
        assert_eq!(acquire.acquire().await.unwrap_err().kind(), ErrorKind::Mismatch);
        assert_eq!((held(&locks).await, started.elapsed()), (vec!["b".to_owned()], Duration::ZERO));
    }
    // Also where another name would be waited for.
    let _busy = locker(&clock, &store).mutex("a").ttl(LONG).acquire().await.unwrap();
    let error = three_for(&locks, LONG).acquire().await.unwrap_err();
    assert_eq!((error.kind(), started.elapsed()), (ErrorKind::Mismatch, Duration::ZERO));
    assert!(error.to_string().contains("\"b\""), "{error}");
    assert_eq!(held(&locks).await, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn settings_that_cannot_work_are_told_before_anything_is_sent() {
    let (_clock, store, locks) = world_with(|features| features.max_name = 8);
    let given = || "job-7".parse().unwrap();
    for (bad, why) in [
        (locks.mutex("a").and(""), "empty"),
        (locks.mutex("").and("a"), "empty"),
        (locks.mutex("a").and("b".repeat(9)), "bytes"),
        (locks.mutex("a").ttl(Duration::ZERO).and("b"), "ttl"),
        (locks.mutex("a").token(given()).and("b"), "supplied"),
        (locks.semaphore("a", 2).permits(3).and("b"), "permits"),
    ] {
        let error = bad.acquire().await.unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains(why), "{error}");
    }
    assert!(store.calls().is_empty(), "{:?}", store.calls());
    let one = AcquireAll::from(locks.mutex("a").token(given())).and("a").acquire().await.unwrap();
    assert_eq!(one.iter().next().unwrap().token(), &given());
}

#[test]
fn several_names_without_a_runtime() {
    let store = ScriptedStore::with(tenure::BootClock, |_| ());
    let locks = tenure::blocking::Locker::connect(async { Ok(Locker::new(store.clone())) }).unwrap();
    let guards = locks.mutex("b").ttl(LONG).and("a").acquire().unwrap();
    assert!(locks.mutex("c").ttl(LONG).and("a").try_acquire().unwrap().is_none());
    assert_eq!((guards.state(), guards.fences().count()), (State::Held, 2));
    assert!(guards.remaining() > LONG / 2);
    assert!(format!("{guards:?}").contains("\"a\""), "{guards:?}");
    assert!(guards.release().iter().all(|(_, release)| matches!(release, Ok(ReleaseOutcome::Released))));
    let guards = locks.write("d").ttl(LONG).and("e").try_acquire().unwrap().expect("they are free");
    for guard in guards {
        guard.downgrade(tenure::Share::READ).unwrap();
        assert!(locks.read(guard.name()).ttl(LONG).try_acquire().unwrap().is_some());
    }
    let permits = locks.semaphore("f", 2).ttl(LONG).acquire().unwrap();
    assert!(matches!(permits.release().unwrap(), ReleaseOutcome::Released));
}
