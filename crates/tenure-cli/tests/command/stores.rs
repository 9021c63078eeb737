//! The command in every store that a URL can name, and in every topology of Redis.

use std::any::Any;
use std::sync::Arc;
use std::thread;

use nix::sys::signal::Signal;
use tenure_testkit::{
    EtcdCluster, MariaDbServer, MemcachedServer, PostgresServer, RedisCluster, RedisServer, SentinelGroup, Spawned,
    ZooKeeperServer, admit, patient, some_of,
};

use crate::common::{Ended, Place, assert_one_line, joined};

/// A URL, and what has to be there as long as it is used.
type Found = (String, Box<dyn Any + Send>);

const STORES: &[fn() -> Vec<Found>] = &[
    || {
        let place = Place::new();
        vec![(format!("sqlite:{}", place.path("locks.db").display()), Box::new(place))]
    },
    || {
        let server = Arc::new(RedisServer::start());
        let schemes =
            ["", "?scheme=set-nx", "?scheme=getset", "?scheme=php", "?scheme=watch", "?scheme=redisson", "?scheme=redisson-fair"];
        // Their keys stand beside one another.
        let url = |(space, scheme): (usize, &&str)| format!("{}/{space}{scheme}", server.url().trim_end_matches('/'));
        schemes.iter().enumerate().map(|at| (url(at), Box::new(server.clone()) as Box<dyn Any + Send>)).collect()
    },
    || {
        let cluster = Arc::new(RedisCluster::start(1, 0));
        let urls = [cluster.url(), cluster.url() + "?scheme=redisson&prefix=app:"];
        urls.map(|url| (url, Box::new(cluster.clone()) as Box<dyn Any + Send>)).into()
    },
    || {
        let group = SentinelGroup::start();
        vec![(group.url(), Box::new(group))]
    },
    || {
        let servers = [(); 3].map(|()| RedisServer::start());
        let url = format!("quorum+redis://{}", servers.each_ref().map(|server| server.addr().to_string()).join(","));
        admit(&url);
        vec![(url, Box::new(servers))]
    },
    || vec![(PostgresServer::shared().url(&PostgresServer::fresh_table()), Box::new(())), (postgres_sessions(), Box::new(()))],
    || vec![(MariaDbServer::shared().url(&MariaDbServer::fresh_table()), Box::new(())), (mariadb_sessions(), Box::new(()))],
    || vec![(EtcdCluster::shared().url(&EtcdCluster::fresh_prefix()), Box::new(()))],
    || {
        let url = || MemcachedServer::url_at(MemcachedServer::shared().addr(), &MemcachedServer::fresh_prefix());
        vec![(url(), Box::new(())), (url() + "&scheme=add", Box::new(()))]
    },
    || {
        let servers = [(); 3].map(|()| MemcachedServer::start());
        let hosts = servers.each_ref().map(|server| server.addr().to_string()).join(",");
        vec![(format!("memcached://{hosts}"), Box::new(servers))]
    },
    || vec![(ZooKeeperServer::shared().url(&ZooKeeperServer::fresh_chroot()), Box::new(()))],
];

/// Does the same in all of them, at the same time.
pub(crate) fn everywhere(test: impl Fn(&str) + Sync) {
    thread::scope(|scope| {
        let each = |start: &'static fn() -> Vec<Found>| scope.spawn(|| start().iter().for_each(|(url, _)| test(url)));
        let running: Vec<_> = STORES.iter().map(each).collect();
        running.into_iter().for_each(joined);
    });
}

/// Some commands ask once. A file has no such limit.
fn with_time(url: &str) -> String {
    if url.starts_with("sqlite:") { url.to_owned() } else { patient(url, "5s") }
}

/// An unprotected read-modify-write, and the fences in order of entry.
const COUNT: &str = "n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) > n; echo $TENURE_FENCE >> fences";

