//! The lab and the benchmarks in every scheme, which the URL alone names.

use serde_json::Value;
use tenure_testkit::RedisServer;

use crate::common::{Ended, Place, has_lost, in_time};

/// The parameters of the URL, and whether there are fences, shares and queues.
const SCHEMES: [(&str, bool); 9] = [
    ("scheme=set-nx", false),
    ("scheme=set-nx&profile=pottery&prefix=app:", false),
    ("scheme=setnx-expire", false),
    ("scheme=setnx-expire-lua&prefix=app:", false),
    ("scheme=php", false),
    ("scheme=getset", false),
    ("scheme=getset&win=past&unit=s&prefix=app:", false),
    ("scheme=watch", true),
    ("scheme=native&prefix=app:", true),
];

fn bench(server: &RedisServer, parameters: &str, args: &[&str]) -> Ended {
    let url = format!("{}?{parameters}&poll_interval=20ms", server.url());
    Place::new().output(&[&["bench", "--store", &url], args].concat())
}

const CASES: [&str; 6] = ["waiters", "cycle", "handover", "local-handover", "renew", "readers"];

/// A case that a scheme cannot do is left out, and the output says so. Other cases leave nothing behind.
#[test]
fn what_can_be_measured_is() {
    for (parameters, fences) in SCHEMES {
        // A run that was cut short leaves its leases.
        let mut server = RedisServer::start();
        let mut run = || {
            server = RedisServer::start();
            bench(&server, parameters, &["all", "--tasks", "4", "--seconds", "0.4", "-o", "json"])
        };
        let all = in_time(&mut run, has_lost);
        assert_eq!(all.code, 0, "{parameters}: {all:?}");
        let found: Vec<Value> = serde_json::from_str(&all.out).unwrap();
        let cases: Vec<&str> = found.iter().map(|one| one["case"].as_str().unwrap()).collect();
        let expected = if fences { &CASES[..] } else { &CASES[..5] };
        assert_eq!(cases, expected, "{parameters}: {all:?}");
        assert_eq!(all.err.contains("left out: readers: "), !fences, "{parameters}: {}", all.err);
        let left = server.command(&["KEYS", "*"]);
        assert_eq!(server.command(&["DBSIZE"]), i64::from(fences), "{parameters}: {left:?}");
    }
    let alone = bench(&RedisServer::start(), "scheme=getset", &["readers", "--tasks", "4", "--seconds", "0.4", "-q"]);
    assert_eq!(alone.code, 64, "{alone:?}");
    assert_eq!(alone.err.lines().count(), 1, "{alone:?}");
    assert!(alone.err.contains("use a mutex"), "{}", alone.err);
}

/// The rows are those of the scheme, and nothing is done to the store that was named.
#[test]
fn the_lab_takes_the_dialect_from_the_url() {
    let place = Place::new();
    let run = |url: &str, id: &str| place.rows(&["lab", "run", "--store", url, id, "-o", "json"]);
    for (url, id) in [
        ("redis://127.0.0.1:1?scheme=php", "php/04-wait-given-up"),
        ("redis://127.0.0.1:1?prefix=app:&scheme=set-nx", "set-nx/04-wait-given-up"),
        ("redis://127.0.0.1:1?scheme=watch", "watch/04-wait-given-up"),
        ("redis://127.0.0.1:1?scheme=redisson", "redisson/04-wait-given-up"),
        ("redis://127.0.0.1:1", "redis/04-wait-given-up"),
        ("sqlite:nowhere.db", "sqlite/04-wait-given-up"),
        ("memcached://127.0.0.1:1", "memcached/04-wait-given-up"),
    ] {
        let ended = run(url, id);
        assert_eq!(ended.code, 0, "{url}: {ended:?}");
        let outcomes: Vec<Value> = serde_json::from_str(&ended.out).unwrap();
        assert!(outcomes.len() == 1 && outcomes[0]["ok"] == true, "{url}: {outcomes:?}");
    }
    assert!(!place.path("nowhere.db").exists());
    let said = run("redis://127.0.0.1:1?scheme=getset&unit=s&prefix=app:", "getset/04-wait-given-up");
    assert!(said.code == 0 && said.err.contains("unit=, prefix="), "{said:?}");
    for (url, id, word) in [
        ("redis://h?scheme=php", "getset/04-wait-given-up", "among php/"),
        ("redis://h?scheme=redlock", "redlock/", "redlock"),
        ("ftp://h", "redis/", "ftp:"),
    ] {
        let ended = run(url, id);
        assert_eq!(ended.code, 64, "{url}: {ended:?}");
        assert!(ended.err.contains(word), "{url}: {}", ended.err);
    }
}
