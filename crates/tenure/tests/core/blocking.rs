//! The same locks without a runtime. In real time.

use std::time::Instant;

use tenure::blocking::Locker;
use tenure::{BootClock, EndReason, ErrorKind, ReleaseOutcome, State};

use crate::scripted_store::{Fate, ScriptedStore};
use crate::{LONG, ms, secs};

fn over_a_store() -> (ScriptedStore, Locker) {
    let store = ScriptedStore::with(BootClock, |_| ());
    let locks = tenure::Locker::new(store.clone());
    (store, Locker::connect(async { Ok(locks) }).unwrap())
}

#[test]
fn a_lock_is_taken_shown_verified_extended_and_released() {
    let (_store, locks) = over_a_store();
    let guard = locks.mutex("door").ttl(LONG).acquire().unwrap();
    assert_eq!((guard.name().as_str(), guard.state()), ("door", State::Held));
    assert!(guard.remaining() > LONG / 2 && guard.fence().is_some_and(|fence| fence.counter() == 1));
    let entry = locks.inspect("door").unwrap().expect("it is held");
    assert_eq!(&entry.holders[0].owner, guard.token());
    let listed: Vec<_> = locks.list().unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(listed, [entry.name]);
    assert_eq!(locks.inspect("gate").unwrap(), None);
    guard.verify().unwrap();
    guard.extend(LONG * 2).unwrap();
    assert!(guard.remaining() > LONG);
    assert!(format!("{guard:?}").contains("door"), "{guard:?}");
    assert!(format!("{locks:?}").contains("Locker"), "{locks:?}");
    assert!(matches!(guard.release().unwrap(), ReleaseOutcome::Released));
    assert_eq!(locks.list().unwrap(), []);
}

#[test]
fn a_try_does_not_wait_and_a_refusal_is_told() {
    let (store, locks) = over_a_store();
    let guard = locks.mutex("door").ttl(LONG).try_acquire().unwrap().expect("it is free");
    assert!(locks.mutex("door").ttl(LONG).try_acquire().unwrap().is_none());
    assert_eq!(locks.mutex("door").ttl(LONG).wait(ms(10)).acquire().unwrap_err().kind(), ErrorKind::TimedOut);
    store.fated(Fate::Says(ErrorKind::Refused));
    assert_eq!(locks.mutex("door").ttl(LONG).try_acquire().unwrap_err().kind(), ErrorKind::Refused);
    assert_eq!(guard.verify().unwrap_err().kind(), ErrorKind::Refused);
    assert_eq!(guard.state(), State::Held, "without an answer it stays as it was");
    assert_eq!(guard.extend(LONG).unwrap_err().kind(), ErrorKind::Refused);
    assert_eq!(locks.list().unwrap_err().kind(), ErrorKind::Refused);
    store.fated(Fate::Works);
    let refused = Locker::connect(async { Err(tenure::Error::refused("password")) });
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Refused);
}

