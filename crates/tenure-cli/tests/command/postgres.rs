//! The command on a table of PostgreSQL.

use tenure_testkit::{PostgresServer, Spawned, some_of};

use crate::advisory;
use crate::common::{Ended, Place, assert_one_line, count};

fn url() -> String {
    // `run -n` asks once, so there is time for an answer.
    PostgresServer::shared().url(&PostgresServer::fresh_table()) + "&timeout=5s"
}

#[test]
fn turns_on_postgres() {
    count(10, some_of(25), Some(&url()), || ());
}

/// The sessions of all processes end in the midst, whatever they are at.
#[test]
fn turns_go_on_when_sessions_are_killed() {
    // Not those of other tests.
    let url = url() + "&application_name=turns";
    count(4, some_of(25), Some(&url), || {
        let all = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'turns'";
        PostgresServer::shared().sql(all);
    });
}

#[test]
fn every_command_speaks_to_a_table() {
    let (place, url) = (Place::new(), url());
    let run =
        place.output(&["run", "--store", &url, "x", "--", "sh", "-c", "echo $TENURE_FENCE; tenure=$TENURE; $tenure show x"]);
    assert!(run.code == 0 && run.out.lines().count() >= 2, "{run:?}");
    let lease = place.output(&["acquire", "--store", &url, "--ttl", "1m", "x"]);
    assert!(lease.code == 0 && lease.out.contains("TENURE_FENCE="), "{lease:?}");
    assert_eq!(place.output(&["run", "-n", "--store", &url, "x", "--", "true"]).code, 75);
    assert_eq!(place.output(&["run", "-n", "--store", &url, "--shared", "x", "--", "true"]).code, 75);
    let shown = place.output(&["show", "--store", &url, "-o", "json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown.out).unwrap();
    assert_eq!(shown.as_array().unwrap().len(), 1, "{shown}");
    assert_eq!(place.output(&["break", "--store", &url, "x"]).code, 0);
    assert_eq!(place.output(&["run", "-n", "--store", &url, "-a", "y", "--permits", "1/3", "x", "--", "true"]).code, 0);
}

/// Somebody has locked the rows of both names, and the server is well. Nobody gives up who may wait.
#[test]
fn a_locked_row_is_waited_for() {
    let (server, table, place) = (PostgresServer::shared(), PostgresServer::fresh_table(), Place::new());
    let url = server.url(&table) + "&timeout=2s";
    assert_eq!(place.output(&["run", "--store", &url, "-a", "led", "x", "--", "true"]).code, 0);
    let mut session = server.session();
    session.run(&format!("BEGIN; SELECT name FROM {table} WHERE name <> '' FOR UPDATE;"));
    let patient = place.spawn(&["run", "--store", &url, "x", "--", "true"]);
    let leading = place.spawn(&["lead", "--store", &url, "led", "--", "sh", "-c", "echo > led; sleep 60"]);
    for limit in [&["-n"][..], &["-w", "3s"]] {
        let told = place.output(&[&["run", "--store", &url], limit, &["x", "--", "true"]].concat());
        assert!(told.code == 69 && told.err.contains("locked"), "{told:?}");
    }
    session.run("ROLLBACK;");
    let patient = patient.end();
    assert_eq!(patient.code, 0, "{patient:?}");
    place.line("led");
    leading.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(leading.end().code, 128 + 15);
}

/// It needs no server, and the table is then as `create=yes` makes it.
#[test]
fn the_migration_is_printed() {
    let (place, table) = (Place::new(), PostgresServer::fresh_table());
    let printed = place.output(&["migration", "--store", &format!("postgres://nobody@127.0.0.1:1/x?table={table}")]);
    assert_eq!((printed.code, printed.err.as_str()), (0, ""), "{printed:?}");
    for _ in 0..2 {
        PostgresServer::shared().sql(&printed.out);
    }
    let url = PostgresServer::shared().url(&table).replace("create=yes&", "") + "&timeout=5s";
    assert_eq!(place.output(&["run", "-n", "--store", &url, "x", "--", "true"]).code, 0);
    let refused = place.output(&["migration", "--store", "redis://h"]);
    assert_eq!((refused.code, refused.out.as_str()), (64, ""));
    assert!(refused.err.contains("no table"), "{refused:?}");
    assert_one_line(&refused);
    assert_eq!(place.output(&["migration", "--store", "postgres://h/x?table=a.b.c"]).code, 64);
}

/// Each has its code and says what to do, in one line and without the password.
#[test]
fn bad_input_is_told() {
    let server = PostgresServer::builder().password("s3cret").set("max_connections", "20").start();
    let addr = server.addr();
    let place = Place::new();
    let login = format!("postgres://tenure:s3cret@{addr}");
    // Not by --store: a password there has a line of its own.
    let run = |url: &str, name: &str| {
        let mut run = place.tenure(&["run", "-n", name, "--", "true"]);
        Ended::from(Spawned::output(run.env("TENURE_STORE", tenure_testkit::patient(url, "5s"))).unwrap())
    };
    server.sql("CREATE TABLE later (name text, version bigint); INSERT INTO later VALUES ('', 2)");
    server.sql("CREATE TABLE empty (name text, version bigint)");
    server.sql("CREATE DATABASE odd ENCODING 'LATIN1' TEMPLATE template0");
    server.sql("CREATE ROLE reader LOGIN PASSWORD 's3cret'");
    assert_eq!(run(&format!("{login}/postgres?create=yes"), "x").code, 0);
    server.sql("GRANT SELECT ON tenure_lock TO reader");
    server.sql("CREATE ROLE replica LOGIN PASSWORD 's3cret'; GRANT ALL ON tenure_lock TO replica");
    server.sql("ALTER ROLE replica SET default_transaction_read_only = on");
    let table = [
        (format!("postgres://tenure:wrong@{addr}/postgres"), 77, "password"),
        (format!("postgres://tenure@{addr}/postgres"), 77, "TENURE_PASSWORD"),
        // The other will be back, and may take it.
        (format!("postgres://tenure:wrong@{addr},127.0.0.1:1/postgres"), 69, "password"),
        (format!("postgres://tenure:wrong@{addr},localhost:{}/postgres", addr.port()), 77, "password"),
        (format!("postgres://nobody:s3cret@{addr}/postgres"), 77, "does not let this user in"),
        (format!("{login}/nowhere"), 77, "\"nowhere\" does not exist"),
        (format!("{login}/postgres?table=missing"), 74, "CREATE TABLE IF NOT EXISTS \"missing\""),
        (format!("{login}/postgres?table=later"), 74, "is of version 2"),
        (format!("{login}/postgres?table=empty"), 74, "lost its own row"),
        (format!("{login}/odd?create=yes"), 77, "LATIN1"),
        (format!("postgres://reader:s3cret@{addr}/postgres"), 77, "GRANT"),
        (format!("postgres://replica:s3cret@{addr}/postgres"), 69, "read-only"),
        (format!("{login}/postgres?sslmode=require"), 69, "TLS"),
        (format!("{login}/postgres?sslmode=sometimes"), 64, "sslmode"),
        (format!("{login}/postgres?colour=red"), 64, "colour="),
        (format!("{login}/postgres?table=a.b.c"), 64, "name of a table"),
        ("postgres://".to_owned(), 64, "host"),
        ("postgres://127.0.0.1:1/x".to_owned(), 69, "refused"),
    ];
    for (url, code, why) in table {
        let ended = run(&url, "x");
        assert!(ended.code == code && ended.err.to_lowercase().contains(&why.to_lowercase()), "{url}: {ended:?}");
        assert!(!ended.err.contains("s3cret") && !ended.err.contains("wrong"), "{ended:?}");
        assert_one_line(&ended);
    }
    let long = "n".repeat(1_025);
    assert_eq!(run(&format!("{login}/postgres"), &long).code, 64);
}

/// Session locks that nobody else has.
fn session_url() -> String {
    let (server, database) = (PostgresServer::shared(), PostgresServer::fresh_table());
    server.sql(&format!("CREATE DATABASE {database}"));
    format!("postgres://tenure@{}/{database}?scheme=advisory&timeout=5s", server.addr())
}

#[test]
fn turns_of_sessions_of_postgres() {
    advisory::turns_of_sessions(&session_url());
}

#[test]
fn every_command_speaks_to_sessions_of_postgres() {
    let url = session_url();
    advisory::every_command(&url);
    let place = Place::new();
    // A negative key is not taken for an option.
    assert_eq!(place.output(&["run", "-n", "--store", &url, "-5", "--", "true"]).code, 0);
    let leading = place.spawn(&["lead", "--store", &url, "-5", "--", "sh", "-c", "echo > led; sleep 60"]);
    place.line("led");
    leading.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(leading.end().code, 128 + 15);
    assert_eq!(place.output(&["show", "--store", &url, "-o", "json"]).out.trim(), "[]");
    let table = place.output(&["run", "-n", "--store", &url.replace("advisory", "other"), "x", "--", "true"]);
    assert!(table.code == 64 && table.err.contains("scheme=advisory"), "{table:?}");
}