/// Processes on one counter that bears no overlap.
#[test]
fn processes_take_turns_in_every_store() {
    const PROCESSES: usize = 4;
    let each = some_of(25);
    everywhere(|url| {
        let (place, store) = (Place::new(), with_time(url));
        thread::scope(|scope| {
            for _ in 0..PROCESSES {
                scope.spawn(|| {
                    for _ in 0..each {
                        let ended = place.output(&["run", "-w", "2m", "--store", &store, "x", "--", "sh", "-c", COUNT]);
                        assert_eq!(ended.code, 0, "{url}: {ended:?}");
                    }
                });
            }
        });
        let (all, fences) = (PROCESSES * each, place.read("fences"));
        assert_eq!(place.read("n").trim(), all.to_string(), "{url}");
        let fences: Vec<_> = fences.lines().map(|fence| fence.parse::<u64>().ok()).collect();
        if ["set-nx", "getset", "php", "advisory"].iter().any(|scheme| url.contains(&format!("scheme={scheme}"))) {
            assert_eq!(fences, vec![None; all], "{url} has no fences");
        } else {
            let rise = fences.len() == all && fences[0].is_some() && fences.is_sorted_by(|a, b| a < b);
            assert!(rise, "the fences of {url} do not rise: {fences:?}");
        }
    });
}

/// A lease that would outlive its process is refused where it cannot, with the reason.
#[test]
fn every_store_has_every_command() {
    everywhere(|url| {
        let (place, store) = (Place::new(), with_time(url));
        let tenure = |args: &[&str]| place.output(&[&args[..1], &["--store", &store], &args[1..]].concat());
        let run = |kind: &[&str]| tenure(&[&["run", "-n"], kind, &["x", "--", "true"]].concat()).code;
        let inside = tenure(&["run", "x", "--", "sh", "-c", "tenure=$TENURE; $tenure show x"]);
        assert!(inside.code == 0 && inside.out.lines().count() >= 2, "{url}: {inside:?}");
        assert_eq!(run(&["-a", "y"]), 0, "{url}");
        let lease = tenure(&["acquire", "--ttl", "1m", "x"]);
        if url.starts_with("zookeeper") || url.contains("advisory") {
            assert!(lease.code == 64 && lease.err.contains("--watch-pid"), "{url}: {lease:?}");
            let period = tenure(&["run", "--once-per", "1h", "x", "--", "true"]);
            period.says(64, "--once-per");
            return;
        }
        let token = lease.out.split("TENURE_TOKEN=").nth(1).unwrap_or_else(|| panic!("{url}: {lease:?}"));
        let token = token.split(['\n', ';']).next().unwrap().trim_matches('\'');
        assert_eq!((lease.code, run(&[])), (0, 75), "{url}: {lease:?}");
        assert_eq!(tenure(&["renew", "--ttl", "2m", "--token", token, "x"]).code, 0, "{url}");
        let shown: serde_json::Value = serde_json::from_str(&tenure(&["show", "-o", "json"]).out).unwrap();
        assert_eq!((shown.as_array().unwrap().len(), &shown[0]["name"]), (1, &"x".into()), "{url}: {shown}");
        assert!(shown[0]["holders"][0]["ttl_ms"].as_u64().unwrap() > 60_000, "{url}: {shown}");
        assert_eq!(tenure(&["release", "--token", token, "x"]).code, 0, "{url}");
        assert_eq!(tenure(&["acquire", "x"]).code, 0, "{url}");
        assert_eq!((tenure(&["break", "x"]).code, run(&[])), (0, 0), "{url}");
        for (command, of) in [("migration", ["postgres", "mysql"]), ("admit", ["quorum", "quorum"])] {
            let ended = tenure(&[command]);
            let has = of.iter().any(|scheme| url.starts_with(scheme));
            assert_eq!(ended.code, if has { 0 } else { 64 }, "{command} at {url}: {ended:?}");
        }
    });
}

