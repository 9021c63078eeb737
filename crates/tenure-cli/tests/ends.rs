//! How the command ends: what it leaves running, and what it leaves at the store.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{Place, is_dead, wait_for};
use nix::sys::signal::Signal;
use tenure_testkit::RedisServer;

/// It has left the group, and so heard of nothing.
#[test]
fn what_the_command_started_elsewhere_ends_with_a_lost_lock() {
    let place = Place::new();
    let work = "setsid sh -c 'echo $$ > stray; sleep 300' & wait";
    let running = place.spawn(&["run", "--ttl", "1500ms", "--kill-after", "300ms", "x", "--", "sh", "-c", work]);
    let stray = place.pid("stray");
    assert_eq!(place.output(&["break", "x"]).code, 0);
    assert_eq!(running.end().code, 79);
    assert!(is_dead(stray));
}

/// The last step before the command, in a process whose tenure is another's, or dead.
#[test]
fn a_command_whose_tenure_is_gone_is_not_started() {
    let place = Place::new();
    let ended = place.output(&["__exec", "1", "back", "touch", "done"]);
    assert_eq!((ended.code, place.path("done").exists()), (126, false), "{ended:?}");
}

/// The end of the process does not come before that of its clean-up.
#[test]
fn a_wait_that_a_signal_ended_leaves_no_place() {
    let (place, server) = (Place::new(), RedisServer::start());
    server.cli("SET x another PX 60000");
    for _ in 0..10 {
        let waiting = place.spawn(&["run", "--store", &server.url(), "x", "--", "true"]);
        wait_for("its place", || server.cli("KEYS *").lines().count() > 2);
        waiting.signal(Signal::SIGTERM);
        assert_eq!(waiting.end().code, 143);
        let left = server.cli("KEYS *");
        assert_eq!(left.lines().count(), 2, "{left}");
    }
}
