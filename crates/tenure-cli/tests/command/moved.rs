//! A host name that leads elsewhere from now on: in a process that holds, waits, and has a connection that idles.

use std::any::Any;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tenure::blocking::Locker;
use tenure::{ReleaseOutcome, State};
use tenure_testkit::{
    EtcdCluster, MariaDbServer, MemcachedServer, PostgresServer, Preload, Proxy, RedisCluster, RedisServer, SentinelGroup,
    Spawned, ZooKeeperServer, admit,
};

use crate::common::{Ended, PATIENCE, Place, Running, wait_for};

/// Leads the name to the address that a file has.
const RESOLVER: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    int (*look_up)(const char *, const char *, const struct addrinfo *, struct addrinfo **) = dlsym(RTLD_NEXT, "getaddrinfo");
    char address[64] = "";
    if (node == NULL || strcmp(node, "moves.test") != 0) return look_up(node, service, hints, found);
    FILE *file = fopen(getenv("TENURE_MOVED_HOSTS"), "r");
    if (file == NULL || fscanf(file, "%63s", address) != 1) abort();
    fclose(file);
    return look_up(address, service, hints, found);
}
"#;

const NAME: &str = "moves.test";
const URL: &str = "TENURE_MOVED_URL";
const KEEPS: &str = "TENURE_MOVED_KEEPS";
const HOSTS: &str = "TENURE_MOVED_HOSTS";
const LONG: Duration = Duration::from_secs(60);
/// For a lease that is lost: its session goes soon.
const SHORT: Duration = Duration::from_secs(5);
const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;
const THERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Locks that are found by the name.
struct Case {
    /// A way to a server at each address of the name, for each server that the URL names.
    doors: Vec<[Proxy; 2]>,
    url: String,
    /// A lease lives on where the name leads in the end.
    keeps: bool,
    /// Happens besides, when it does.
    besides: Box<dyn FnOnce() + Send>,
    _servers: Box<dyn Any + Send>,
}

impl Case {
    /// The name leads from the first servers to the second ones. `url`: that of ways to them.
    fn between<const N: usize>(
        servers: [(SocketAddr, SocketAddr); N],
        url: impl FnOnce(&[SocketAddr]) -> String,
        alive: impl Any + Send,
    ) -> Self {
        let doors = servers.map(|(before, after)| {
            let here = Proxy::start_opaque(before);
            let there = Proxy::start_opaque_at((THERE, here.addr().port()).into(), after);
            [here, there]
        });
        let url = url(&doors.each_ref().map(|[here, _]| here.addr())).replace(&HERE.to_string(), NAME);
        Self { doors: doors.into(), url, keeps: true, besides: Box::new(|| ()), _servers: Box::new(alive) }
    }

    /// Both addresses lead to one server, so nothing is forgotten.
    fn to(server: SocketAddr, url: impl FnOnce(SocketAddr) -> String, alive: impl Any + Send) -> Self {
        Self::between([(server, server)], |ways| url(ways[0]), alive)
    }

    fn forgets(self) -> Self {
        Self { keeps: false, ..self }
    }

    fn besides(self, besides: impl FnOnce() + Send + 'static) -> Self {
        Self { besides: Box::new(besides), ..self }
    }

