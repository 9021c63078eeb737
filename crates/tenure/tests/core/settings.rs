//! Settings under which no lease could be kept are refused, by name. All others work.

use std::time::Duration;

use tenure::{Acquire, ErrorKind, Locker, MemoryStore};

use crate::{LIMIT, LONG, ms, secs, world, world_with};

fn refused(bad: &Acquire, why: &str) {
    let error = bad.check().expect_err(why);
    assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Invalid, false), "{error}");
    assert!(error.to_string().contains(why), "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_work_is_refused_before_anything_is_sent() {
    let (_clock, store, locks) = world_with(|features| features.max_name = 20);
    let century = secs(100 * 365 * 86_400);
    let door = || locks.mutex("door").ttl(LONG);
    for (bad, why) in [
        (locks.mutex("n".repeat(21)), "21 bytes, more than the 20"),
        (locks.mutex("door").ttl(century + ms(1)), "century"),
        (door().min_hold(century + ms(1)), "century"),
        (door().max_hold(secs(1)).min_hold(secs(2)), "shorter than the shortest"),
    ] {
        refused(&bad, why);
        assert_eq!(bad.acquire().await.unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert!(store.calls().is_empty());
    for good in [
        locks.mutex("n".repeat(20)),
        locks.mutex("door").ttl(century),
        door().min_hold(century),
        door().max_hold(secs(2)).min_hold(secs(2)),
        door().max_hold(secs(2)).min_hold(secs(1)),
        door().max_hold(ms(1)),
    ] {
        good.check().unwrap();
    }
}

/// A renewal must have had time to fail once before work has to stop: a third of the ttl and one timeout.
#[tokio::test(start_paused = true)]
async fn the_shortest_ttl_leaves_time_for_a_renewal() {
    let (clock, store, _) = world();
    let locks = Locker::builder(store).clock(clock).drift(0.0).safety_margin(Duration::ZERO).build().unwrap();
    let door = |millis| locks.mutex("door").ttl(ms(millis));
    // Less 2 ms, the resolution of clocks.
    refused(&door(303), "a renewal with its timeout of 200ms needs 301ms");
    door(304).check().unwrap();
    refused(&door(202).fixed_lease(), "too short");
    door(203).fixed_lease().check().unwrap();
    refused(&door(304).safety_margin(ms(1)), "safety margin of 1ms");
    assert_eq!(LIMIT, ms(200));
}

#[tokio::test(start_paused = true)]
async fn the_shortest_ttl_is_the_stores() {
    let locks = Locker::builder(MemoryStore::new()).drift(0.0).safety_margin(Duration::ZERO).build().unwrap();
    refused(&locks.mutex("door").ttl(Duration::from_micros(9_999)), "shorter than the 10ms this store can keep");
    locks.mutex("door").ttl(ms(10)).check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_locker_is_checked_when_it_is_built() {
    let build = |drift| Locker::builder(MemoryStore::new()).drift(drift).build();
    for (drift, good) in [(0.0, true), (0.5, true), (-0.1, false), (0.6, false), (f64::NAN, false)] {
        assert_eq!(build(drift).is_ok(), good, "{drift}");
    }
    let error = build(2.0).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("drift of 2"), "{error}");
    assert_eq!(Locker::builder(MemoryStore::new()).label("a\nb").build().unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(Locker::builder(MemoryStore::new()).ttl(ms(1)).build().unwrap_err().kind(), ErrorKind::Invalid);
}

/// Each setting is the locker's unless the lock has its own.
#[tokio::test(start_paused = true)]
async fn a_lock_has_the_lockers_settings_or_its_own() {
    let (clock, store, _) = world();
    let locks =
        Locker::builder(store).clock(clock).ttl(secs(20)).safety_margin(secs(1)).drift(0.1).label("ours").build().unwrap();
    let guard = locks.mutex("a").acquire().await.unwrap();
    assert_eq!((guard.lease_remaining(), guard.remaining()), (secs(20), secs(20 - 2 - 1) - ms(2)));
    assert_eq!(guard.token().label(), Some("ours"));
    let guard = locks.mutex("b").ttl(secs(40)).safety_margin(secs(3)).label("own").acquire().await.unwrap();
    assert_eq!((guard.lease_remaining(), guard.remaining()), (secs(40), secs(40 - 4 - 3) - ms(2)));
    assert_eq!((guard.token().label(), guard.name().as_str()), (Some("own"), "b"));
    assert!(guard.fence().is_some_and(|fence| fence.counter() == 2));
    assert_eq!(locks.store().to_string(), "fickle:");
    let text = format!("{:?}", locks.mutex("c").wait(secs(7)));
    assert!(text.contains("\"c\"") && text.contains("7s"), "{text}");
}

/// Label of a holder that set none.
#[tokio::test]
async fn a_holder_is_labelled_with_its_host_and_process() {
    let guard = Locker::new(MemoryStore::new()).mutex("door").acquire().await.unwrap();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    assert!(!host.is_empty());
    assert_eq!(guard.token().label(), Some(format!("{host}.{}", std::process::id()).as_str()));
}
