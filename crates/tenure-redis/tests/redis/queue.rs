//! Those who wait at a Redis, many at once: one at a time, in order of their fences, nobody forgotten, nothing left.
//!
//! With `TENURE_SOAK=1000000` the crowds make so many visits instead of a few seconds' worth.

use std::time::{Duration, Instant};

use tenure::store::{AcquireReply, Enqueue, ReleaseReply, Request, Store};
use tenure::{ErrorKind, Lease, Name, Owner, Share};
use tenure_redis::Options;
use tenure_testkit::worker::Load;
use tenure_testkit::{RedisServer, wait_until};

use tenure_testkit::crowd::{Field, OVER, soak, worker};

use crate::subject::Lent;

/// Nothing is left on the server but the counter.
fn is_left_clean(server: &RedisServer) {
    let left = || server.command(&["KEYS", "*"]).text();
    let began = Instant::now();
    while left() != "tenure:fence" {
        assert!(began.elapsed() < OVER, "left behind: {}", left());
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn played(what: &str, field: &Field, processes: u64, kill_every: Option<Duration>, patience: Duration) {
    let (server, began) = (Lent::alone(), Instant::now());
    let came = field.crowd(&server.url(), processes, kill_every);
    let visits = field.check(&came);
    came.told(what, visits, began);
    let longest = came.tally.longest_wait();
    assert!(longest < patience, "one had its turn only after {longest:?}");
    came.lost_none();
    is_left_clean(&server);
}

/// Processes of many tasks, where most hand-overs stay within a process, and of one task: every hand-over goes through the server.
#[test]
fn a_crowd_on_one_name() {
    for (processes, tasks, share) in [(3, 32, 1), (6, 1, 8)] {
        let field = Field::new(1, soak().unwrap_or(16_000) / share).with(|load| (load.tasks, load.fickle) = (tasks, 100));
        let what = format!("one name, {processes} processes of {tasks} tasks");
        played(&what, &field, processes, None, Duration::from_secs(5));
    }
}

/// Tasks that go from name to name, in processes of which some are killed wherever they are.
#[test]
fn a_crowd_on_several_names_that_dies() {
    let field = Field::new(4, soak().unwrap_or(12_000)).with(|load| (load.tasks, load.fickle) = (12, 200));
    played(
        "4 names, 3 processes of 12 tasks and mortal ones",
        &field,
        3,
        Some(Duration::from_millis(700)),
        Duration::from_secs(20),
    );
}

/// A process of many tasks has a name for a turn, and then one of a single task has it.
#[test]
fn a_single_task_beside_a_crowd_has_its_turns() {
    for stay in [Duration::ZERO, Duration::from_millis(2)] {
        let (server, time) = (Lent::alone(), Duration::from_secs(3));
        let field = Field::new(1, u64::MAX / 2).with(|load| (load.time, load.stay) = (time, stay));
        let (mut many, mut lone) = (worker(&server.url()), worker(&server.url()));
        many.begin_load(&Load { tasks: 64, ..field.load.clone() });
        lone.begin_load(&field.load);
        let (many, lone) = (many.tally(2 * OVER), lone.tally(2 * OVER));
        let at = |part: usize| Duration::from_micros(lone.waits[(lone.waits.len() - 1) * part / 1_000].into());
        let local = many.visits - many.through_store;
        println!(
            "stay {stay:?}: the lone task waited {:.1?} half of the time, {:.1?} at 99 %, {:.1?} at most, {} times; beside it {} visits, \
             {local} of them passed on",
            at(500),
            at(990),
            at(1_000),
            lone.visits,
            many.visits,
        );
        // A turn, one section, and what a busy machine adds.
        assert!(at(500) < Duration::from_millis(60), "half of its waits took {:?}", at(500));
        assert!(at(1_000) < Duration::from_secs(1), "it had a turn only after {:?}", at(1_000));
        is_left_clean(&server);
    }
}

fn request(label: &str, share: Share, place: Enqueue) -> Request {
    let (name, owner) = (Name::new("door").unwrap(), Owner::generate(label).unwrap());
    Request::new(name, owner, share, Duration::from_secs(10)).with_enqueue(place)
}

/// A name becomes free by itself while others wait for it as another kind: a lock of the asked kind is not made of their places.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_free_name_of_another_kind_of_line_is_not_taken() {
    let server = Lent::alone();
    let store = Options::parse(&server.url()).unwrap().connect().await.unwrap();
    let join = Enqueue::Join { entry_ttl: Duration::from_secs(10), handoff_ttl: Duration::from_secs(5) };
    let permits = |some| Share::permits(some, 3).unwrap();
    let (holder, waiter) = (request("holder", permits(3), Enqueue::No), request("waiter", permits(1), join));
    assert!(matches!(store.acquire(&holder).await.unwrap(), AcquireReply::Granted(_)));
    assert!(matches!(store.acquire(&waiter).await.unwrap(), AcquireReply::Busy(_)));
    server.cli("DEL door");
    let other = request("other", Share::MUTEX, Enqueue::No);
    let error = store.acquire(&other).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Mismatch, true), "{error}");
    let Request { name, owner, share, ttl, .. } = other;
    let released = store.release(&Lease::new(name, owner, share, ttl), Duration::ZERO).await.unwrap();
    assert_eq!(released, ReleaseReply::Released);
    assert_eq!(server.cli("TYPE door"), "none", "a waiter for a permit was made the holder of a mutex");
    let granted = store.acquire(&waiter.with_enqueue(Enqueue::Heartbeat)).await.unwrap();
    assert!(matches!(granted, AcquireReply::Granted(_)), "{granted:?}");
    wait_until(OVER, "the waiter's own kind", || server.cli("TYPE door") == "zset");
}
