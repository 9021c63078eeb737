//! Errors of real servers: what ends a wait and a candidate, and what does not.

use std::fs::File;

use nix::sys::signal::Signal;
use tenure_testkit::{RedisServer, patient};

use crate::common::{Place, Running, wait_for};

/// A fault that ends by itself ends no wait before its limit, and no candidate. `word` is in what is said of it. It may be there
/// at first contact: the 5 s of that are for a store that gives no answer.
fn is_waited_for(place: &Place, url: &str, word: &str, mend: impl FnOnce()) {
    let said = |who: &str| place.read(&format!("{word}-{who}"));
    let started = |who: &str, args: &[&str]| {
        let file = File::create(place.path(&format!("{word}-{who}"))).unwrap();
        Running::of(place.tenure(&[&[args[0], "--store", url], &args[1..]].concat()).stderr(file).spawn().unwrap())
    };
    let mut waits = started("run", &["run", "x", "--", "true"]);
    let mut leads = started("lead", &["lead", "led", "--", "sh", "-c", "echo > led; sleep 600"]);
    for limit in [&["-n"][..], &["-w", "6s"]] {
        let ended = place.output(&[&["run", "--store", url], limit, &["x", "--", "touch", "ran"]].concat());
        assert!(ended.code == 69 && ended.err.contains(word), "{word}: {ended:?}");
    }
    for who in ["run", "lead"] {
        wait_for("a report of what is wrong", || said(who).contains(word));
    }
    assert!(waits.0.try_wait().unwrap().is_none(), "{word} ended it: {}", said("run"));
    assert!(leads.0.try_wait().unwrap().is_none(), "{word} ended it: {}", said("lead"));
    mend();
    assert_eq!(waits.status().code(), Some(0), "{word}: {}", said("run"));
    place.line("led");
    leads.signal(Signal::SIGTERM);
    assert_eq!(leads.status().code(), Some(128 + 15), "{word}");
    assert!(place.read("ran").is_empty() && !place.path("ran").exists(), "it ran without its lock");
    std::fs::remove_file(place.path("led")).unwrap();
}

/// An error that a person has to mend ends all of them at once.
fn ends_all(place: &Place, url: &str, code: i32, word: &str) {
    for how in [&["run", "-n"][..], &["run", "-w", "10m"], &["run"], &["lead"]] {
        let mut command = place.tenure(&[how, &["x", "--", "touch", "ran"]].concat());
        let ended = Running::start(command.env("TENURE_STORE", url)).end();
        ended.says(code, word);
    }
    assert!(!place.path("ran").exists(), "it ran without its lock");
}

#[test]
fn a_redis_that_cannot_serve_now_is_waited_for() {
    let place = Place::new();
    let slow = [("key-load-delay", "50000"), ("loading-process-events-interval-bytes", "1024"), ("rdbcompression", "no")];
    let server = slow.into_iter().fold(RedisServer::builder(), |builder, (name, value)| builder.arg(name, value)).start();
    let url = patient(&server.url(), "10s");
    server.cli("REPLICAOF 127.0.0.1 1");
    is_waited_for(&place, &url, "READONLY", || drop(server.cli("REPLICAOF NO ONE")));
    server.command(&["EVAL", "for i = 1, 2000 do redis.call('SET', i, string.rep('x', 1500)) end", "0"]);
    server.cli("SAVE");
    server.restart();
    is_waited_for(&place, &url, "LOADING", || drop(server.cli("CONFIG SET key-load-delay 0")));
    server.cli("ACL SETUSER modest on >pw ~* &* +@all -eval -evalsha -fcall -multi");
    ends_all(&place, &server.url().replacen("://", "://modest:pw@", 1), 77, "NOPERM");
    ends_all(&place, &server.url().replacen("://", "://modest:wrong@", 1), 77, "WRONGPASS");
}

#[cfg(feature = "mysql")]
#[test]
fn a_mariadb_that_is_overloaded_or_read_only_is_waited_for() {
    let (place, server) = (Place::new(), tenure_testkit::MariaDbServer::start());
    server.sql("CREATE USER app IDENTIFIED BY 'pw'; GRANT ALL ON locks.* TO app; SET GLOBAL max_connections = 10");
    let url = patient(&server.url("locks").replace("root@", "app:pw@"), "10s");
    assert_eq!(place.output(&["run", "--store", &url, "-a", "led", "x", "--", "true"]).code, 0);
    let mut session = server.session();
    session.run("BEGIN; SELECT name FROM locks.locks WHERE name <> '' FOR UPDATE;");
    is_waited_for(&place, &url, "locked", || drop(session.run("ROLLBACK;")));
    let theirs = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'app'";
    wait_for("their sessions to end", || server.sql(theirs) == ["0"]);
    let mut crowd: Vec<_> = (0..10).map(|_| server.session()).collect();
    for session in &mut crowd {
        session.run("SELECT 1;");
    }
    is_waited_for(&place, &url, "max_connections", || crowd.clear());
    server.sql("SET GLOBAL read_only = 1");
    is_waited_for(&place, &url, "read-only", || drop(server.sql("SET GLOBAL read_only = 0")));
    ends_all(&place, &url.replace("app:pw@", "app:wrong@"), 77, "password");
    ends_all(&place, &url.replace("create=yes&table=locks", "table=nowhere"), 74, "CREATE TABLE");
}
