//! Readers and writers, permits: what several processes see of each other, on a file, on a real Redis and on Redisson's locks there.
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Place, assert_one_line, wait_for};
use nix::sys::signal::Signal;
use serde_json::Value;
use tenure_testkit::{RedisServer, some_of};

/// Does the same on both stores, in a place of its own each. There is time for an answer: some ask once.
fn on_both(test: impl Fn(&Place, &[&str])) {
    test(&Place::new(), &[]);
    let server = RedisServer::start();
    test(&Place::new(), &["--store", &format!("{}?timeout=1500ms", server.url())]);
}

/// The same on locks of Redisson as well. They have no queue.
fn on_all(test: impl Fn(&Place, &[&str])) {
    on_both(&test);
    let server = RedisServer::start();
    test(&Place::new(), &["--store", &format!("{}?scheme=redisson&timeout=1500ms", server.url())]);
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

/// Ten writers, 25 times each, who leave what they write torn for a moment, and readers who look all the while.
#[test]
fn readers_never_see_what_a_writer_has_half_done() {
    const WRITE: &str = "n=$(cat a); echo $((n + 1)) > a; sleep 0.002; echo $((n + 1)) > b; echo $TENURE_FENCE >> fences";
    on_all(|place, store| {
        std::fs::write(place.path("a"), "0\n").unwrap();
        std::fs::write(place.path("b"), "0\n").unwrap();
        let (writing, read, failed) = (AtomicUsize::new(10), AtomicUsize::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..10 {
                scope.spawn(|| {
                    for _ in 0..some_of(25) {
                        let ended = place.output(&args("run", store, &["--write", "page", "--", "sh", "-c", WRITE]));
                        failed.fetch_or(ended.code != 0, Ordering::Relaxed);
                        assert_eq!(ended.code, 0, "{ended:?}");
                    }
                    writing.fetch_sub(1, Ordering::Relaxed);
                });
            }
            for _ in 0..3 {
                scope.spawn(|| {
                    while writing.load(Ordering::Relaxed) > 0 && !failed.load(Ordering::Relaxed) {
                        let ended = place.output(&args("run", store, &["--shared", "page", "--", "cmp", "a", "b"]));
                        assert_eq!(ended.code, 0, "a reader saw a torn page: {ended:?}");
                        read.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        let all = 10 * some_of(25);
        assert_eq!([place.read("a").trim(), place.read("b").trim()], [all.to_string(), all.to_string()]);
        assert!(read.into_inner() > 10, "there was hardly a reader");
        let fences: Vec<u64> = place.read("fences").lines().map(|fence| fence.parse().unwrap()).collect();
        assert!(fences.len() == all && fences.is_sorted_by(|a, b| a < b), "the fences of writers do not rise: {fences:?}");
    });
}

/// Who is inside counts who else is: a directory for each, there only while the permit is held.
#[test]
fn permits_are_never_more_than_there_are() {
    const INSIDE: &str = "mkdir in/$$; ls in | wc -l >> seen; sleep 0.02; rmdir in/$$";
    on_all(|place, store| {
        std::fs::create_dir(place.path("in")).unwrap();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        let ended = place.output(&args("run", store, &["--permits", "1/3", "pool", "--", "sh", "-c", INSIDE]));
                        assert_eq!(ended.code, 0, "{ended:?}");
                    }
                });
            }
        });
        let seen: Vec<u32> = place.read("seen").lines().map(|line| line.trim().parse().unwrap()).collect();
        assert_eq!(seen.len(), 80);
        let most = seen.iter().max().unwrap();
        assert!((2..=3).contains(most), "{most} of 3 permits were held at once");
    });
}

#[test]
fn permits_of_a_killed_holder_come_back_within_its_ttl() {
    on_all(|place, store| {
        let lease = ["--ttl", "3s", "--kill-after", "100ms"];
        let inside = ["--permits", "2/3", "pool", "--", "sh", "-c", "echo in > held; sleep 60"];
        let holder = place.spawn(&args("run", store, &[&lease[..], &inside].concat()));
        place.line("held");
        assert_eq!(place.output(&args("run", store, &["-n", "--permits", "2/3", "pool", "--", "true"])).code, 75);
        assert_eq!(place.output(&args("run", store, &["-n", "--permits", "1/3", "pool", "--", "true"])).code, 0);
        let next = place.spawn(&args("run", store, &["--permits", "2/3", "pool", "--", "sh", "-c", "echo in > next"]));
        holder.signal(Signal::SIGKILL);
        let killed = Instant::now();
        place.line("next");
        assert!(killed.elapsed() < Duration::from_secs(4), "only after {:?}", killed.elapsed());
        assert_eq!(next.end().code, 0);
    });
}

