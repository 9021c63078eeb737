//! The command beside Redisson's clients, for each of the objects that both know.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tenure_testkit::{RedisCluster, RedisServer, Reply};

use crate::common::{Place, Running, wait_for};
use crate::sides::{
    Library, all_take_turns, each_wakes_the_other, each_wakes_the_other_at, is_at_rest, java, library, one_at_a_time,
};

const LOCK: Library = library("redisson", "scheme=redisson", java);
const FENCED: Library = Library { name: "redisson-fenced", ..LOCK };
const FAIR: Library = library("redisson-fair", "scheme=redisson-fair", java);
const WRITE: Library = Library { name: "redisson-write", flags: &["--write"], ..LOCK };
const READ: Library = Library { name: "redisson-read", flags: &["--shared"], ..LOCK };
const PERMITS: Library = Library { name: "redisson-permits", flags: &["--permits", "2/2"], ..LOCK };
const SEMAPHORE: Library = Library { name: "redisson-semaphore", ..PERMITS };

/// Within this a release reaches a waiter on a machine with much to do.
const BOUND: Duration = Duration::from_secs(5);

/// The channel on which either side publishes the end of a lease of `x`.
fn channel(library: &Library) -> &'static str {
    match library.name {
        "redisson-write" | "redisson-read" => "redisson_rwlock:{x}",
        "redisson-permits" | "redisson-semaphore" => "redisson_sc:{x}",
        _ => "redisson_lock__channel:{x}",
    }
}

/// Clients of either side that listen for a release of `x`.
fn listeners(library: &Library, server: &RedisServer) -> i64 {
    match server.command(&["PUBSUB", "NUMSUB", channel(library)]) {
        Reply::Array(parts) => parts[1].int(),
        other => panic!("{other:?}"),
    }
}

fn wait_for_listeners(library: &Library, server: &RedisServer, count: i64) {
    wait_for("listeners", || listeners(library, server) == count);
}

/// One of ours that holds, from this file on, until its input ends.
fn ours_holds(library: &Library, place: &Place, server: &RedisServer, file: &str) -> Running {
    let url = format!("{}?{}&poll_interval=30s", server.url(), library.parameters);
    let args = library.ours(&url, &["--ttl", "6s"], &["sh", "-c", "echo in > $0; cat", file]);
    Running::start(place.tenure(&args).stdin(Stdio::piped()))
}

fn ends(mut side: Running) {
    drop(side.0.stdin.take());
    let ended = side.end();
    assert_eq!(ended.code, 0, "{ended:?}");
}

/// Their fences rise across both sides.
#[test]
fn objects_of_redisson_and_tenure_take_turns() {
    let server = RedisServer::start();
    all_take_turns(&[LOCK, FENCED, FAIR, WRITE, PERMITS, SEMAPHORE], &server.url());
    // In a cluster each name is at one node, with its channel.
    let cluster = RedisCluster::start(3, 0);
    all_take_turns(&[FENCED, FAIR, WRITE, PERMITS], &cluster.url());
}

#[test]
fn locks_of_redisson_and_tenure_refuse_each_other() {
    for library in [LOCK, FAIR, WRITE] {
        one_at_a_time(&library, library.parameters);
    }
}

/// Readers of both sides hold together, and keep the writers of both out.
#[test]
fn readers_of_redisson_and_tenure_hold_together() {
    let (place, server) = (Place::new(), RedisServer::start());
    let url = format!("{}?scheme=redisson", server.url());
    let theirs = READ.holds(&place, &server.url());
    let ours = ours_holds(&READ, &place, &server, "ours");
    place.line("ours");
    let writers = || {
        let ours = place.output(&WRITE.ours(&url, &["-n"], &["true"])).code;
        (ours, WRITE.start(&place, &server.url(), "try").end().code)
    };
    assert_eq!(writers(), (75, 75));
    assert_eq!(READ.start(&place, &server.url(), "try").end().code, 0);
    assert_eq!(place.output(&READ.ours(&url, &["-n"], &["true"])).code, 0);
    let shown: serde_json::Value =
        serde_json::from_str(&place.output(&["show", "--store", &url, "-o", "json", "x"]).out).unwrap();
    assert_eq!(shown[0]["holders"].as_array().map(Vec::len), Some(2), "{shown}");
    ends(theirs);
    assert_eq!(writers(), (75, 75));
    ends(ours);
    assert_eq!(writers(), (0, 0));
    assert_eq!(server.command(&["DBSIZE"]), 1, "the token alone is left");
}

