//! `tenure bench`: what it prints, what it counts, and how it ends.

use std::collections::BTreeSet;
use std::process::Stdio;

use serde_json::Value;
use tenure_testkit::process::children;
use tenure_testkit::{RedisServer, Signal, Spawned, admit};

use crate::common::{Ended, Place, end_with_all, has_lost, in_time, wait_for};

const FIELDS: [&str; 10] = [
    "case",
    "client_cpu_us_per_operation",
    "commands_per_operation",
    "operations",
    "p50_us",
    "p99_us",
    "per_second",
    "seconds",
    "server_cpu_us_per_operation",
    "tasks",
];

fn bench(args: &[&str]) -> Ended {
    let place = Place::new();
    place.output(&[&["bench"], args].concat())
}

/// Returns the JSON that a benchmark printed with `-o json`.
fn found(ended: &Ended) -> Value {
    assert_eq!(ended.code, 0, "{ended:?}");
    serde_json::from_str(&ended.out).unwrap()
}

fn figure(of: &Value, field: &str) -> f64 {
    of[field].as_f64().unwrap_or_else(|| panic!("{field} in {of}"))
}

#[test]
fn a_quorum_is_measured_and_named() {
    let servers: Vec<RedisServer> = (0..3).map(|_| RedisServer::start()).collect();
    let hosts: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    let url = format!("quorum+redis://{}", hosts.join(","));
    admit(&url);
    let ended = bench(&["cycle", "--store", &url, "--tasks", "2", "--seconds", "1", "-o", "json"]);
    assert!(ended.err.contains("measures a quorum of 3 Redis servers"), "{}", ended.err);
    let cycle = found(&ended);
    assert!(figure(&cycle, "operations") > 0.0 && cycle["commands_per_operation"].is_null(), "{cycle}");
    // Of all three together, as INFO has it.
    assert!(figure(&cycle, "server_cpu_us_per_operation") > 0.0, "{cycle}");
}

#[test]
fn every_case_has_exactly_the_promised_fields() {
    let all = found(&in_time(|| bench(&["all", "--tasks", "8", "--seconds", "0.6", "-o", "json"]), has_lost));
    let cases: BTreeSet<&str> = all.as_array().unwrap().iter().map(|one| one["case"].as_str().unwrap()).collect();
    assert_eq!(cases, BTreeSet::from(["cycle", "handover", "local-handover", "readers", "renew", "waiters"]));
    for one in all.as_array().unwrap() {
        let fields: Vec<&str> = one.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(fields, FIELDS, "{one}");
        assert_eq!((one["tasks"].as_u64(), one["seconds"].as_f64()), (Some(8), Some(0.6)));
        // Waiters call the store about once a second, and not at all in a shorter time.
        if one["case"] == "waiters" && one["operations"] == 0 {
            assert_eq!((&one["p50_us"], &one["commands_per_operation"]), (&Value::Null, &Value::Null));
            continue;
        }
        assert!(figure(one, "operations") > 0.0, "{one}");
        let per_second = figure(one, "operations") / 0.6;
        assert!((figure(one, "per_second") - per_second).abs() < 0.1, "{one}");
        assert!(0.0 < figure(one, "p50_us") && figure(one, "p50_us") <= figure(one, "p99_us"), "{one}");
        assert!(figure(one, "commands_per_operation") > 0.0 && figure(one, "client_cpu_us_per_operation") > 0.0, "{one}");
    }
}

#[test]
fn commands_are_those_that_are_sent() {
    let one = found(&bench(&["cycle", "--tasks", "4", "--seconds", "0.5", "-o", "json"]));
    // To take: a transaction of a few commands. To release: one, whatever it calls. The fence counter is raised now and then.
    let commands = figure(&one, "commands_per_operation");
    assert!((4.9..7.0).contains(&commands), "{commands}");
}

/// Each scheme costs what its commands cost. A share that it cannot keep is refused.
#[test]
fn dialects_are_measured_as_they_are_named() {
    let server = RedisServer::start();
    let run = |case: &str, scheme: &str| {
        let url = format!("{}?scheme={scheme}", server.url());
        in_time(|| bench(&[case, "--tasks", "2", "--seconds", "0.5", "--store", &url, "-o", "json"]), has_lost)
    };
    for (scheme, sent) in [("set-nx", 2.0), ("setnx-expire", 2.0), ("setnx-expire-lua", 2.0), ("php", 2.0), ("getset", 2.0)] {
        let commands = figure(&found(&run("cycle", scheme)), "commands_per_operation");
        assert!((sent..sent + 0.5).contains(&commands), "{scheme}: {commands}");
    }
    assert!(figure(&found(&run("cycle", "watch")), "operations") > 0.0);
    assert!(figure(&found(&run("handover", "set-nx")), "operations") > 0.0);
    let refused = run("readers", "set-nx");
    assert!(refused.code == 64 && refused.err.contains("mutex"), "{refused:?}");
}