/// It needs no server, and the table is then as `create=yes` makes it.
#[test]
fn the_migration_is_printed() {
    let place = Place::new();
    let prints = |url: &str, sql: &dyn Fn(&str) -> Vec<String>, made: &str| {
        let printed = place.output(&["migration", "--store", url]);
        assert_eq!((printed.code, printed.err.as_str()), (0, ""), "{printed:?}");
        for _ in 0..2 {
            sql(&printed.out);
        }
        let url = patient(&made.replace("create=yes&", ""), "5s");
        assert_eq!(place.output(&["run", "-n", "--store", &url, "x", "--", "true"]).code, 0);
    };
    let (postgres, table) = (PostgresServer::shared(), PostgresServer::fresh_table());
    let nowhere = format!("postgres://nobody@127.0.0.1:1/x?table={table}");
    prints(&nowhere, &|text| postgres.sql(text), &postgres.url(&table));
    let (mariadb, table) = (MariaDbServer::shared(), MariaDbServer::fresh_table());
    prints(&format!("mariadb://127.0.0.1:1/x?table=locks.{table}"), &|text| mariadb.sql(text), &mariadb.url(&table));
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
    let (addr, place) = (server.addr(), Place::new());
    let login = format!("postgres://tenure:s3cret@{addr}");
    // Not by --store: a password there has a line of its own.
    let run = |url: &str| {
        let mut run = place.tenure(&["run", "-n", "x", "--", "true"]);
        Ended::from(Spawned::output(run.env("TENURE_STORE", patient(url, "5s"))).unwrap())
    };
    server.sql("CREATE TABLE later (name text, version bigint); INSERT INTO later VALUES ('', 2)");
    server.sql("CREATE TABLE empty (name text, version bigint)");
    server.sql("CREATE DATABASE odd ENCODING 'LATIN1' TEMPLATE template0");
    server.sql("CREATE ROLE reader LOGIN PASSWORD 's3cret'");
    assert_eq!(run(&format!("{login}/postgres?create=yes")).code, 0);
    server.sql("GRANT SELECT ON tenure_lock TO reader");
    server.sql("CREATE ROLE replica LOGIN PASSWORD 's3cret'; GRANT ALL ON tenure_lock TO replica");
    server.sql("ALTER ROLE replica SET default_transaction_read_only = on");
    for (url, code, why) in [
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
    ] {
        let ended = run(&url);
        assert!(ended.code == code && ended.err.to_lowercase().contains(&why.to_lowercase()), "{url}: {ended:?}");
        assert!(!ended.err.contains("s3cret") && !ended.err.contains("wrong"), "{ended:?}");
        assert_one_line(&ended);
    }
}

/// A lease may last some seconds longer there. In a short period that is past the next tick.
#[test]
fn a_period_that_is_too_short_for_its_leases_is_refused() {
    let memcached = MemcachedServer::url_at(MemcachedServer::shared().addr(), &MemcachedServer::fresh_prefix());
    for (url, short) in [(EtcdCluster::shared().url(&EtcdCluster::fresh_prefix()), "2s"), (memcached, "30s")] {
        let place = Place::new();
        let run = |period: &str| place.output(&["run", "--store", &url, "--once-per", period, "x", "--", "echo", "run"]);
        let ended = run(short);
        assert!(ended.code == 64 && ended.out.is_empty() && ended.err.contains("--once-per"), "{ended:?}");
        assert_one_line(&ended);
        assert_eq!(run("1m").out, "run\n");
        assert_eq!(run("1m").code, 75);
    }
}

/// For some seconds a lease that ends shows no rest, and the command asked a thousand times in each.
#[test]
fn the_end_of_a_lease_is_waited_for_at_intervals() {
    let server = MemcachedServer::start();
    let (place, url) = (Place::new(), server.url());
    assert_eq!(place.output(&["acquire", "--store", &url, "--ttl", "1s", "x"]).code, 0);
    let (before, begun) = (server.stat("cmd_get"), std::time::Instant::now());
    let freed = place.output(&["show", "--store", &url, "--until-free", "x"]);
    assert_eq!(freed.code, 0, "{freed:?}");
    let (asked, most) = (server.stat("cmd_get") - before, 10 + begun.elapsed().as_millis() / 100);
    assert!(u128::from(asked) <= most, "asked {asked} times in {:?}", begun.elapsed());
}

