//! The watchdog runs in one runtime: reports to holders in others, and how it moves. In real time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tenure::{BootClock, BootTime, Clock, EndReason, ErrorKind, Locker, ReleaseOutcome, State};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::scripted_store::{Fate, ScriptedStore};
use crate::{LONG, SOON, ms};

/// It outlasts a pause of two seconds.
const BRIEF: Duration = ms(3_600);
/// Longer than a brief lease that nobody renews.
const AFTER: Duration = ms(3_900);

fn over_a_store() -> (ScriptedStore, Locker) {
    let store = ScriptedStore::with(BootClock, |features| features.operation_timeout = Some(ms(50)));
    (store.clone(), Locker::new(store))
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// The first runtime has taken a lock, and is not driven from then on. It may be gone altogether.
fn told_in_another_runtime(gone: bool) {
    let (store, locks) = over_a_store();
    let mut first = Some(runtime());
    let other = first.as_ref().unwrap().block_on(locks.mutex("other").ttl(LONG).acquire()).unwrap();
    if gone {
        first = None;
    }
    runtime().block_on(async {
        let guard = locks.mutex("door").ttl(BRIEF).fixed_lease().acquire().await.unwrap();
        let lost = timeout(SOON, guard.run(std::future::pending::<()>())).await.expect("the work runs on");
        assert_eq!(lost.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(timeout(SOON, guard.lost()).await.unwrap(), EndReason::Expired);
        drop(guard);
        if !gone {
            // A runtime counts as not driven when its task is a second late.
            tokio::time::sleep(ms(1_050)).await;
        }
        let guard = locks.mutex("door").ttl(BRIEF).acquire().await.unwrap();
        tokio::time::sleep(AFTER).await;
        assert_eq!((guard.state(), guard.end_reason()), (State::Held, None), "nobody renews");
        drop(other);
        timeout(SOON, locks.flush_releases()).await.expect("nobody clears up");
    });
    drop(first);
    assert!(store.released().len() >= 2);
}

#[test]
fn a_runtime_is_told_of_its_losses_while_the_first_is_not_driven() {
    told_in_another_runtime(false);
}

#[test]
fn a_runtime_is_told_of_its_losses_when_the_first_is_gone() {
    told_in_another_runtime(true);
}

/// The guard outlives the runtime it was taken in; the next use in another has it renewed there.
fn renewed_in_another_runtime(used: impl AsyncFnOnce(&tenure::Guard)) {
    let (_store, locks) = over_a_store();
    let guard = runtime().block_on(locks.mutex("door").ttl(BRIEF).acquire()).unwrap();
    runtime().block_on(async {
        used(&guard).await;
        tokio::time::sleep(AFTER).await;
        assert_eq!(guard.state(), State::Held, "nobody renews");
    });
}

#[test]
fn work_that_is_run_in_another_runtime_has_its_guard_renewed_there() {
    renewed_in_another_runtime(async |guard| guard.run(tokio::time::sleep(AFTER)).await.expect("nobody renews"));
}

#[test]
fn a_guard_that_is_verified_in_another_runtime_is_renewed_there() {
    renewed_in_another_runtime(async |guard| guard.verify().await.unwrap());
}

/// A task that was replaced while its runtime stood still ends when that goes on, and leaves everything to the other.
#[test]
fn a_task_that_was_replaced_ends() {
    let (store, locks) = over_a_store();
    let (first, second) = (runtime(), runtime());
    let guard = first.block_on(locks.mutex("door").ttl(LONG).acquire()).unwrap();
    std::thread::sleep(ms(1_050));
    let other = second.block_on(locks.mutex("gate").ttl(LONG).acquire()).unwrap();
    first.block_on(async { tokio::time::sleep(ms(10)).await });
    assert_eq!((first.metrics().num_alive_tasks(), second.metrics().num_alive_tasks()), (0, 1));
    drop(first);
    second.block_on(async {
        guard.extend(LONG * 2).await.unwrap();
        drop((guard, other));
        timeout(SOON, locks.flush_releases()).await.expect("nobody clears up");
    });
    assert_eq!((store.renewals().len(), store.released().len()), (1, 2));
}

/// A runtime ends in the middle of an extension: its caller gets an error, in whatever runtime.
#[test]
fn an_extension_whose_runtime_ends_is_told() {
    let (store, locks) = over_a_store();
    let first = runtime();
    let guard = first.block_on(locks.mutex("door").ttl(LONG).acquire()).unwrap();
    let (second, began) = (runtime(), Instant::now());
    let mut extending = std::pin::pin!(guard.extend(LONG));
    let waited = second.block_on(async { timeout(ms(10), extending.as_mut()).await });
    // A runtime counts as not driven when its task is a second late.
    let asked = began.elapsed();
    assert!(asked < ms(900), "it was asked only after {asked:?}");
    assert!(waited.is_err(), "the first runtime is not driven");
    drop(first);
    let told = second.block_on(async { timeout(SOON, extending).await.expect("it hangs") });
    let error = told.unwrap_err();
    assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Unavailable, true));
    assert_eq!((guard.state(), store.renewals().len()), (State::Held, 0), "it was never sent");
    second.block_on(guard.extend(LONG)).expect("the task of this runtime has it");
    assert_eq!(store.renewals().len(), 1);
}