#[test]
fn waiters_are_served_in_the_order_they_came() {
    const HOLD: &str = "echo in > held; until [ -e go ]; do sleep 0.01; done";
    on_both(|place, store| {
        let holder = place.spawn(&args("run", store, &["--write", "page", "--", "sh", "-c", HOLD]));
        place.line("held");
        let mut waiters = Vec::new();
        for i in 0..6_usize {
            let kind = if i % 3 == 2 { "--shared" } else { "--write" };
            let note = format!("echo {i} >> order");
            waiters.push(place.spawn(&args("run", store, &[kind, "page", "--", "sh", "-c", &note])));
            wait_for("a place in the queue", || shown(place, store, "page")[0]["waiters"].as_u64() == Some(i as u64 + 1));
        }
        std::fs::write(place.path("go"), "").unwrap();
        for waiter in waiters {
            assert_eq!(waiter.end().code, 0);
        }
        assert_eq!(holder.end().code, 0);
        assert_eq!(place.read("order").split_whitespace().collect::<Vec<_>>(), ["0", "1", "2", "3", "4", "5"]);
        std::fs::remove_file(place.path("go")).unwrap();
    });
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
    on_both(|place, store| {
        let acquire = |kind: &[&str], name: &str| {
            let lease = place.output(&args("acquire", store, &[kind, &["--ttl", "60s", "--label", "web", name][..]].concat()));
            assert_eq!(lease.code, 0, "{lease:?}");
            value(&lease.out, "TENURE_TOKEN").to_owned()
        };
        let (one, other) = (acquire(&["--shared"], "page"), acquire(&["--shared"], "page"));
        let permits = acquire(&["--permits", "2/5"], "pool");
        let writer = acquire(&["--write"], "book");
        for (name, token) in [("page", &one), ("pool", &permits), ("book", &writer)] {
            assert_eq!(place.output(&args("renew", store, &[name, "--token", token, "--ttl", "500s"])).code, 0, "{name}");
            let entry = &shown(place, store, name)[0];
            let holder = entry["holders"].as_array().unwrap().iter().find(|holder| holder["owner"] == token.as_str()).unwrap();
            assert!(holder["ttl_ms"].as_u64().unwrap() > 400_000, "{entry}");
            let told = (entry["kind"].as_str().unwrap(), holder["shared"].as_bool().unwrap(), holder["permits"].as_str());
            let expected = match name {
                "page" => ("rw", true, None),
                "pool" => ("semaphore", true, Some("2/5")),
                _ => ("rw", false, None),
            };
            assert_eq!(told, expected);
            assert!(holder["fence"].is_string() && holder["held_for_ms"].is_u64(), "{entry}");
        }
        assert_eq!(shown(place, store, "page")[0]["holders"].as_array().unwrap().len(), 2);
        for stranger in ["page", "pool", "book"] {
            assert_eq!(place.output(&args("release", store, &[stranger, "--token", "t"])).code, 79);
            assert_eq!(place.output(&args("renew", store, &[stranger, "--token", "t"])).code, 79);
        }
        assert_eq!(place.output(&args("release", store, &["pool", "--token", &permits])).code, 0);
        assert_eq!(place.output(&args("release", store, &["pool", "--token", &permits])).code, 79);
        // Who waits is served by the break, not a re-check later.
        let waiter = place.spawn(&args("run", store, &["--write", "page", "--", "sh", "-c", "echo in > wrote"]));
        wait_for("a place in the queue", || shown(place, store, "page")[0]["waiters"].as_u64() == Some(1));
        let broken = place.output(&args("break", store, &["page"]));
        assert_eq!((broken.code, broken.err.matches("is broken").count()), (0, 2), "{broken:?}");
        assert_eq!(waiter.end().code, 0);
        assert_eq!(place.read("wrote"), "in\n");
        assert_eq!(place.output(&args("release", store, &["page", "--token", &other])).code, 79);
        assert_eq!(place.output(&args("break", store, &["page"])).code, 1);
        let table = place.output(&args("show", store, &[])).out;
        assert!(table.lines().count() == 2 && table.contains("rw"), "{table}");
    });
}

/// A holder that lost the lock exits with 79, never with the command's own code, also if another kind of lock has the name since.
#[test]
fn a_lock_that_was_taken_away_is_lost_whatever_kind_came_after() {
    on_both(|place, store| {
        let (kinds, at): ([&[&str]; 4], _) =
            ([&[], &["--shared"], &["--permits", "1/3"], &["--permits", "1/5"]], store.join(" "));
        let script = format!(r#""$TENURE" break {at} "$0" && "$TENURE" acquire {at} "$@" "$0" > taken"#);
        for (i, held) in kinds.iter().enumerate() {
            for (j, taken) in kinds.iter().enumerate().filter(|(j, _)| *j != i) {
                let name = format!("x{i}{j}");
                let inside = [&["--", "sh", "-c", &script, &name], *taken].concat();
                let ended = place.output(&args("run", store, &[held, &[&*name][..], &inside].concat()));
                assert!(place.read("taken").contains("TENURE_TOKEN="), "{held:?}, then {taken:?}: {ended:?}");
                assert_eq!(ended.code, 79, "{held:?}, then {taken:?}: {ended:?}");
                std::fs::remove_file(place.path("taken")).unwrap();
            }
        }
    });
}