#[test]
fn a_lease_passes_is_used_by_its_token_and_everything_is_given_up() {
    let (store, locks) = over_a_store();
    let lease = locks.mutex("door").ttl(LONG).acquire().unwrap().into_lease();
    locks.renew(&lease).unwrap();
    let adopted = locks.adopt(&lease).unwrap();
    assert_ne!(adopted.token(), &lease.owner);
    assert_eq!(locks.adopt(&lease).unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(locks.renew(&lease).unwrap_err().kind(), ErrorKind::Lost);
    assert!(matches!(locks.release(&lease).unwrap(), ReleaseOutcome::WasLost));
    store.forget_calls();
    let outcomes = locks.release_all();
    assert!(matches!(&outcomes[..], [(name, Ok(ReleaseOutcome::Released))] if name.as_str() == "door"), "{outcomes:?}");
    assert_eq!((adopted.state(), adopted.end_reason()), (State::Lost, Some(EndReason::Released)));
    assert!(matches!(adopted.release().unwrap(), ReleaseOutcome::WasLost));
    locks.flush_releases();
    assert!(store.released().len() == 1 && locks.release_all().is_empty(), "a token is released once");
    let lease = locks.mutex("gate").ttl(LONG).acquire().unwrap().into_lease();
    assert!(matches!(locks.release(&lease).unwrap(), ReleaseOutcome::Released));
    store.fated(Fate::Slow);
    drop(locks.mutex("gate").ttl(LONG).acquire().unwrap());
    locks.flush_releases();
    store.fated(Fate::Works);
    assert_eq!(locks.list().unwrap(), []);
}

#[test]
fn a_name_is_given_up_as_often_as_it_was_taken() {
    let (store, locks) = over_a_store();
    let outer = locks.mutex("door").ttl(LONG).acquire().unwrap();
    let (middle, inner) = (outer.reenter(), outer.reenter());
    assert_eq!((outer.holds(), inner.token(), inner.fence()), (3, outer.token(), outer.fence()));
    assert!(matches!(outer.release().unwrap(), ReleaseOutcome::StillHeld(2)));
    drop(middle);
    assert!(inner.lease_remaining() > inner.remaining() && store.released().is_empty());
    assert_eq!((inner.holds(), inner.state(), inner.end_reason()), (1, State::Held, None));
    assert!(matches!(inner.release().unwrap(), ReleaseOutcome::Released));
}

/// The background thread renews while the caller works, and the guard keeps the thread.
#[test]
fn a_lock_is_renewed_while_its_thread_works() {
    let (_store, locks) = over_a_store();
    let guard = locks.mutex("door").ttl(secs(3)).acquire().unwrap();
    drop(locks);
    std::thread::sleep(ms(3_300));
    assert_eq!(guard.state(), State::Held, "nobody renewed it");
}

/// A program ends: the guard goes, then the locker, then the process. The release has a second.
#[test]
fn the_last_handle_waits_for_the_last_release() {
    let (store, locks) = over_a_store();
    let guard = locks.mutex("door").ttl(LONG).acquire().unwrap();
    store.fated(Fate::Slow);
    drop(guard);
    drop(locks);
    store.fated(Fate::Works);
    let next = tenure::Locker::new(store.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert_eq!(runtime.block_on(next.list()).unwrap(), []);
    // Not for ever; and not at all inside a runtime, where nothing may block.
    for inside in [false, true] {
        let locks = tenure::Locker::new(store.clone());
        let locks = Locker::connect(async { Ok(locks) }).unwrap();
        let guard = locks.mutex("gate").ttl(LONG).acquire().unwrap();
        store.fated(Fate::Fails);
        drop(guard);
        let started = Instant::now();
        if inside {
            runtime.block_on(async { drop(locks) });
            assert!(started.elapsed() < ms(500), "the end of the runtime took {:?}", started.elapsed());
        } else {
            drop(locks);
            assert!(started.elapsed() < secs(3), "{:?}", started.elapsed());
        }
        store.fated(Fate::Works);
        runtime.block_on(async {
            for entry in next.list().await.unwrap() {
                let lease = tenure::Lease::new(entry.name, entry.holders[0].owner.clone(), tenure::Share::MUTEX, LONG);
                let _ = next.release(&lease).await.unwrap();
            }
        });
    }
}

/// Run by the test below, in a process whose threads the system refuses.
#[test]
#[ignore = "needs a system that refuses threads"]
fn connects_without_threads() {
    let connected = tenure::blocking::Locker::connect(async { Ok(tenure::Locker::new(tenure::MemoryStore::new())) });
    let error = connected.expect_err("there was a thread to be had");
    assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Unavailable, false), "{error}");
}

/// An error, as the documentation says, and no panic.
#[test]
fn a_thread_that_cannot_be_had_is_told() {
    let child = std::process::Command::new("strace")
        .args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=clone,clone3", "-e", "inject=clone,clone3:error=EAGAIN"])
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "blocking::connects_without_threads", "--test-threads=1"])
        .output()
        .expect("cannot run strace(1); get it with: apt-get install strace");
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&child.stderr));
}