/// The thread that drives the runtime panics, with guards in its hands: it ends, and others go on.
#[test]
fn a_program_that_panics_ends() {
    let (_store, locks) = over_a_store();
    let theirs = locks.clone();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let runtime = runtime();
        let guard = runtime.block_on(async {
            let guard = theirs.mutex("door").ttl(LONG).acquire().await.unwrap();
            tokio::task::yield_now().await;
            // Not polled any more: the panic comes first.
            drop(theirs.mutex("gate").ttl(LONG).acquire().await.unwrap());
            guard
        });
        let _in_hand = (guard, runtime);
        panic!("as the test wants it");
    }));
    assert!(panicked.is_err());
    runtime().block_on(async {
        timeout(SOON, locks.flush_releases()).await.expect("nobody clears up");
        let guard = locks.mutex("door").ttl(BRIEF).acquire().await.unwrap();
        assert!(matches!(guard.release().await.unwrap(), ReleaseOutcome::Released));
    });
}

/// If the clock's timer cannot work, the caller of an acquisition sees the panic, and not a task in
/// the background.
#[test]
fn a_runtime_without_timers_is_told_to_the_caller() {
    let (_store, locks) = over_a_store();
    let bare = Builder::new_current_thread().enable_time().build().unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| bare.block_on(locks.mutex("door").acquire()))).is_err());
    // Nor are timers promised for a time that has passed.
    let store = ScriptedStore::with(BootClock, |_| ());
    let locks = Locker::builder(store).clock(NoTimers).build().unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| runtime().block_on(locks.mutex("door").acquire()))).is_err());
}

/// A clock whose timers work for what has passed only.
#[derive(Clone, Debug)]
struct NoTimers;

impl Clock for NoTimers {
    fn now(&self) -> BootTime {
        BootTime::now()
    }

    fn sleep_until(&self, at: BootTime) -> BoxFuture<'static, ()> {
        Box::pin(async move { assert!(at <= BootTime::now(), "this clock has no timers") })
    }
}

/// A runtime whose task sleeps for long is not driven any more. The next caller that needs the task
/// earlier finds out.
#[test]
fn a_short_lease_is_renewed_though_the_task_sleeps_in_a_runtime_that_stands_still() {
    let (store, locks) = over_a_store();
    let (first, second) = (runtime(), runtime());
    // Its task has run, and has a renewal under way that will never be answered there.
    store.fated(Fate::Hangs);
    let long = first.block_on(async {
        store.fated(Fate::Works);
        let _far = locks.mutex("far").ttl(LONG).acquire().await.unwrap().into_lease();
        let long = locks.mutex("long").ttl(ms(9_000)).acquire().await.unwrap();
        store.fated(Fate::Hangs);
        timeout(SOON, store.called()).await.expect("nobody renews");
        long
    });
    store.fated(Fate::Works);
    second.block_on(async {
        let short = locks.mutex("short").ttl(ms(5_400)).acquire().await.unwrap();
        tokio::time::sleep(ms(1_050)).await;
        long.verify().await.unwrap();
        tokio::time::sleep(ms(4_500)).await;
        assert_eq!((short.state(), long.state()), (State::Held, State::Held), "nobody renews");
    });
}

/// A caller that waits for releases in one runtime sends them when that of the task ends.
#[test]
fn clean_ups_go_on_where_somebody_waits_for_them() {
    let (store, locks) = over_a_store();
    let (first, second) = (runtime(), runtime());
    first.block_on(async {
        let guard = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
        store.fated(Fate::Hangs);
        drop(guard);
        timeout(SOON, store.called()).await.expect("nobody clears up");
    });
    store.fated(Fate::Works);
    second.block_on(async {
        let mut settled = std::pin::pin!(locks.flush_releases());
        assert!(timeout(ms(20), settled.as_mut()).await.is_err(), "it is under way elsewhere");
        std::thread::spawn(move || drop(first)).join().unwrap();
        timeout(SOON, settled).await.expect("nobody clears up");
    });
    assert_eq!(store.released().len(), 2);
}