/// A hold count is theirs: of two holds one release leaves one.
#[test]
fn a_client_of_redisson_that_holds_twice_releases_twice() {
    for library in [LOCK, WRITE, READ] {
        let (place, server) = (Place::new(), RedisServer::start());
        let url = format!("{}?scheme=redisson", server.url());
        let twice = |java: &mut Command| {
            java.env("JAVA_TOOL_OPTIONS", "-Dtimes=2");
        };
        let mut theirs = library.start_with(&place, &server.url(), "hold", twice);
        place.line("held");
        let counts = || server.command(&["HVALS", "x"]);
        let counted =
            |count: &str| matches!(counts(), Reply::Array(values) if values.last() == Some(&Reply::Bytes(count.into())));
        let refused = || place.output(&WRITE.ours(&url, &["-n"], &["true"])).code == 75;
        assert!(counted("2") && refused(), "{}: {:?}", library.name, counts());
        theirs.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        place.line("held-1");
        assert!(counted("1") && refused(), "{}: {:?}", library.name, counts());
        ends(theirs);
        assert!(!refused(), "{}", library.name);
    }
}

/// Killed while it holds, it costs the others its lockWatchdogTimeout. Killed while it waits, it costs nothing.
#[test]
fn a_client_of_redisson_that_is_killed_costs_what_it_promises() {
    for library in [LOCK, WRITE] {
        let (place, server) = (Place::new(), RedisServer::start());
        let soon = |java: &mut Command| {
            java.env("JAVA_TOOL_OPTIONS", "-Dwatchdog=3000");
        };
        let start = || library.start_with(&place, &server.url(), "hold", soon);
        let mut theirs = start();
        place.line("held");
        let url = format!("{}?scheme=redisson", server.url());
        let args = library.ours(&url, &[], &["sh", "-c", "echo in > ours; cat"]);
        let ours = Running::start(place.tenure(&args).stdin(Stdio::piped()));
        wait_for_listeners(&library, &server, 1);
        theirs.0.kill();
        let killed = Instant::now();
        place.line("ours");
        assert!(killed.elapsed() < Duration::from_secs(5), "took {:?}", killed.elapsed());

        // Who is served listens no more.
        wait_for_listeners(&library, &server, 0);
        let mut waiting = start();
        wait_for_listeners(&library, &server, 1);
        waiting.0.kill();
        wait_for_listeners(&library, &server, 0);
        ends(ours);
        let next = place.output(&library.ours(&url, &["-n"], &["true"]));
        assert_eq!(next.code, 0, "{next:?}");
    }
}

#[test]
fn a_release_of_either_side_wakes_the_other() {
    for library in [LOCK, WRITE, SEMAPHORE] {
        let listens = |server: &RedisServer| listeners(&library, server) == 1;
        each_wakes_the_other(&library, [&listens, &listens]);
    }
}

/// Of the slot, as Redisson has it since 3.22.
#[test]
fn a_release_of_either_side_wakes_the_other_in_a_cluster() {
    let cluster = RedisCluster::start(3, 0);
    for library in [LOCK, SEMAPHORE] {
        let listeners = || {
            let listening =
                cluster.servers().iter().map(|server| match server.command(&["PUBSUB", "SHARDNUMSUB", channel(&library)]) {
                    Reply::Array(parts) => parts[1].int(),
                    other => panic!("{other:?}"),
                });
            listening.sum::<i64>()
        };
        // Ours leaves no channel at once.
        let waits: [&dyn Fn() -> bool; 3] =
            [&|| listeners() == 1, &|| true, &|| listeners() == 2 && cluster.servers().iter().all(is_at_rest)];
        each_wakes_the_other_at(&cluster.url(), &library, waits);
    }
}