    /// The name moves in a process of its own, and all goes on where it leads. `leave` is done to the way that it led before.
    fn goes_on(self, test: &str, leave: impl Fn(&Proxy)) {
        let (place, resolver, url) = (Place::new(), Preload::new(RESOLVER), &self.url);
        let lead_to = |address: Ipv4Addr| {
            std::fs::write(place.path("next"), address.to_string()).unwrap();
            std::fs::rename(place.path("next"), place.path("hosts")).unwrap();
        };
        let looks_up = |command: &mut Command| {
            resolver.apply(command);
            command.env(HOSTS, place.path("hosts"));
        };
        lead_to(HERE);
        let mut again = Command::new(std::env::current_exe().unwrap());
        place.settle(&mut again);
        looks_up(&mut again);
        again.args(["--exact", test, "--nocapture"]).env(URL, url).env(KEEPS, self.keeps.to_string());
        let mut process = Running::of(again.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
        let mut reaches = |file: &str| {
            wait_for(&format!("{file} at {url}"), || {
                let ended = process.0.try_wait().unwrap();
                assert!(ended.is_none(), "{url}: {ended:?}");
                place.path(file).exists()
            });
        };
        reaches("waits");
        lead_to(THERE);
        self.doors.iter().for_each(|[before, _]| leave(before));
        (self.besides)();
        std::fs::write(place.path("moved"), "").unwrap();
        reaches("served");
        for name in ["door", "other"] {
            let mut show = place.tenure(&["show", "--store", url, "-o", "json", name]);
            looks_up(&mut show);
            let shown = Ended::from(Spawned::output(&mut show).unwrap());
            assert!(shown.code == 0 && shown.out.trim() != "[]", "{url}: {name} is granted elsewhere: {shown:?}");
        }
        std::fs::write(place.path("seen"), "").unwrap();
        assert!(process.status().success(), "{url}");
    }
}

/// The process in which the name moves. False in the one that starts it.
fn is_the_process() -> bool {
    let Ok(url) = std::env::var(URL) else { return false };
    let keeps = std::env::var(KEEPS).unwrap() == "true";
    let say = |file: &str| std::fs::write(file, "").unwrap();
    let hear = |file: &str| wait_for(file, || Path::new(file).exists());
    let open = || Locker::connect(tenure_stores::connect(&url)).unwrap();
    let (holder, waiter, idle) = (open(), open(), open());
    idle.mutex("other").acquire().unwrap().release().unwrap();
    let held = holder.mutex("door").ttl(if keeps { LONG } else { SHORT }).acquire().unwrap();
    let waits = Arc::new(AtomicBool::new(false));
    let notes = Arc::clone(&waits);
    let waiting = waiter.mutex("door").ttl(LONG).wait(PATIENCE).on_wait(move |_| notes.store(true, Ordering::Relaxed));
    let waiting = thread::spawn(move || waiting.acquire());
    wait_for("somebody to wait", || waits.load(Ordering::Relaxed));
    say("waits");
    hear("moved");
    if keeps {
        wait_for("the lease to be renewed there", || held.extend(LONG).is_ok());
        assert_eq!(held.state(), State::Held);
        assert!(matches!(held.release().unwrap(), ReleaseOutcome::Released));
    } else {
        wait_for("the lease to be refused", || held.extend(SHORT).is_err());
        drop(held);
    }
    let served = waiting.join().unwrap().unwrap();
    let mut other = None;
    wait_for("a name to be had there", || {
        other = idle.mutex("other").ttl(LONG).try_acquire().ok().flatten();
        other.is_some()
    });
    say("served");
    hear("seen");
    drop((served, other));
    true
}

/// Runs each case, all at the same time.
fn all_go_on(test: &str, starts: &[fn() -> Case], leave: impl Fn(&Proxy) + Sync) {
    if is_the_process() {
        return;
    }
    thread::scope(|scope| {
        let running: Vec<_> = starts.iter().map(|start| scope.spawn(|| start().goes_on(test, &leave))).collect();
        running.into_iter().for_each(crate::common::joined);
    });
}

/// Every store, and every topology of Redis.
const EVERYWHERE: &[fn() -> Case] = &[
    || {
        let server = RedisServer::start();
        Case::to(server.addr(), redis_at, server)
    },
    cluster,
    sentinel,
    quorum,
    || Case::to(PostgresServer::shared().addr(), |way| PostgresServer::url_at(way, &PostgresServer::fresh_table()), ()),
    || {
        let (server, database) = (PostgresServer::shared(), PostgresServer::fresh_table());
        server.sql(&format!("CREATE DATABASE {database}"));
        Case::to(server.addr(), |way| sessions_of_postgres_at(way, &database), ()).forgets()
    },
    || Case::to(MariaDbServer::shared().addr(), |way| MariaDbServer::url_at(way, &MariaDbServer::fresh_table()), ()),
    || Case::to(MariaDbServer::shared().addr(), sessions_of_mariadb_at, ()).forgets(),
    || Case::to(EtcdCluster::shared().addr(0), |way| EtcdCluster::url_at(way, &EtcdCluster::fresh_prefix()), ()),
    || Case::to(MemcachedServer::shared().addr(), |way| MemcachedServer::url_at(way, &MemcachedServer::fresh_prefix()), ()),
    || Case::to(ZooKeeperServer::shared().addr(), |way| ZooKeeperServer::url_at(way, &ZooKeeperServer::fresh_chroot()), ()),
];

#[test]
fn a_name_is_resolved_anew_when_its_server_has_closed_the_connection() {
    all_go_on("moved::a_name_is_resolved_anew_when_its_server_has_closed_the_connection", EVERYWHERE, |before| {
        before.refuse();
        before.cut();
    });
}

#[test]
fn a_name_is_resolved_anew_when_its_server_does_not_answer() {
    all_go_on("moved::a_name_is_resolved_anew_when_its_server_does_not_answer", EVERYWHERE, Proxy::black_hole);
}

/// Its connections stay open, and it answers reads.
#[test]
fn a_name_is_resolved_anew_when_its_server_has_become_a_replica() {
    let starts: &[fn() -> Case] = &[
        redis_demoted,
        postgres_demoted,
        sessions_of_postgres_demoted,
        || demoted_mariadb(|way| MariaDbServer::url_at(way, "locks")),
        || demoted_mariadb(sessions_of_mariadb_at),
    ];
    all_go_on("moved::a_name_is_resolved_anew_when_its_server_has_become_a_replica", starts, |_| ());
}

fn redis_at(way: SocketAddr) -> String {
    format!("redis://{way}")
}

fn redis_demoted() -> Case {
    let before = Arc::new(RedisServer::start());
    let after = Arc::new(RedisServer::replica_of(&before));
    before.wait_for_copies(1);
    let case = Case::between([(before.addr(), after.addr())], |ways| redis_at(ways[0]), [before.clone(), after.clone()]);
    case.besides(move || {
        after.catch_up(&before);
        after.promote();
        before.cli(&format!("REPLICAOF 127.0.0.1 {}", after.port()));
    })
}

/// Its node gives the name to clients.
fn cluster() -> Case {
    let cluster = RedisCluster::start(1, 0);
    let node = cluster.servers()[0].addr();
    let url = |way: SocketAddr| {
        let node = &cluster.servers()[0];
        for setting in [
            &format!("cluster-announce-hostname {NAME}"),
            "cluster-preferred-endpoint-type hostname",
            &format!("cluster-announce-port {}", way.port()),
        ] {
            assert_eq!(node.cli(&format!("CONFIG SET {setting}")), "OK", "{setting}");
        }
        format!("redis+cluster://{way}")
    };
    let case = Case::to(node, url, ());
    Case { _servers: Box::new(cluster), ..case }
}

/// The name is that of a sentinel, and then of another. Another server is the master from then on.
fn sentinel() -> Case {
    let group = Arc::new(SentinelGroup::start());
    let [before, after, _] = &group.sentinels[..] else { panic!("three sentinels") };
    let service = group.url().rsplit_once('/').unwrap().1.to_owned();
    let url = |ways: &[SocketAddr]| format!("redis+sentinel://{}/{service}", ways[0]);
    let case = Case::between([(before.addr(), after.addr())], url, group.clone());
    case.besides(move || {
        group.servers[1..].iter().for_each(|replica| replica.catch_up(&group.servers[0]));
        group.fail_over();
        group.wait_for_another(0);
        // Until then it grants as well, and nobody takes that over. It ends connections when it becomes one.
        let role = || group.servers[0].connect().and_then(|mut client| client.command(&["ROLE"]));
        wait_for("the old master to be a replica", || role().is_ok_and(|role| format!("{role:?}").contains("slave")));
    })
}

fn quorum() -> Case {
    let servers = [(); 3].map(|()| RedisServer::start());
    let url =
        |ways: &[SocketAddr]| format!("quorum+redis://{}", ways.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(","));
    let addresses = servers.each_ref().map(RedisServer::addr);
    admit(&url(&addresses));
    Case::between(addresses.map(|address| (address, address)), url, servers)
}

fn postgres_demoted() -> Case {
    let before = Arc::new(PostgresServer::start());
    let after = Arc::new(PostgresServer::replica_of(&before));
    let url = |ways: &[SocketAddr]| PostgresServer::url_at(ways[0], "locks");
    let case = Case::between([(before.addr(), after.addr())], url, (before.clone(), after.clone()));
    case.besides(move || {
        after.wait_for_all_of(&before);
        after.promote();
        demote_postgres(&before);
    })
}

/// Closes none of its sessions.
fn demote_postgres(server: &PostgresServer) {
    server.sql("ALTER SYSTEM SET default_transaction_read_only = on");
    server.sql("SELECT pg_reload_conf()");
    let is_read_only =
        || server.sql("SELECT setting FROM pg_file_settings WHERE name = 'default_transaction_read_only'") == ["on"];
    wait_for("the server to read its settings", is_read_only);
}

fn sessions_of_postgres_at(way: SocketAddr, database: &str) -> String {
    format!("postgres://tenure@{way}/{database}?scheme=advisory")
}

fn sessions_of_postgres_demoted() -> Case {
    let (before, after) = (Arc::new(PostgresServer::start()), PostgresServer::start());
    let url = |ways: &[SocketAddr]| sessions_of_postgres_at(ways[0], "postgres");
    let case = Case::between([(before.addr(), after.addr())], url, (before.clone(), after));
    case.forgets().besides(move || demote_postgres(&before))
}

/// Root may write also where it is read-only.
fn mariadb_of_app() -> MariaDbServer {
    let server = MariaDbServer::start();
    server.sql("CREATE USER app; GRANT ALL ON locks.* TO app");
    server
}

/// Nothing is copied.
fn demoted_mariadb(url: impl Fn(SocketAddr) -> String) -> Case {
    let (before, after) = (Arc::new(mariadb_of_app()), mariadb_of_app());
    let case =
        Case::between([(before.addr(), after.addr())], |ways| url(ways[0]).replace("root@", "app@"), (before.clone(), after));
    case.forgets().besides(move || drop(before.sql("SET GLOBAL read_only = 1")))
}

fn sessions_of_mariadb_at(way: SocketAddr) -> String {
    format!("mysql://root@{way}/locks?scheme=advisory&prefix={}", MariaDbServer::fresh_table())
}
