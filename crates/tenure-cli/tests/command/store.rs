//! Which store is used, by whom, and what is seen of it.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{Ended, Place, assert_one_line};
use tenure_testkit::{RedisServer, Spawned};

fn outcome(command: &mut Command) -> Ended {
    Ended::from(Spawned::output(command).unwrap())
}

#[test]
fn who_may_use_a_file_is_said_in_a_way_that_is_checked() {
    let place = Place::new();
    for (parameters, why) in [
        ("mode=0644", "cannot have the mode 0644"),
        ("mode=rw", "no mode of a file"),
        ("group=no-such-group", "no group of this machine"),
        ("mode=0600&group=0", "not open to its group"),
        ("shared=1", "known are mode, group, scheme"),
    ] {
        let store = format!("sqlite:{}?{parameters}", place.path("x.db").display());
        let ended = place.output(&["run", "--store", &store, "x", "--", "true"]);
        ended.says(64, why);
    }
    assert!(!place.path("x.db").exists());
}

/// A path with a mistake in it would be a store of its own.
#[test]
fn a_directory_that_is_not_there_is_named() {
    let place = Place::new();
    let store = format!("sqlite:{}", place.path("nosuch/dir/x.db").display());
    for args in [&["run", "x", "--", "true"][..], &["show"], &["show", "x"], &["break", "x"], &["acquire", "x"]] {
        let ended = outcome(place.tenure(args).env("TENURE_STORE", &store));
        assert_eq!(ended.code, 74, "{args:?}: {ended:?}");
        assert_one_line(&ended);
        assert!(ended.err.contains(&format!("mkdir -p {}", place.path("nosuch/dir").display())), "{}", ended.err);
    }
    assert!(!place.path("nosuch").exists());
    // That of the default is ours to make.
    assert_eq!(place.output(&["run", "x", "--", "true"]).code, 0);
}

#[test]
fn show_says_which_store_it_is_of() {
    let place = Place::new();
    let default = place.path("state/tenure/locks.db");
    let told = format!("in sqlite:{}, the file of this user alone", default.display());
    for args in [&["show"][..], &["show", "x"], &["break", "x"]] {
        assert!(place.output(args).err.contains(&told), "{args:?}");
    }
    assert_eq!(place.output(&["acquire", "x"]).code, 0);
    for args in
        [&["show", "-v"][..], &["run", "-vn", "x", "--", "true"], &["run", "-v", "y", "--", "true"], &["acquire", "-vn", "x"]]
    {
        assert_eq!(place.output(args).err.matches("locks.db").count(), 1, "{args:?}: {:?}", place.output(args));
    }
    let named = place.output(&["show", "--store", "sqlite:y.db"]);
    assert!(named.err.contains("y.db\n") && !named.err.contains("alone"), "{}", named.err);
}

/// The user's file first, and then the machine's.
#[test]
fn the_machines_config_file_is_read() {
    let place = Place::new();
    place.write_config("ttl = \"9s\"");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-e", "trace=openat", "-o"]).arg(place.path("trace"));
    place.settle(strace.arg(env!("CARGO_BIN_EXE_tenure")).arg("show"));
    assert_eq!(outcome(&mut strace).code, 0, "strace(1) is missing, or the command failed");
    let trace = place.read("trace");
    let files: Vec<_> = trace.lines().filter_map(|line| line.split('"').nth(1)?.strip_suffix("tenure/config.toml")).collect();
    assert_eq!(files, [place.path("config/").to_str().unwrap(), "/etc/"]);
}

