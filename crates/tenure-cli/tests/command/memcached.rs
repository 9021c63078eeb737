//! The command on memcached.

use std::time::Instant;

use tenure_testkit::{MemcachedServer, Spawned, some_of};

use crate::common::{Ended, Place, assert_one_line, count};

fn url(parameters: &str) -> String {
    MemcachedServer::url_at(MemcachedServer::shared().addr(), &MemcachedServer::fresh_prefix()) + parameters
}

#[test]
fn turns_on_memcached() {
    count(10, some_of(25), Some(&url("&timeout=5s")), || ());
}

#[test]
fn turns_by_add() {
    count(10, some_of(25), Some(&url("&scheme=add&timeout=5s")), || ());
}

#[test]
fn turns_on_three_servers() {
    let servers = [(); 3].map(|()| MemcachedServer::start());
    let hosts = servers.each_ref().map(|server| server.addr().to_string()).join(",");
    count(10, some_of(25), Some(&format!("memcached://{hosts}?timeout=5s")), || ());
}

#[test]
fn every_command_speaks_to_memcached() {
    for scheme in ["cas", "add"] {
        let (place, url) = (Place::new(), url(&format!("&scheme={scheme}&timeout=5s")));
        let lease = place.output(&["acquire", "--store", &url, "--ttl", "1m", "x"]);
        assert!(lease.code == 0 && lease.out.contains("TENURE_FENCE="), "{lease:?}");
        assert_eq!(place.output(&["run", "-n", "--store", &url, "x", "--", "true"]).code, 75);
        let shown = place.output(&["show", "--store", &url, "-o", "json"]);
        let shown: serde_json::Value = serde_json::from_str(&shown.out).unwrap();
        assert_eq!((shown.as_array().unwrap().len(), &shown[0]["name"]), (1, &"x".into()), "{shown}");
        assert_eq!(place.output(&["break", "--store", &url, "x"]).code, 0);
        let shared = place.output(&["run", "-n", "--store", &url, "--shared", "x", "--", "true"]);
        assert_eq!(shared.code, if scheme == "cas" { 0 } else { 64 }, "{shared:?}");
        let migration = place.output(&["migration", "--store", &url]);
        assert!(migration.code == 64 && migration.err.contains("no table"), "{migration:?}");
        let admitted = place.output(&["admit", "--store", &url]);
        assert!(admitted.code == 64 && admitted.err.contains("no quorum"), "{admitted:?}");
    }
}

/// For some seconds a lease that ends shows no rest, and the command asked a thousand times in each.
#[test]
fn the_end_of_a_lease_is_waited_for_at_intervals() {
    let server = MemcachedServer::start();
    let (place, url) = (Place::new(), server.url());
    assert_eq!(place.output(&["acquire", "--store", &url, "--ttl", "1s", "x"]).code, 0);
    let before = server.stat("cmd_get");
    let begun = Instant::now();
    let freed = place.output(&["show", "--store", &url, "--until-free", "x"]);
    assert_eq!(freed.code, 0, "{freed:?}");
    let (asked, most) = (server.stat("cmd_get") - before, 10 + begun.elapsed().as_millis() / 100);
    assert!(u128::from(asked) <= most, "asked {asked} times in {:?}", begun.elapsed());
}

/// A lost server takes its own names along. Each command is a new process, and the others go on for it as well.
#[test]
fn one_lost_server_stops_its_own_names_alone() {
    let servers = [(); 3].map(|()| MemcachedServer::start());
    let hosts = servers.each_ref().map(|server| server.addr().to_string()).join(",");
    let (place, url) = (Place::new(), format!("memcached://{hosts}?timeout=5s"));
    servers[1].kill();
    let mut codes: Vec<_> = (0..12)
        .map(|number| place.output(&["run", "-n", "--store", &url, &format!("door {number}"), "--", "true"]).code)
        .collect();
    codes.sort_unstable();
    codes.dedup();
    assert_eq!(codes, [0, 69], "some are locked, and some cannot be");
}

/// Each has its code and says what to do, in one line and without the password.
#[test]
fn bad_input_is_told() {
    let server = MemcachedServer::builder().login("app", "s3cret").start();
    let (addr, place) = (server.addr(), Place::new());
    // Not by --store: a password there has a line of its own.
    let run = |url: &str, name: &str| {
        let mut run = place.tenure(&["run", "-n", name, "--", "true"]);
        Ended::from(Spawned::output(run.env("TENURE_STORE", tenure_testkit::patient(url, "5s"))).unwrap())
    };
    assert_eq!(run(&format!("memcached://app:s3cret@{addr}"), "x").code, 0);
    for (url, code, why) in [
        (format!("memcached://app:s3crets@{addr}"), 77, "password"),
        (format!("memcached://{addr}"), 77, "password"),
        (format!("memcached://app:s3cret@{addr}?colour=red"), 64, "colour="),
        (format!("memcached://app:s3cret@{addr}?scheme=gets"), 64, "scheme="),
        (format!("memcached://app:s3cret@{addr}/db"), 64, "has a path"),
        ("memcached://".to_owned(), 64, "is empty"),
        ("memcached://127.0.0.1:1".to_owned(), 69, "refused"),
    ] {
        let ended = run(&url, "x");
        assert!(ended.code == code && ended.err.contains(why) && !ended.err.contains("s3cret"), "{url}: {ended:?}");
        assert_one_line(&ended);
    }
    let long = "n".repeat(251);
    let ended = run(&format!("memcached://app:s3cret@{addr}"), &long);
    assert!(ended.code == 64 && ended.err.contains("25"), "{ended:?}");
}

/// A lease stays for up to 5.5 s more. In a short period that is past the next tick.
#[test]
fn a_period_that_is_too_short_for_its_seconds_is_refused() {
    let (place, url) = (Place::new(), url(""));
    let run = |period: &str| place.output(&["run", "--store", &url, "--once-per", period, "x", "--", "echo", "run"]);
    let ended = run("30s");
    assert!(ended.code == 64 && ended.out.is_empty() && ended.err.contains("--once-per"), "{ended:?}");
    assert_one_line(&ended);
    assert_eq!(run("1m").out, "run\n");
    assert_eq!(run("1m").code, 75);
}