#[test]
fn waiters_of_one_name_ask_about_once_a_second() {
    let one = found(&bench(&["waiters", "--tasks", "100", "--seconds", "3", "-o", "json"]));
    let (asked, commands) = (figure(&one, "operations"), figure(&one, "commands_per_operation"));
    assert!((1.0..=6.0).contains(&asked) && commands <= 2.0, "{one}");
}

#[test]
fn a_file_has_no_server_that_counts() {
    let args = ["handover", "--tasks", "2", "--seconds", "0.5", "--store", "sqlite:locks.db", "-o", "json"];
    let one = found(&in_time(|| bench(&args), has_lost));
    assert_eq!(one["commands_per_operation"], Value::Null);
    assert!(figure(&one, "operations") > 0.0, "{one}");
}

/// Waiters that the store cannot notify poll all the time, and never come to rest.
#[test]
fn waiters_that_look_all_the_time_are_measured_as_they_are() {
    let place = Place::new();
    std::fs::write(place.path("locks.db-wake"), "in the way").unwrap();
    let args = ["bench", "waiters", "--tasks", "2", "--seconds", "2", "--store", "SQLITE:locks.db", "-o", "json"];
    let one = found(&place.output(&args));
    assert!(figure(&one, "operations") > 5.0, "{one}");
}

#[test]
fn a_store_that_was_named_is_left_as_it_was() {
    let server = RedisServer::builder().password("s3cret").start();
    let place = Place::new();
    let url = format!("redis://127.0.0.1:{}", server.port());
    for case in ["cycle", "handover", "readers", "waiters"] {
        let mut command = place.program(&["bench", case, "--tasks", "3", "--seconds", "1", "--store", &url, "-o", "json"]);
        let one = found(&Ended::of(command.env("TENURE_PASSWORD", "s3cret")));
        assert!(case == "waiters" || figure(&one, "commands_per_operation") > 0.0, "{one}");
    }
    assert_eq!(server.cli("KEYS *"), "tenure:fence");
}

#[test]
fn a_server_that_may_not_be_watched_is_measured_without_commands() {
    let server = RedisServer::builder().acl("user default on nopass ~* &* +@all -monitor").start();
    let ended = bench(&["cycle", "--tasks", "2", "--seconds", "0.2", "--store", &server.url(), "-o", "json"]);
    assert_eq!(found(&ended)["commands_per_operation"], Value::Null);
    assert!(ended.err.contains("commands are not counted: "), "{}", ended.err);
}

#[test]
fn people_get_a_table_and_hear_what_is_done() {
    let ended = bench(&["cycle", "--tasks", "2", "--seconds", "0.2"]);
    assert!(
        ended.out.starts_with("CASE ") && ended.out.contains("\ncycle ") && ended.out.contains("an operation is"),
        "{ended:?}"
    );
    assert!(ended.err.contains("cycle: 2 tasks, 0.2 s"), "{ended:?}");
    assert_eq!(bench(&["cycle", "--tasks", "2", "--seconds", "0.2", "-q"]).err, "");
}

#[test]
fn what_cannot_be_measured_is_told_why() {
    for (args, why) in [
        (&["cycle", "--tasks", "0"][..], "cycle with 0 tasks is not between 1 and"),
        (&["handover", "--tasks", "1"], "two must be there"),
        (&["all", "--tasks", "1"], "two must be there"),
        (&["cycle", "--tasks", "-1"], "invalid value '-1'"),
        (&["cycle", "--seconds", "0"], "0 seconds are not between 0.1 and 3600"),
        (&["cycle", "--seconds", "-1"], "\"-1\" is no time"),
        (&["cycle", "--seconds", "nan"], "\"nan\" is no time"),
        (&["cycle", "--seconds", "5m"], "\"5m\" is no number of seconds"),
        (&["circle"], "possible values: "),
        (&["cycle", "--store", "ftp://x"], "ftp: is no store that tenure knows"),
    ] {
        let ended = bench(args);
        assert_eq!(ended.code, 64, "{args:?}: {ended:?}");
        assert!(ended.err.contains(why), "{args:?}: {}", ended.err);
    }
    let place = Place::new();
    let mut command = place.program(&["bench", "cycle"]);
    let missing = Ended::of(command.env("TENURE_REDIS_SERVER", "/nowhere/redis-server"));
    assert_eq!(missing.code, 69, "{missing:?}");
    assert!(missing.err.contains("/nowhere/redis-server") && missing.err.contains("install redis-server"), "{}", missing.err);
    assert_eq!(bench(&["cycle", "--store", "redis://127.0.0.1:1"]).code, 69);
}

#[test]
fn a_run_that_is_ended_leaves_nothing_behind() {
    for signal in [Signal::Term, Signal::Kill] {
        let place = Place::new();
        let mut command = place.program(&["bench", "handover", "--tasks", "3", "--seconds", "60"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let running = Spawned::spawn(command.env("TMPDIR", place.path(""))).unwrap();
        // The server, the three, and the process that cleans up.
        wait_for("all of its processes", || children(running.pid()).len() == 5);
        end_with_all(running, signal);
    }
}
