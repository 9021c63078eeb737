//! Waits of `tenure run`: for itself, for others, and once more after a loss.

use crate::common::{Ended, Place};
use tenure_testkit::Spawned;

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
    let waited = place.output(&["run", "-w", "1500ms", "x", "--", "true"]);
    let lines: Vec<_> = waited.err.lines().collect();
    assert!(
        lines.len() == 2 && lines[0].starts_with("tenure: waiting for at most 1.5s for \"x\": held by night shift"),
        "{lines:?}"
    );
    let brief = place.output(&["run", "-w", "500ms", "x", "--", "true"]);
    assert_eq!(brief.err.lines().count(), 1, "{}", brief.err);
    assert_eq!(place.output(&["run", "-q", "-w", "1500ms", "x", "--", "true"]).err, "");
}

/// Lost, and started again with the lock held anew.
#[test]
fn a_command_is_started_again_after_a_loss() {
    let place = Place::new();
    let work = "echo $TENURE_FENCE >> fences; [ $(wc -l < fences) -gt 1 ] && exit 7; sleep 60";
    let running = place.spawn(&["run", "--restart", "--ttl", "2s", "x", "--", "sh", "-c", work]);
    place.line("fences");
    assert_eq!(place.output(&["break", "x"]).code, 0);
    let ended = running.end();
    assert_eq!(ended.code, 7, "{ended:?}");
    let fences: Vec<u64> = place.read("fences").lines().map(|fence| fence.parse().unwrap()).collect();
    assert!(fences.len() == 2 && fences[0] < fences[1], "{fences:?}");
    assert!(place.is_free("x"));
}