/// Session locks that nobody else has.
fn postgres_sessions() -> String {
    let (server, database) = (PostgresServer::shared(), PostgresServer::fresh_table());
    server.sql(&format!("CREATE DATABASE {database}"));
    format!("postgres://tenure@{}/{database}?scheme=advisory", server.addr())
}

fn mariadb_sessions() -> String {
    format!("mysql://root@{}/locks?scheme=advisory&prefix={}.", MariaDbServer::shared().addr(), MariaDbServer::fresh_table())
}

/// Commands on a session lock, and those that are refused with the reason.
fn sessions(url: &str) {
    let place = Place::new();
    let inside =
        |script: &str| place.output(&["run", "--store", url, "door", "--", "sh", "-c", &format!("tenure=$TENURE; {script}")]);
    let kept = "lease=$($tenure acquire --watch-pid $$ attic) && eval \"$lease\" && $tenure release attic --token $TENURE_TOKEN";
    for (script, code, why) in [
        ("$tenure show door", 0, "door"),
        ("env -u TENURE_NAME -u TENURE_TOKEN $tenure run -n door -- true", 75, "door"),
        ("$tenure run door -- true", 64, "by the command around this one"),
        ("$tenure renew door --token $TENURE_TOKEN", 64, "another process"),
        ("$tenure break door; sleep 30", 79, "lost"),
        ("$tenure release door --token $TENURE_TOKEN; sleep 30", 79, "lost"),
        (kept, 0, ""),
    ] {
        let ended = inside(script);
        assert!(ended.code == code && format!("{}{}", ended.out, ended.err).contains(why), "{why}: {ended:?}");
    }
    let other = |parameter: &str| format!("{url}&{parameter}");
    for (args, url, why) in [
        (&["run", "--min-hold", "1s"][..], url, "min-hold"),
        (&["run", "--shared"], url, "mutex"),
        (&["run", "--permits", "1/3"], url, "mutex"),
        (&["run", "-n"], &other("table=x"), "session locks"),
        (&["run", "-n"], &other("create=yes"), "session locks"),
        (&["run", "-n"], &other("colour=red"), "colour="),
    ] {
        let ended = place.output(&[args, &["--store", url, "attic", "--", "true"]].concat());
        ended.says(64, why);
    }
}

#[test]
fn every_command_speaks_to_sessions_of_postgres() {
    let (place, url) = (Place::new(), patient(&postgres_sessions(), "5s"));
    sessions(&url);
    // A negative key is not taken for an option.
    assert_eq!(place.output(&["run", "-n", "--store", &url, "-5", "--", "true"]).code, 0);
    let leading = place.spawn(&["lead", "--store", &url, "-5", "--", "sh", "-c", "echo > led; sleep 60"]);
    place.line("led");
    leading.signal(Signal::SIGTERM);
    assert_eq!(leading.end().code, 128 + 15);
    assert_eq!(place.output(&["show", "--store", &url, "-o", "json"]).out.trim(), "[]");
    let table = place.output(&["run", "-n", "--store", &url.replace("advisory", "other"), "x", "--", "true"]);
    assert!(table.code == 64 && table.err.contains("scheme=advisory"), "{table:?}");
}

#[test]
fn every_command_speaks_to_sessions_of_mariadb() {
    let (place, url) = (Place::new(), patient(&mariadb_sessions(), "5s"));
    sessions(&url);
    let all = place.output(&["show", "--store", &url]);
    assert!(all.code == 64 && all.err.contains("does not list"), "{all:?}");
    let long = place.output(&["run", "-n", "--store", &url, &"n".repeat(64), "--", "true"]);
    long.says(64, "bytes");
}