/// Readers of both sides wake when a writer of either has gone, all of them.
#[test]
fn a_writer_that_goes_wakes_readers_of_both_sides() {
    let (place, server) = (Place::new(), RedisServer::start());
    let writer = ours_holds(&WRITE, &place, &server, "writer");
    place.line("writer");
    let theirs = READ.start(&place, &server.url(), "hold");
    wait_for_listeners(&READ, &server, 1);
    let ours = ours_holds(&READ, &place, &server, "ours");
    wait_for_listeners(&READ, &server, 2);
    ends(writer);
    let released = Instant::now();
    place.line("held");
    place.line("ours");
    assert!(released.elapsed() < BOUND, "took {:?}", released.elapsed());
    ends(theirs);
    ends(ours);
}

fn waiters(server: &RedisServer) -> i64 {
    server.command(&["LLEN", "redisson_lock_queue:{x}"]).int()
}

/// In the order in which they came, whichever side they are of.
#[test]
fn waiters_of_redisson_and_tenure_are_served_in_order() {
    let (place, server) = (Place::new(), RedisServer::start());
    let first = ours_holds(&FAIR, &place, &server, "ours");
    place.line("ours");
    let pair = |theirs_at, ours: &'static str| {
        let there = Place::new();
        let theirs = FAIR.start(&there, &server.url(), "hold");
        wait_for("theirs in the queue", || waiters(&server) == theirs_at);
        let next = ours_holds(&FAIR, &place, &server, ours);
        wait_for("ours in the queue", || waiters(&server) == theirs_at + 1);
        (there, theirs, next, ours)
    };
    let pairs = [pair(1, "third"), pair(3, "fifth")];

    let bounded = |what: &str, released: Instant| {
        assert!(released.elapsed() < BOUND, "the {what} only after {:?}", released.elapsed());
    };
    let mut released = Instant::now();
    ends(first);
    for (there, theirs, ours, next) in pairs {
        there.line("held");
        bounded("one before", released);
        assert!(!place.path(next).exists(), "{next} overtook");
        released = Instant::now();
        ends(theirs);
        place.line(next);
        bounded(next, released);
        released = Instant::now();
        ends(ours);
    }
    assert_eq!(server.command(&["DBSIZE"]), 1, "the token alone is left");
}

/// Killed in the queue, one of either side costs those behind it no more than its time.
#[test]
fn one_that_is_killed_in_the_queue_is_passed() {
    let (place, server) = (Place::new(), RedisServer::start());
    let briefly = |java: &mut Command| {
        java.env("JAVA_TOOL_OPTIONS", "-Dfairwait=3000");
    };
    // Theirs keeps its place for its fairLockWaitTimeout.
    let first = ours_holds(&FAIR, &place, &server, "first");
    place.line("first");
    let mut killed = FAIR.start_with(&place, &server.url(), "hold", briefly);
    wait_for("one of theirs in the queue", || waiters(&server) == 1);
    let next = ours_holds(&FAIR, &place, &server, "ours");
    wait_for("ours behind it", || waiters(&server) == 2);
    killed.0.kill();
    ends(first);
    let released = Instant::now();
    place.line("ours");
    // From when it came: what was left of the lease, and its time.
    assert!(released.elapsed() < Duration::from_secs(6 + 3) + BOUND, "took {:?}", released.elapsed());

    // Ours keeps it for some seconds, where another of ours waits.
    let mut killed = ours_holds(&FAIR, &place, &server, "none");
    wait_for("ours in the queue", || waiters(&server) == 1);
    let theirs = FAIR.start_with(&place, &server.url(), "hold", briefly);
    wait_for("theirs behind it", || waiters(&server) == 2);
    let last = ours_holds(&FAIR, &place, &server, "last");
    wait_for("another of ours", || waiters(&server) == 3);
    killed.0.kill();
    ends(next);
    let released = Instant::now();
    place.line("held");
    assert!(released.elapsed() < Duration::from_secs(10), "{:?}", released.elapsed());
    ends(theirs);
    place.line("last");
    ends(last);
}
