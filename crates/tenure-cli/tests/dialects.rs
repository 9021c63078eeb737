//! The command in the dialects of others: with programs that send the commands of articles word by word, on one key.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::path::Path;
use std::time::Duration;

use common::{Place, assert_one_line};
use tenure_testkit::RedisServer;

/// An unprotected read-modify-write.
const COUNT: &str = "n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) > n; test -z \"$TENURE_FENCE\" || echo faked > fenced";

/// The same, by the other side.
fn count(place: &Place) {
    let n: u64 = std::fs::read_to_string(place.path("n")).map_or(0, |text| text.trim().parse().unwrap_or(0));
    std::fs::write(place.path("n"), format!("{}\n", n + 1)).unwrap();
}

/// What the other side does to take `key` and to give it up, as its article has it.
struct Article {
    scheme: &'static str,
    key: &'static str,
    takes: fn(&RedisServer, &str, &str) -> bool,
    gives_up: fn(&RedisServer, &str, &str),
}

const COMPARE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

fn setnx_expire(server: &RedisServer, key: &str, _: &str) -> bool {
    let won = server.command(&["SETNX", key, "1"]) == 1;
    if won {
        server.command(&["EXPIRE", key, "10"]);
    }
    won
}

fn setnx_expire_lua(server: &RedisServer, key: &str, _: &str) -> bool {
    let script = "if redis.call('setnx', KEYS[1], 1) == 1 then redis.call('expire', KEYS[1], ARGV[1]) return 1 else return 0 end";
    server.command(&["EVAL", script, "1", key, "10"]) == 1
}

fn set_nx(server: &RedisServer, key: &str, _: &str) -> bool {
    server.command(&["SET", key, "true", "EX", "5", "NX"]) == "OK"
}

fn set_nx_token(server: &RedisServer, key: &str, token: &str) -> bool {
    server.command(&["SET", key, token, "NX", "PX", "5000"]) == "OK"
}

fn deletes(server: &RedisServer, key: &str, _: &str) {
    server.command(&["DEL", key]);
}

fn compares(server: &RedisServer, key: &str, token: &str) {
    server.command(&["EVAL", COMPARE, "1", key, token]);
}

const ARTICLES: [Article; 5] = [
    Article { scheme: "scheme=setnx-expire", key: "x", takes: setnx_expire, gives_up: deletes },
    Article { scheme: "scheme=setnx-expire-lua&prefix=app:", key: "app:x", takes: setnx_expire_lua, gives_up: deletes },
    Article { scheme: "scheme=set-nx", key: "x", takes: set_nx, gives_up: deletes },
    Article { scheme: "scheme=set-nx", key: "x", takes: set_nx_token, gives_up: compares },
    Article { scheme: "scheme=set-nx&profile=redis-semaphore", key: "mutex:x", takes: set_nx_token, gives_up: compares },
];

/// Ten processes of ours and two of theirs, 25 times each, and nothing but the URL says how.
#[test]
fn every_side_has_its_turns_and_no_two_at_once() {
    for article in &ARTICLES {
        let (place, server) = (Place::new(), RedisServer::start());
        let url = format!("{}?{}&recheck=5ms", server.url(), article.scheme);
        std::thread::scope(|scope| {
            for _ in 0..10 {
                scope.spawn(|| {
                    for _ in 0..25 {
                        let ended = place.output(&["run", "--store", &url, "x", "--", "sh", "-c", COUNT]);
                        assert_eq!(ended.code, 0, "{}: {ended:?}", article.scheme);
                    }
                });
            }
            for side in 0..2 {
                let (place, server) = (&place, &server);
                scope.spawn(move || {
                    for turn in 0..25 {
                        let token = format!("their-{side}-{turn}");
                        while !(article.takes)(server, article.key, &token) {
                            std::thread::sleep(Duration::from_millis(3));
                        }
                        count(place);
                        (article.gives_up)(server, article.key, &token);
                    }
                });
            }
        });
        assert_eq!(place.read("n").trim(), "300", "{}: updates were lost", article.scheme);
        assert!(!Path::new(&place.path("fenced")).exists(), "{}: a fence was made up", article.scheme);
        assert_eq!(server.command(&["EXISTS", article.key]), 0, "{}", article.scheme);
    }
}

/// The other side works for longer than its lease and then deletes what is ours: we are told, and what we ran is stopped.
#[test]
fn whoever_loses_the_lock_to_the_other_side_is_told() {
    let (place, server) = (Place::new(), RedisServer::start());
    let url = format!("{}?scheme=set-nx&recheck=5ms", server.url());
    assert_eq!(server.command(&["SET", "x", "true", "PX", "200", "NX"]), "OK");
    let ours = place.spawn(&["run", "--store", &url, "--ttl", "2s", "x", "--", "sh", "-c", "echo in > held; sleep 60"]);
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
    let ended = place.output(&["run", "-w", "300ms", "--store", &url, "x", "--", "true"]);
    assert_eq!(ended.code, 75, "{ended:?}");
    assert_one_line(&ended);
    assert!(ended.err.contains("\"1\"") && ended.err.contains("never"), "{}", ended.err);
    assert_eq!(server.command(&["GET", "x"]).text(), "1");
    // Somebody who knows that they are dead breaks it.
    assert_eq!(place.output(&["break", "--store", &url, "x"]).code, 0);
    assert_eq!(place.output(&["run", "-n", "--store", &url, "x", "--", "true"]).code, 0);
}

/// What a dialect cannot keep is refused before anything is sent.
#[test]
fn what_a_dialect_cannot_do_is_refused() {
    let (place, server) = (Place::new(), RedisServer::start());
    let url = |parameters: &str| format!("{}?{parameters}", server.url());
    for (parameters, args, code, word) in [
        ("scheme=set-nx", &["run", "--shared", "x", "--", "true"][..], 64, "mutex"),
        ("scheme=set-nx", &["run", "--permits", "1/2", "x", "--", "true"], 64, "mutex"),
        ("scheme=setnx", &["run", "x", "--", "true"], 64, "set-nx"),
        ("scheme=set-nx&profile=redislok", &["run", "x", "--", "true"], 64, "redislock"),
        ("profile=redis-py", &["run", "x", "--", "true"], 64, "scheme=set-nx"),
        ("scheme=set-nx&profile=spring", &["run", "x", "--", "true"], 64, "prefix="),
        ("scheme=redisson", &["run", "x", "--", "true"], 64, "redisson"),
    ] {
        let url = url(parameters);
        let args = [&args[..1], &["--store", &url], &args[1..]].concat();
        let ended = place.output(&args);
        assert_eq!(ended.code, code, "{parameters} {args:?}: {ended:?}");
        assert!(ended.err.contains(word), "{parameters}: {}", ended.err);
    }
    assert_eq!(server.command(&["DBSIZE"]), 0);
}
