//! The command beside clients of its schemes that are late, fast, slow or dead.

use std::time::{Duration, Instant, SystemTime};

use crate::common::{Place, wait_for};
use tenure_testkit::RedisServer;

const MINUTE: i64 = 60_000;

fn now_ms() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis().try_into().unwrap()
}

fn url(server: &RedisServer, parameters: &str) -> String {
    format!("{}?{parameters}&poll_interval=20ms&timeout=1500ms", server.url())
}

/// Others see our lock as they would have written it.
#[test]
fn others_see_what_they_know() {
    let (place, server) = (Place::new(), RedisServer::start());
    let held = |parameters: &str, key: &str| {
        let url = url(&server, parameters);
        let grant = place.output(&["acquire", "--store", &url, "--ttl", "20s", "x"]);
        assert_eq!(grant.code, 0, "{grant:?}");
        let (value, ttl) = (server.command(&["GET", key]).text(), server.command(&["TTL", key]).int());
        let token = grant.out.lines().find_map(|line| line.strip_prefix("TENURE_TOKEN=")).unwrap().trim_matches('\'').to_owned();
        let released = place.output(&["release", "--store", &url, "x", "--token", &token]);
        assert_eq!(released.code, 0, "{released:?}");
        assert_eq!(server.command(&["DBSIZE"]), 0);
        (value, ttl)
    };
    let close = |ms: i64| (ms - now_ms() - 20_000).abs() < 5_000;
    let (value, ttl) = held("scheme=php", "Lock:x");
    let decimals = value.split_once('.').map_or("", |(_, decimals)| decimals);
    assert!(decimals.len() <= 4 && !decimals.ends_with('0') && !value.ends_with('.'), "{value}");
    #[allow(clippy::cast_possible_truncation, reason = "a time in ms is far below 2^53")]
    let ms = (value.parse::<f64>().unwrap() * 1_000.0) as i64;
    assert!(close(ms) && (15..=20).contains(&ttl), "{value} {ttl}");
    let (value, ttl) = held("scheme=getset", "x");
    assert!(close(value.parse().unwrap()) && ttl == -1, "{value} {ttl}");
    let (value, ttl) = held("scheme=getset&unit=s", "x");
    assert!(close(value.parse::<i64>().unwrap() * 1_000) && ttl == -1, "{value} {ttl}");
}

/// Something else at the key is refused by name and stays as it is.
#[test]
fn a_value_that_is_no_point_in_time_is_left_alone() {
    let (place, server) = (Place::new(), RedisServer::start());
    let in_ms = now_ms() - MINUTE;
    let in_seconds = in_ms / 1_000;
    for (parameters, value) in [
        ("scheme=getset", "abc".to_owned()),
        ("scheme=getset", String::new()),
        ("scheme=getset", in_seconds.to_string()),
        ("scheme=getset&unit=s", in_ms.to_string()),
    ] {
        server.command(&["SET", "x", &value]);
        for verb in [&["run", "-n", "x", "--", "true"][..], &["show", "x"], &["break", "x"]] {
            let url = url(&server, parameters);
            let ended = place.output(&[&verb[..1], &["--store", &url], &verb[1..]].concat());
            ended.says(77, "no timestamp value");
            assert!(ended.err.contains("unit="), "{}", ended.err);
        }
        assert_eq!(server.command(&["GET", "x"]).text(), value);
    }
}

