//! Waits of `tenure run`: for itself, for others, and once more after a loss.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use crate::common::{Ended, Place};
use tenure_testkit::{Proxy, RedisServer, Spawned};

/// A command that waits for what it runs under would wait for ever.
#[test]
fn a_lock_within_itself_is_refused_at_once() {
    let place = Place::new();
    let nested = |outer: &[&str], inner: &[&str]| {
        let inner = [&["run"], inner, &["self", "--", "echo", "in"]].concat();
        let mut line = [&["run"], outer, &["self", "--", env!("CARGO_BIN_EXE_tenure")]].concat();
        line.extend(inner);
        place.output(&line)
    };
    for (outer, inner) in [
        (&[][..], &[][..]),
        (&["--shared"], &["--write"]),
        (&["-a", "other"], &[]),
        (&["--permits", "3/5"], &["--permits", "3/5"]),
    ] {
        let ended = nested(outer, inner);
        assert_eq!((ended.code, ended.out.as_str()), (64, ""), "{outer:?}: {ended:?}");
        assert!(ended.err.contains("\"self\" is held by the command around this one"), "{}", ended.err);
    }
    assert_eq!(nested(&["--shared"], &["--shared"]).out, "in\n");
    assert_eq!(nested(&["--permits", "2/5"], &["--permits", "3/5"]).out, "in\n");
    // The same name in another store is another lock; a lease that has ended is no lease.
    assert_eq!(nested(&["--store", "sqlite:a.db"], &["--store", "sqlite:b.db"]).out, "in\n");
    let mut stale = place.tenure(&["run", "self", "--", "echo", "in"]);
    stale.env("TENURE_NAME", "self").env("TENURE_TOKEN", "vm.1.0123456789abcdef0123456789abcdef");
    assert_eq!(Ended::from(Spawned::output(&mut stale).unwrap()).out, "in\n");
}

/// Somebody who looks at a log wants to know why nothing happens.
#[test]
fn a_wait_says_for_whom_after_a_second() {
    let place = Place::new();
    assert_eq!(place.output(&["acquire", "--label", "night shift", "x"]).code, 0);
    let waited = place.output(&["run", "-w", "4s", "x", "--", "true"]);
    let lines: Vec<_> = waited.err.lines().collect();
    assert!(
        lines.len() == 2 && lines[0].starts_with("tenure: waiting for at most 4s for \"x\": held by night shift"),
        "{lines:?}"
    );
    let began = Instant::now();
    let brief = place.output(&["run", "-w", "500ms", "x", "--", "true"]);
    assert!(brief.err.lines().count() == 1 || began.elapsed() > Duration::from_secs(1), "{}", brief.err);
    assert_eq!(place.output(&["run", "-q", "-w", "1500ms", "x", "--", "true"]).err, "");
}

/// Its first answer comes when the line is due, or later.
#[test]
fn a_wait_at_a_slow_store_says_for_whom_as_well() {
    let (place, server) = (Place::new(), RedisServer::start());
    assert_eq!(place.output(&["acquire", "--store", &server.url(), "--label", "night shift", "x"]).code, 0);
    let proxy = Proxy::start(server.addr());
    proxy.delay(Duration::from_millis(700));
    let url = format!("{}?timeout=8s", proxy.url());
    let mut waiting = place.spawn(&["run", "-w", "30s", "--store", &url, "x", "--", "true"]);
    let mut line = String::new();
    BufReader::new(waiting.0.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("tenure: waiting for at most 30s for \"x\": held by night shift"), "{line:?}");
}

/// Lost, and started again with the lock held anew.
#[test]
fn a_command_is_started_again_after_a_loss() {
    let place = Place::new();
    let work = "echo $TENURE_FENCE >> fences; [ $(wc -l < fences) -gt 1 ] && exit 7; sleep 60";
    let running = place.spawn(&["run", "--restart", "--ttl", "6s", "x", "--", "sh", "-c", work]);
    place.line("fences");
    assert_eq!(place.output(&["break", "x"]).code, 0);
    let ended = running.end();
    assert_eq!(ended.code, 7, "{ended:?}");
    let fences: Vec<u64> = place.read("fences").lines().map(|fence| fence.parse().unwrap()).collect();
    assert!(fences.len() == 2 && fences[0] < fences[1], "{fences:?}");
    assert!(place.is_free("x"));
}