#[test]
fn a_name_can_be_asked_about_without_taking_it() {
    let place = Place::new();
    let check = |name: &str| place.output(&["show", "--check", name]);
    assert_eq!(check("x").code, 1);
    assert_eq!(place.output(&["acquire", "--ttl", "8s", "x"]).code, 0);
    let end = Instant::now() + Duration::from_secs(8);
    let held = check("x");
    assert_eq!((held.code, held.out.as_str(), held.err.as_str()), (0, "", ""));
    let still = place.output(&["show", "--wait", "300ms", "x"]);
    assert!(still.code == 75 && still.out.contains("x  "), "{still:?}");
    let freed = place.output(&["show", "--until-free", "x"]);
    assert!(freed.code == 0 && freed.err.contains("\"x\" is free"), "{freed:?}");
    let late = Instant::now().saturating_duration_since(end);
    assert!(late < Duration::from_secs(3), "beyond the end of the lease it took {late:?}");
    assert_eq!(check("x").code, 1);
}

#[test]
fn some_of_many_names_are_shown() {
    let place = Place::new();
    for name in ["deploy/web", "deploy/api", "report"] {
        assert_eq!(place.output(&["acquire", name]).code, 0);
    }
    let names = |args: &[&str]| {
        let shown = place.output(&[&["show", "-o", "json"], args].concat()).out;
        let entries: serde_json::Value = serde_json::from_str(&shown).unwrap();
        entries.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&["--match", "deploy/*"]), ["deploy/api", "deploy/web"]);
    assert_eq!(names(&["--limit", "1"]), ["deploy/api"]);
    let some = place.output(&["show", "-l", "2"]);
    assert!(some.out.lines().count() == 3 && some.err.contains("2 of 3 names"), "{some:?}");
    let json = place.output(&["show", "-o", "json", "report"]).out;
    assert!(json.contains("\"held_for_ms\":") && !json.contains("\"held_for_ms\":null"), "{json}");
}

/// A lease that is left to others keeps its shortest hold: a release has nothing but the token.
#[test]
fn a_shortest_hold_outlives_a_release() {
    let (place, server) = (Place::new(), RedisServer::start());
    for store in ["sqlite:x.db", &format!("{}?timeout=5s", server.url())] {
        let begun = Instant::now();
        let held = place.output(&["acquire", "--store", store, "--label", "me", "--min-hold", "6s", "-o", "json", "x"]);
        let lease: serde_json::Value = serde_json::from_str(&held.out).unwrap();
        let token = lease["token"].as_str().unwrap();
        assert_eq!(place.output(&["release", "--store", store, "x", "--token", token]).code, 0);
        let after = place.output(&["show", "--store", store, "x"]);
        assert!(after.out.contains("nobody (after me)"), "{store}: {after:?}");
        assert_eq!(place.output(&["renew", "--store", store, "x", "--token", token]).code, 79, "it is released");
        let next = place.output(&["run", "-w", "20s", "--store", store, "x", "--", "true"]);
        assert_eq!(next.code, 0, "{next:?}");
        assert!(begun.elapsed() >= Duration::from_secs(6), "{store}: free after {:?}", begun.elapsed());
        // Without one it is free at once.
        let other = place.output(&["acquire", "--store", store, "-o", "json", "y"]);
        let lease: serde_json::Value = serde_json::from_str(&other.out).unwrap();
        assert_eq!(place.output(&["release", "--store", store, "y", "--token", lease["token"].as_str().unwrap()]).code, 0);
        assert_eq!(place.output(&["run", "-n", "--store", store, "y", "--", "true"]).code, 0);
    }
    let both = place.output(&["acquire", "--min-hold", "3s", "--token", "mine", "z"]);
    assert!(both.code == 64 && both.err.contains("--watch-pid"), "{both:?}");
}