/// A PHP lock whose holder died before it set the ttl is taken over, but not from a holder that is only slow.
#[test]
fn an_orphan_is_taken_over_when_it_was_to_end() {
    let (place, server) = (Place::new(), RedisServer::start());
    let url = url(&server, "scheme=php");
    let try_it = || place.output(&["run", "-n", "--store", &url, "x", "--", "true"]);
    // It was to end in the past, but nobody has seen it before: its holder may be about to set the ttl.
    server.command(&["SET", "Lock:x", &format!("{}.25", now_ms() / 1_000 - 60)]);
    let seen = Instant::now();
    let ended = try_it();
    assert_eq!(ended.code, 75, "{ended:?}");
    assert!(ended.err.contains("ending in"), "{}", ended.err);
    wait_for("the key without a TTL to be taken", || try_it().code == 0);
    let took = seen.elapsed();
    assert!((Duration::from_millis(4_900)..Duration::from_secs(9)).contains(&took), "taken after {took:?}");
    assert_eq!(server.command(&["DBSIZE"]), 0);
    // It is to end later than that.
    let ends = now_ms() / 1_000 + 8;
    server.command(&["SET", "Lock:x", &ends.to_string()]);
    let ended = place.output(&["run", "-w", "15s", "--store", &url, "x", "--", "true"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(now_ms() >= ends * 1_000, "taken {} ms early", ends * 1_000 - now_ms());
    // Its holder lives, and comes to set the ttl.
    server.command(&["SET", "Lock:x", &(now_ms() / 1_000 - 60).to_string()]);
    assert_eq!(try_it().code, 75);
    server.command(&["EXPIRE", "Lock:x", "30"]);
    let ended = place.output(&["run", "-w", "7s", "--store", &url, "x", "--", "true"]);
    assert_eq!(ended.code, 75, "{ended:?}");
}

/// Nothing says when the lock was to end: `show` reports it as endless, and only an operator ends it.
#[test]
fn an_orphan_without_a_time_is_told() {
    let (place, server) = (Place::new(), RedisServer::start());
    let url = url(&server, "scheme=php");
    server.command(&["SET", "Lock:x", "busy"]);
    let ended = place.output(&["run", "-w", "6s", "--store", &url, "x", "--", "true"]);
    assert_eq!(ended.code, 75, "{ended:?}");
    assert!(ended.err.contains("\"busy\"") && ended.err.contains("never"), "{}", ended.err);
    assert_eq!(server.command(&["GET", "Lock:x"]).text(), "busy");
    assert_eq!(place.output(&["break", "--store", &url, "x"]).code, 0);
    assert_eq!(place.output(&["run", "-n", "--store", &url, "x", "--", "true"]).code, 0);
}

/// Two clients wanted a lock that had ended. The late one changed the value of the other, which is notified, and frees nothing.
#[test]
fn a_value_that_a_loser_moved_is_told_as_lost() {
    let (place, server) = (Place::new(), RedisServer::start());
    let url = url(&server, "scheme=getset");
    server.command(&["SET", "x", &(now_ms() - 1_000).to_string()]);
    let ours = place.spawn(&["run", "--store", &url, "--ttl", "6s", "x", "--", "sh", "-c", "echo in > held; sleep 60"]);
    place.line("held");
    let theirs = (now_ms() + 20_000).to_string();
    server.command(&["GETSET", "x", &theirs]);
    let ended = ours.end();
    assert_eq!(ended.code, 79, "{ended:?}");
    assert_eq!(server.command(&["GET", "x"]).text(), theirs);
}

/// Where every host judges by its own clock, a lease made by a clock that is a minute off is worth nothing: none is made. Where the server
/// alone judges, it does not matter.
#[test]
fn clocks_a_minute_apart_are_told() {
    let (place, server) = (Place::new(), RedisServer::builder().shifted_clock().start());
    for shift in [MINUTE, -MINUTE] {
        server.shift_clock(shift);
        for parameters in ["scheme=getset", "scheme=getset&unit=s"] {
            let ended = place.output(&["run", "--store", &url(&server, parameters), "x", "--", "true"]);
            ended.says(77, "clock");
        }
        for parameters in ["scheme=php", "scheme=set-nx"] {
            let ended = place.output(&["run", "--store", &url(&server, parameters), "x", "--", "true"]);
            assert_eq!(ended.code, 0, "{parameters} {shift}: {ended:?}");
        }
        assert_eq!(server.command(&["DBSIZE"]), 0);
    }
}

/// The other side works for longer than its lease and then deletes our lock: we are notified, and our command is stopped.
#[test]
fn whoever_loses_the_lock_to_the_other_side_is_told() {
    let (place, server) = (Place::new(), RedisServer::start());
    let url = format!("{}?scheme=set-nx&poll_interval=5ms", server.url());
    assert_eq!(server.command(&["SET", "x", "true", "PX", "200", "NX"]), "OK");
    let ours = place.spawn(&["run", "--store", &url, "--ttl", "6s", "x", "--", "sh", "-c", "echo in > held; sleep 60"]);
    place.line("held");
    // Their lease has ended, and they do not know.
    assert_eq!(server.command(&["DEL", "x"]), 1);
    let ended = ours.end();
    assert_eq!(ended.code, 79, "{ended:?}");
}

/// The other side died between its two commands: its lock never ends, and is not taken for ours.
#[test]
fn a_lock_without_an_end_is_told() {
    let (place, server) = (Place::new(), RedisServer::start());
    let url = format!("{}?scheme=setnx-expire", server.url());
    assert_eq!(server.command(&["SETNX", "x", "1"]), 1);
    let ended = place.output(&["run", "-w", "300ms", "--store", &url, "x", "--", "true"]).without_wait();
    ended.says(75, "\"1\"");
    assert!(ended.err.contains("never"), "{}", ended.err);
    assert_eq!(server.command(&["GET", "x"]).text(), "1");
    // Somebody who knows that they are dead breaks it.
    assert_eq!(place.output(&["break", "--store", &url, "x"]).code, 0);
    assert_eq!(place.output(&["run", "-n", "--store", &url, "x", "--", "true"]).code, 0);
}
