//! The command on a table of MariaDB.

use tenure_testkit::{MariaDbServer, Spawned, some_of};

use crate::advisory;
use crate::common::{Ended, Place, assert_one_line, count};

fn url() -> String {
    // `run -n` asks once, so there is time for an answer.
    MariaDbServer::shared().url(&MariaDbServer::fresh_table()) + "&timeout=5s"
}

#[test]
fn turns_on_mariadb() {
    count(10, some_of(25), Some(&url()), || ());
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

#[test]
fn the_migration_of_mariadb_is_printed() {
    let (place, table) = (Place::new(), MariaDbServer::fresh_table());
    let printed = place.output(&["migration", "--store", &format!("mariadb://127.0.0.1:1/x?table=locks.{table}")]);
    assert_eq!((printed.code, printed.err.as_str()), (0, ""), "{printed:?}");
    for _ in 0..2 {
        MariaDbServer::shared().sql(&printed.out);
    }
    let url = MariaDbServer::shared().url(&table).replace("create=yes&", "") + "&timeout=5s";
    assert_eq!(place.output(&["run", "-n", "--store", &url, "x", "--", "true"]).code, 0);
}

/// Each has its code and says what to do, in one line and without the password.
#[test]
fn bad_input_is_told() {
    let server = MariaDbServer::start();
    let (addr, place) = (server.addr(), Place::new());
    let login = format!("mysql://app:s3cret@{addr}");
    // Not by --store: a password there has a line of its own.
    let run = |url: &str, name: &str| {
        let mut run = place.tenure(&["run", "-n", name, "--", "true"]);
        Ended::from(Spawned::output(run.env("TENURE_STORE", tenure_testkit::patient(url, "5s"))).unwrap())
    };
    server.sql("CREATE USER app IDENTIFIED BY 's3cret'; GRANT ALL ON locks.* TO app");
    server.sql("CREATE USER reader IDENTIFIED BY 's3cret'; GRANT SELECT ON locks.* TO reader");
    server.sql("CREATE TABLE locks.later (name varbinary(9), version bigint); INSERT INTO locks.later VALUES ('', 2)");
    server.sql("CREATE TABLE locks.empty (name varbinary(9), version bigint)");
    assert_eq!(run(&format!("{login}/locks?create=yes"), "x").code, 0);
    let table = [
        (format!("mysql://app:wrong@{addr}/locks"), 77, "password"),
        (format!("mysql://app@{addr}/locks"), 77, "TENURE_PASSWORD"),
        (format!("mysql://nobody:s3cret@{addr}/locks"), 77, "does not let this user in"),
        (format!("{login}/nowhere"), 77, "nowhere"),
        (format!("{login}/locks?table=missing"), 74, "CREATE TABLE IF NOT EXISTS `missing`"),
        (format!("{login}/locks?table=later"), 74, "is of version 2"),
        (format!("{login}/locks?table=empty"), 74, "lost its own row"),
        (format!("mysql://reader:s3cret@{addr}/locks"), 77, "GRANT"),
        (format!("{login}/locks?sslmode=require"), 69, "TLS"),
        (format!("{login}/locks?sslmode=prefer"), 64, "sslmode=prefer"),
        (format!("{login}/locks?sslmode=sometimes"), 64, "sslmode"),
        (format!("{login}/locks?colour=red"), 64, "colour="),
        (format!("{login}/locks?table=a.b.c"), 64, "name of a table"),
        (login.clone(), 64, "no database"),
        ("mysql://127.0.0.1:1/x".to_owned(), 69, "refused"),
    ];
    let is_told = |url: &str, code: i32, why: &str| {
        let ended = run(url, "x");
        assert!(ended.code == code && ended.err.to_lowercase().contains(&why.to_lowercase()), "{url}: {ended:?}");
        assert!(!ended.err.contains("s3cret") && !ended.err.contains("wrong"), "{ended:?}");
        assert_one_line(&ended);
    };
    for (url, code, why) in table {
        is_told(&url, code, why);
    }
    assert_eq!(run(&format!("{login}/locks"), &"n".repeat(1_025)).code, 64);
    server.sql("SET GLOBAL read_only = 1");
    is_told(&format!("{login}/locks"), 69, "read-only");
}

/// Session locks that nobody else has.
fn session_url() -> String {
    let (addr, prefix) = (MariaDbServer::shared().addr(), MariaDbServer::fresh_table());
    format!("mysql://root@{addr}/locks?scheme=advisory&prefix={prefix}.&timeout=5s")
}

#[test]
fn turns_of_sessions_of_mariadb() {
    advisory::turns_of_sessions(&session_url());
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