/// At boot a command may come before its server.
#[test]
fn a_wait_covers_the_first_contact() {
    let (place, server) = (Place::new(), RedisServer::start());
    let url = server.url();
    server.kill();
    let begun = Instant::now();
    let refused = place.output(&["run", "-n", "--store", &url, "x", "--", "true"]);
    assert!(begun.elapsed() < Duration::from_secs(2), "took {:?}", begun.elapsed());
    assert_eq!(refused.code, 69, "{refused:?}");
    let short = place.output(&["run", "-w", "4s", "--store", &url, "x", "--", "true"]);
    assert!(short.code == 69 && short.err.contains("trying again for"), "{short:?}");
    let early: Vec<_> = [&["-w", "20s"][..], &[]]
        .map(|wait| place.spawn(&[&["run", "--store", &url], wait, &["x", "--", "echo", "in"]].concat()))
        .into();
    std::thread::sleep(Duration::from_secs(1));
    server.restart();
    for run in early {
        let ended = run.end();
        assert_eq!((ended.code, ended.out.as_str()), (0, "in\n"), "{ended:?}");
    }
    server.kill();
    let begun = Instant::now();
    let endless = place.output(&["run", "-q", "--store", &url, "x", "--", "true"]);
    assert_eq!(endless.code, 69, "{endless:?}");
    assert!((4..8).contains(&begun.elapsed().as_secs()), "without a limit it is 5 s: {:?}", begun.elapsed());
}

/// The inner command gets what it needs, and no password.
#[test]
fn the_command_gets_a_redis_without_its_password() {
    let (place, server) = (Place::new(), RedisServer::builder().password("s3cret").start());
    let with = server.url();
    let without = with.replace(":s3cret@", "");
    let show = &["--", "sh", "-c", "echo $TENURE_STORE; \"$TENURE\" show -o json x"];
    let flag = place.output(&[&["run", "--store", &with, "x"][..], show].concat());
    assert_eq!(flag.out, format!("{without}\n"), "{flag:?}");
    assert!(flag.err.contains("can be read by every user") && !flag.err.contains("s3cret"), "{}", flag.err);
    assert_eq!(flag.code, 77, "the inner command has no password: {flag:?}");
    // With a config file it has.
    place.write_config(&format!("store = \"{without}\"\npassword = \"s3cret\""));
    let file = place.output(&[&["run", "x"][..], show].concat());
    assert!(file.code == 0 && file.out.contains("\"name\":\"x\"") && file.err.is_empty(), "{file:?}");
}

/// The rights that the help names are enough.
#[test]
fn the_rights_of_the_help_are_enough() {
    let (place, server) = (Place::new(), RedisServer::start());
    let page = place.output(&["help", "store"]).out;
    let rule: String = page.split("  ACL SETUSER ").nth(1).unwrap().split("\n\n").next().unwrap().replace("PASSWORD", "pw");
    let words: Vec<&str> = ["ACL", "SETUSER"].into_iter().chain(rule.split_whitespace()).collect();
    assert_eq!(server.cli(&words.join(" ")), "OK", "{words:?}");
    let store = format!("{}?prefix=app:&timeout=5s", server.url().replace("redis://", "redis://tenure@"));
    let tenure = |args: &[&str]| outcome(place.tenure(args).env("TENURE_STORE", &store).env("TENURE_PASSWORD", "pw"));
    for kind in [&[][..], &["--shared"], &["--permits", "1/3"], &["-a", "y"]] {
        let ended = tenure(&[&["run"], kind, &["x", "--", "true"]].concat());
        assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{kind:?}");
    }
    assert_eq!(tenure(&["show"]).code, 0);
    assert_eq!(tenure(&["break", "x"]).code, 1);
}

/// A server's other keys cost one command each, and those of a page at a time.
#[test]
fn foreign_keys_are_passed_over() {
    const FOREIGN: u64 = 2_000;
    let (place, server) = (Place::new(), RedisServer::start());
    let fill = format!("for i = 1, {FOREIGN} do redis.call('SET', 'k' .. i, 'v') end");
    server.command(&["EVAL", &fill, "0"]);
    assert_eq!(place.output(&["acquire", "--store", &server.url(), "x"]).code, 0);
    let calls = || {
        let stats = server.cli("INFO stats");
        let total = stats.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
        total.unwrap().trim().parse::<u64>().unwrap()
    };
    let before = calls();
    let shown = place.output(&["show", "--store", &server.url()]);
    let spent = calls() - before;
    assert!(shown.out.lines().count() == 2 && spent < FOREIGN + 100, "{spent} commands: {shown:?}");
}
