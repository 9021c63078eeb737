//! The command on a table of MariaDB.

use tenure_testkit::MariaDbServer;

use crate::advisory;
use crate::common::{Place, assert_one_line, count};

fn url() -> String {
    MariaDbServer::shared().url(&MariaDbServer::fresh_table())
}

#[test]
fn two_hundred_and_fifty_turns_on_mariadb() {
    count(10, Some(&url()), || ());
}

#[test]
fn every_command_speaks_to_a_table_of_mariadb() {
    let (place, url) = (Place::new(), url());
    let lease = place.output(&["acquire", "--store", &url, "--ttl", "1m", "x"]);
    assert!(lease.code == 0 && lease.out.contains("TENURE_FENCE="), "{lease:?}");
    assert_eq!(place.output(&["run", "-n", "--store", &url, "x", "--", "true"]).code, 75);
    let shown = place.output(&["show", "--store", &url.replace("mysql:", "mariadb:"), "-o", "json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown.out).unwrap();
    assert_eq!(shown.as_array().unwrap().len(), 1, "{shown}");
    assert_eq!(place.output(&["break", "--store", &url, "x"]).code, 0);
    assert_eq!(place.output(&["run", "-n", "--store", &url, "--shared", "x", "--", "true"]).code, 0);
    let missing = place.output(&["run", "-n", "--store", &url.replace("create=yes&", ""), "x", "--", "true"]);
    assert_eq!(missing.code, 0, "it is there by now: {missing:?}");
    let missing = place.output(&["run", "-n", "--store", &url.replace("create=yes&table=", "table=no_"), "x", "--", "true"]);
    assert!(missing.code == 74 && missing.err.contains("CREATE TABLE"), "{missing:?}");
    assert_one_line(&missing);
    let url = url.replace("//root@", "//nobody@");
    assert_eq!(place.output(&["run", "-n", "--store", &url, "x", "--", "true"]).code, 77);
}

/// Session locks that nobody else has.
fn session_url() -> String {
    let (addr, prefix) = (MariaDbServer::shared().addr(), MariaDbServer::fresh_table());
    format!("mysql://root@{addr}/locks?scheme=advisory&prefix={prefix}.")
}

#[test]
fn two_hundred_and_fifty_turns_of_sessions_of_mariadb() {
    advisory::two_hundred_and_fifty_turns(&session_url());
}

#[test]
fn every_command_speaks_to_sessions_of_mariadb() {
    let url = session_url();
    advisory::every_command(&url);
    let place = Place::new();
    let all = place.output(&["show", "--store", &url]);
    assert!(all.code == 64 && all.err.contains("does not list"), "{all:?}");
    let long = place.output(&["run", "-n", "--store", &url, &"n".repeat(64), "--", "true"]);
    assert!(long.code == 64 && long.err.contains("bytes"), "{long:?}");
    assert_one_line(&long);
}
