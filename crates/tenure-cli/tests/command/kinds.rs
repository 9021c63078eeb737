//! Readers and writers, permits: the flags of the command, on a file and on a real Redis.

use crate::common::{Place, assert_one_line, wait_for};
use serde_json::Value;
use tenure_testkit::RedisServer;

/// Does the same on both stores, in a place of its own each. There is time for an answer: some ask once.
fn on_both(test: impl Fn(&Place, &[&str])) {
    test(&Place::new(), &[]);
    let server = RedisServer::start();
    test(&Place::new(), &["--store", &format!("{}?timeout=1500ms", server.url())]);
}

fn args<'a>(word: &'a str, store: &[&'a str], rest: &[&'a str]) -> Vec<&'a str> {
    [&[word][..], store, rest].concat()
}

fn shown(place: &Place, store: &[&str], name: &str) -> Value {
    let shown = place.output(&args("show", store, &["-o", "json", name]));
    serde_json::from_str(&shown.out).unwrap()
}

fn value<'a>(printed: &'a str, key: &str) -> &'a str {
    printed.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap_or_else(|| panic!("no {key} in {printed}"))
}

/// Who has no time to wait gets what is left of a name, or 75; another kind of lock is 77.
#[test]
fn each_kind_is_refused_with_its_code() {
    type Row<'a> = (&'a [&'a str], &'a [&'a str], i32);
    on_both(|place, store| {
        let table: &[Row<'_>] = &[
            (&[], &[], 75),
            (&["--shared"], &["--shared"], 0),
            (&["--shared"], &["--write"], 75),
            (&["--write"], &["--shared"], 75),
            (&["--write"], &["--write"], 75),
            (&["--permits", "2/3"], &["--permits", "1/3"], 0),
            (&["--permits", "2/3"], &["--permits", "2/3"], 75),
            (&["--permits", "1/1"], &[], 75),
            (&[], &["--shared"], 75),
            (&["--shared"], &[], 75),
            (&["--write"], &[], 75),
            (&[], &["--permits", "1/3"], 77),
            (&["--shared"], &["--permits", "1/3"], 77),
            (&["--permits", "1/3"], &["--permits", "1/4"], 77),
            (&["--permits", "1/3"], &["--write"], 77),
        ];
        for (held, wanted, code) in table {
            let lease = place.output(&args("acquire", store, &[held, &["x"][..]].concat()));
            assert_eq!(lease.code, 0, "{lease:?}");
            for wait in [&["-n"][..], &["-w", "0"], &["-w", "50ms"]] {
                let ended = place.output(&args("run", store, &[wait, wanted, &["x", "--", "true"]].concat())).without_wait();
                assert_eq!(ended.code, *code, "{held:?} against {wanted:?}: {ended:?}");
                if *code != 0 {
                    assert_one_line(&ended);
                }
            }
            let token = value(&lease.out, "TENURE_TOKEN");
            assert_eq!(place.output(&args("release", store, &["x", "--token", token])).code, 0);
            assert_eq!(shown(place, store, "x"), Value::Array(Vec::new()), "{held:?}");
        }
    });
}

/// A share is renewed and released by its token alone.
#[test]
fn shares_are_renewed_released_shown_and_broken() {
    let (place, server) = (Place::new(), RedisServer::start());
    let url = format!("{}?timeout=5s", server.url());
    let store = &["--store", url.as_str()];
    let acquire = |kind: &[&str], name: &str| {
        let lease = place.output(&args("acquire", store, &[kind, &["--ttl", "60s", "--label", "web", name][..]].concat()));
        assert_eq!(lease.code, 0, "{lease:?}");
        value(&lease.out, "TENURE_TOKEN").to_owned()
    };
    let code = |word: &str, name: &str, token: &str| place.output(&args(word, store, &[name, "--token", token])).code;
    let (one, other) = (acquire(&["--shared"], "page"), acquire(&["--shared"], "page"));
    let (permits, writer) = (acquire(&["--permits", "2/5"], "pool"), acquire(&["--write"], "book"));
    for (name, token, expected) in [
        ("page", &one, ("rw", true, None)),
        ("pool", &permits, ("semaphore", true, Some("2/5"))),
        ("book", &writer, ("rw", false, None)),
    ] {
        assert_eq!(place.output(&args("renew", store, &[name, "--token", token, "--ttl", "500s"])).code, 0, "{name}");
        let entry = &shown(&place, store, name)[0];
        let holder = entry["holders"].as_array().unwrap().iter().find(|holder| holder["owner"] == token.as_str()).unwrap();
        assert!(holder["ttl_ms"].as_u64().unwrap() > 400_000, "{entry}");
        let told = (entry["kind"].as_str().unwrap(), holder["shared"].as_bool().unwrap(), holder["permits"].as_str());
        assert_eq!(told, expected);
        assert!(holder["fence"].is_string() && holder["held_for_ms"].is_u64(), "{entry}");
        assert_eq!((code("release", name, "t"), code("renew", name, "t")), (79, 79), "{name}");
    }
    assert_eq!(shown(&place, store, "page")[0]["holders"].as_array().unwrap().len(), 2);
    assert_eq!((code("release", "pool", &permits), code("release", "pool", &permits)), (0, 79));
    // Who waits is served by the break, not a re-check later.
    let waiter = place.spawn(&args("run", store, &["--write", "page", "--", "sh", "-c", "echo in > wrote"]));
    wait_for("a place in the queue", || shown(&place, store, "page")[0]["waiters"].as_u64() == Some(1));
    let broken = place.output(&args("break", store, &["page"]));
    assert_eq!((broken.code, broken.err.matches("is broken").count()), (0, 2), "{broken:?}");
    assert_eq!((waiter.end().code, place.read("wrote").as_str()), (0, "in\n"));
    assert_eq!((code("release", "page", &other), place.output(&args("break", store, &["page"])).code), (79, 1));
    let table = place.output(&args("show", store, &[])).out;
    assert!(table.lines().count() == 2 && table.contains("rw"), "{table}");
}
