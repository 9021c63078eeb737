//! `tenure lab`: what it lists, what it prints, and how it ends.

use std::collections::BTreeSet;
use std::process::Stdio;

use serde_json::Value;
use tenure_testkit::process::{children, is_stopped};
use tenure_testkit::{RedisServer, Signal, Spawned};

use crate::common::{Ended, Place, end_with_all, wait_for};

fn json(text: &str) -> Vec<Value> {
    serde_json::from_str(text).unwrap()
}

#[test]
fn what_can_be_run_is_listed() {
    let place = Place::new();
    let ended = place.output(&["lab", "list", "-o", "json"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let items = json(&ended.out);
    let ids: BTreeSet<&str> = items.iter().map(|item| item["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), items.len(), "an id stands twice");
    for id in ["redis/29-flushed", "sqlite/01-holder-paused", "memory/38-herd", "A1/crash", "A8/pooled-release"] {
        assert!(ids.contains(id), "{id}");
    }
    let text = place.output(&["lab", "list"]).out;
    assert!(ids.iter().all(|id| text.contains(id)), "{text}");
    let some = place.output(&["lab", "list", "A1/", "flush", "-o", "json"]);
    let some: Vec<_> = json(&some.out).iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect();
    assert!(some.iter().any(|id| id == "A1/crash") && some.iter().any(|id| id == "redis/29-flushed"), "{some:?}");
    assert!(some.len() < ids.len() / 4, "{some:?}");
    assert_eq!(place.output(&["lab", "list", "nothing-like-it"]).code, 64);
}

#[test]
fn a_reader_that_has_enough_is_no_error() {
    let place = Place::new();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "{ \"$0\" lab list; echo ended >&2; } | head -n 1"]).arg(env!("CARGO_BIN_EXE_tenure-lab"));
    let ended = Ended::of(command.current_dir(place.path("")));
    assert_eq!((ended.code, ended.out.lines().count(), ended.err.as_str()), (0, 1, "ended\n"), "{ended:?}");
}

#[test]
fn a_run_is_an_array_with_exactly_the_promised_fields() {
    let place = Place::new();
    let ended = place.rows(&["lab", "run", "A1/crash", "memory/25", "--seed", "41", "--repeat", "2", "-o", "json"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let mut outcomes = json(&ended.out);
    outcomes.sort_by_key(|outcome| (outcome["id"].to_string(), outcome["seed"].as_u64()));
    let broken_lock = |seed: u64| {
        serde_json::json!({
            "id": "A1/crash", "kind": "broken-lock", "tier": null, "verdict": "broken", "expected": "broken", "ok": true, "seed": seed,
        })
    };
    assert_eq!(outcomes[..2], [broken_lock(41), broken_lock(42)]);
    let scenario = serde_json::json!({
        "id": "memory/25-fixed-lease", "kind": "scenario", "tier": 1, "verdict": "holds", "expected": "holds", "ok": true, "seed": 41,
    });
    assert_eq!(outcomes[2], scenario);
    assert_eq!(outcomes.len(), 4);
}

#[test]
fn a_single_run_tells_its_story_and_how_to_have_it_again() {
    let place = Place::new();
    let ended = place.rows(&["lab", "run", "A4/fast-host", "--seed", "5"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    for words in ["B: GETSET lock", "two hold at once", "1 of 1 as expected", "tenure lab run A4/fast-host --seed 5", "A    ?"] {
        assert!(ended.out.contains(words), "{words}\n{}", ended.out);
    }
    assert!(ended.out.starts_with("broken, as expected  A4/fast-host  ("), "{}", ended.out);
    assert!(ended.out.lines().all(|line| line.chars().count() <= 80), "wider than a terminal:\n{}", ended.out);
}

#[test]
fn a_saved_history_is_judged_again() {
    let place = Place::new();
    let ended = place.rows(&["lab", "run", "A5/late-release", "--seed", "3", "--save", "runs", "-o", "json"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let file = "runs/A5-late-release-3.jsonl";
    let again = place.output(&["lab", "check", file]);
    assert_eq!(again.code, 0, "{again:?}");
    assert!(again.out.starts_with("broken\n") && again.out.contains("two hold at once"), "{}", again.out);
    // What is said to be of a scenario that holds is not as expected when it is broken.
    let changed = std::fs::read_to_string(place.path(file)).unwrap().replacen("A5/late-release", "redis/29-flushed", 1);
    std::fs::write(place.path(file), changed).unwrap();
    assert_eq!(place.output(&["lab", "check", file]).code, 1);
    std::fs::write(place.path(file), "{\"id\":").unwrap();
    let damaged = place.output(&["lab", "check", file]);
    assert_eq!(damaged.code, 74, "{damaged:?}");
    assert!(damaged.err.contains("A5-late-release-3.jsonl, line 1"), "{}", damaged.err);
}

#[test]
fn what_cannot_be_run_is_named() {
    let place = Place::new();
    let unknown = place.output(&["lab", "run", "A99"]);
    assert_eq!(unknown.code, 64);
    assert!(unknown.err.contains("\"A99\"") && unknown.err.contains("tenure lab list"), "{}", unknown.err);
    let mut command = place.program(&["lab", "run", "A1/crash"]);
    let missing = Ended::of(command.env("TENURE_REDIS_SERVER", "/nowhere/redis-server"));
    assert_eq!(missing.code, 69, "{missing:?}");
    assert!(missing.err.contains("/nowhere/redis-server") && missing.err.contains("install redis-server"), "{}", missing.err);
    let mut command = place.program(&["lab", "run", "postgres/25"]);
    let missing = Ended::of(command.env("TENURE_POSTGRES_BIN", "/nowhere"));
    assert_eq!(missing.code, 69, "{missing:?}");
    assert!(missing.err.contains("/nowhere/postgres") && missing.err.contains("install postgresql"), "{}", missing.err);
    assert_eq!(place.output(&["lab", "run", "--repeat", "0"]).code, 64);
    assert_eq!(place.output(&["lab", "run", "memory/25", "--save", "/proc/nowhere"]).code, 74);
}

#[test]
fn a_run_that_is_ended_leaves_nothing_behind() {
    for signal in [Signal::Term, Signal::Kill] {
        let place = Place::new();
        let mut command = place.program(&["lab", "run", "redis/01-holder", "sqlite/01-holder", "redis/19-stopped-for-long"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let running = Spawned::spawn(command.env("TMPDIR", place.path(""))).unwrap();
        // Servers, and workers of which some are stopped.
        wait_for("a worker that is stopped", || {
            let all = children(running.pid());
            all.len() >= 5 && all.into_iter().any(is_stopped)
        });
        end_with_all(running, signal);
        let left = || {
            std::fs::read_dir(place.path(""))
                .unwrap()
                .flatten()
                .any(|entry| entry.file_name().to_string_lossy().starts_with("tenure-"))
        };
        wait_for("the end of its files", || !left());
    }
}

#[test]
fn exploring_says_what_it_met() {
    let place = Place::new();
    let ended = place.output(&["lab", "explore", "--runs", "200", "--seed", "9"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.out.contains("200 runs in"), "{}", ended.out);
}

#[test]
fn a_soak_ends_in_a_line_of_figures() {
    let place = Place::new();
    let ended = place.output(&["lab", "soak", "--for", "60s", "--grants", "500", "--seed", "3"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let line = ended.out.trim_end();
    assert!(line.starts_with("memory, 60 s, seed 3, 1 process: ") && line.ends_with(" claims compared, 0 findings"), "{line}");
    assert!(!line.contains('\n') && !line.contains(": 0 grants"), "{line}");
}

#[test]
fn a_soak_on_a_store_that_was_named_leaves_nothing_there() {
    let (place, server) = (Place::new(), RedisServer::start());
    let ended = place.output(&["lab", "soak", "--store", &server.url(), "--for", "60s", "--grants", "500", "--processes", "2"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.out.contains("the store, 60 s, seed 1, 2 processes: "), "{}", ended.out);
    wait_for("the end of what waiters had there", || server.cli("KEYS *") == "tenure:fence");
}

#[test]
fn a_soak_that_cannot_be_is_refused() {
    let place = Place::new();
    for (args, words) in
        [(&["--flush"][..], "--store redis"), (&["--store", "mongodb://db"], "mongodb"), (&["--processes", "0"], "--processes")]
    {
        let ended = place.output(&[&["lab", "soak", "--for", "1s"], args].concat());
        assert_eq!(ended.code, 64, "{ended:?}");
        assert!(ended.err.contains(words), "{}", ended.err);
    }
    let mut command = place.program(&["lab", "soak", "--store", "redis", "--for", "1s"]);
    let missing = Ended::of(command.env("TENURE_REDIS_SERVER", "/nowhere/redis-server"));
    assert_eq!(missing.code, 69, "{missing:?}");
    let mut command = place.program(&["lab", "soak", "--store", "memcached", "--for", "1s"]);
    let programs = place.path("bin");
    std::fs::create_dir(&programs).unwrap();
    std::os::unix::fs::symlink("/bin/sh", programs.join("sh")).unwrap();
    let missing = Ended::of(command.env("PATH", programs));
    assert_eq!(missing.code, 69, "{missing:?}");
    assert!(missing.err.contains("install memcached"), "{}", missing.err);
}

/// The page in the repository is of what the lab has now: the same ids, the same verdicts, the same stories.
#[test]
fn the_page_is_up_to_date() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/lab.md")).unwrap();
    let place = Place::new();
    for item in json(&place.output(&["lab", "list", "-o", "json"]).out) {
        let field = |name: &str| item[name].as_str().unwrap_or_default().to_owned();
        let (id, fault, expected) = (field("id"), field("fault"), field("expected"));
        let row = page.lines().find(|line| line.starts_with('|') && line.contains(&format!("`{id}`")));
        let row = row.unwrap_or_else(|| panic!("docs/lab.md has no row of {id}; write it with: just lab-page"));
        assert!(row.contains(&fault) && row.contains(&format!("| {expected}")), "docs/lab.md says of {id}: {row}");
    }
    // A story is the same in every run.
    let run = place.rows(&["lab", "run", "A3/overwrites"]);
    let story: Vec<&str> = run.out.lines().filter(|line| line.contains(" lock ")).map(str::trim_start).collect();
    assert!(story.len() > 5 && story.iter().all(|line| page.contains(line)), "docs/lab.md tells A3/overwrites otherwise");
}
