//! The command between machines: on a real Redis that is stopped, killed, flushed and cut off.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{Ended, Place, Running, is_dead, keepers, wait_for, watched};
use nix::sys::signal::Signal;
use tenure_testkit::{Proxy, RedisCluster, RedisServer, Reply, SentinelGroup, Spawned};

/// Five servers that vote, and their URL.
fn quorum_of_five() -> (Vec<RedisServer>, String) {
    let servers: Vec<RedisServer> = (0..5).map(|_| RedisServer::start()).collect();
    let hosts: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    let url = format!("quorum+redis://{}", hosts.join(","));
    let admitted = Place::new().output(&["admit", "--store", &url]);
    assert_eq!(admitted.code, 0, "{admitted:?}");
    (servers, url)
}

/// One is away, and another has lost its data.
#[test]
fn the_servers_of_a_quorum_are_shown_with_what_keeps_them_out() {
    let (place, (servers, url)) = (Place::new(), quorum_of_five());
    let holder = place.spawn(&["run", "--store", &url, "x", "--", "sh", "-c", "echo $$ > held; sleep 60"]);
    place.pid("held");
    wait_for("all to grant it", || servers.iter().all(|server| server.cli("EXISTS x") == "1"));
    servers[0].kill();
    servers[1].cli("FLUSHALL");
    let shown = place.output(&["show", "--servers", "--store", &url, "-o", "json"]);
    let rows: Vec<serde_json::Value> = serde_json::from_str(&shown.out).unwrap();
    let of = |field: &str| rows.iter().map(|row| row[field].to_string()).collect::<Vec<_>>().join(" ");
    assert_eq!((of("votes").as_str(), of("holds").as_str()), ("null false true true true", "null 0 1 1 1"), "{shown:?}");
    assert!(rows[1]["kept_out_ms"].is_u64() && rows[2]["latest_end_ms"].as_u64() > Some(10_000), "{shown:?}");
    let shown = place.output(&["show", "--servers", "--store", &url, "x"]);
    assert!(shown.out.lines().count() == 6 && shown.out.contains("has lost its data"), "{shown:?}");
    holder.signal(Signal::SIGTERM);
    holder.end();
}

/// The operator says that no lease from before stands, and a server knows of one.
#[test]
fn servers_are_not_admitted_while_one_knows_of_a_lease() {
    let (place, (servers, url)) = (Place::new(), quorum_of_five());
    let acquired = place.output(&["acquire", "--store", &url, "--ttl", "1m", "x"]);
    assert_eq!(acquired.code, 0, "{acquired:?}");
    servers[0].cli("FLUSHALL");
    let admitted = place.output(&["admit", "--store", &url]);
    assert!(admitted.code == 75 && admitted.err.contains("knows of a lease"), "{admitted:?}");
    assert_eq!(servers[0].cli("HEXISTS tenure:node floor"), "0");
    let forced = place.output(&["admit", "--force", "--store", &url]);
    assert_eq!((forced.code, servers[0].cli("HEXISTS tenure:node floor").as_str()), (0, "1"), "{forced:?}");
}

/// All of them have restarted with their data, or one does not answer.
#[test]
fn servers_are_not_admitted_while_their_data_or_their_silence_leaves_a_lease_open() {
    let place = Place::new();
    let start = || RedisServer::builder().arg("appendonly", "yes").arg("appendfsync", "always").start();
    let servers: Vec<RedisServer> = (0..3).map(|_| start()).collect();
    let hosts: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    let url = format!("quorum+redis://{}", hosts.join(","));
    let admit = || place.output(&["admit", "--store", &url]);
    assert_eq!(admit().code, 0);
    let acquired = place.output(&["acquire", "--store", &url, "--ttl", "5m", "x"]);
    assert_eq!(acquired.code, 0, "{acquired:?}");
    servers.iter().for_each(RedisServer::restart);
    for _ in 0..2 {
        let admitted = admit();
        assert!(admitted.code == 75 && admitted.err.contains("knows of a lease"), "{admitted:?}");
        // Nothing of the lease is left but what the first has said about its data.
        servers[1..].iter().for_each(RedisServer::restart_empty);
    }
    servers[0].kill();
    let admitted = admit();
    assert!(admitted.code == 75 && admitted.err.contains("does not say"), "{admitted:?}");
}

/// One of three is 20 ms away, and the process ends with the answer of the others.
#[test]
fn a_command_has_reached_all_servers_of_a_quorum_when_it_ends() {
    let (place, servers) = (Place::new(), [(); 3].map(|()| RedisServer::start()));
    let far = Proxy::start(servers[2].addr());
    let url = format!("quorum+redis://{},{},{}", servers[0].addr(), servers[1].addr(), far.addr());
    assert_eq!(place.output(&["admit", "--store", &url]).code, 0);
    far.delay(Duration::from_millis(10));
    let having = || servers.iter().filter(|server| server.cli("EXISTS x") == "1").count();
    for _ in 0..3 {
        let acquired = place.output(&["acquire", "--store", &url, "--ttl", "5m", "x"]);
        assert_eq!((acquired.code, having()), (0, 3), "{acquired:?}");
        let token = acquired.out.split("TENURE_TOKEN=").nth(1).and_then(|rest| rest.split([';', '\n']).next()).unwrap();
        let released = place.output(&["release", "--store", &url, "--token", token.trim_matches('\''), "x"]);
        assert_eq!((released.code, having()), (0, 0), "{released:?}");
    }
}

/// A command whose grandchild ignores TERM. Its server comes back in time, and then nothing is heard of it.
#[test]
fn a_short_outage_costs_nothing_and_after_a_long_one_the_group_is_dead_before_the_lease_ends() {
    let (place, server) = (Place::new(), RedisServer::builder().arg("appendonly", "yes").arg("appendfsync", "always").start());
    let proxy = Proxy::start(server.addr());
    let stubborn = "sh -c 'trap \"\" TERM; echo $$ > grandchild; while :; do sleep 1; done' & echo $$ > child; wait";
    let mut run = place.spawn(&["run", "--store", &proxy.url(), "--ttl", "12s", "x", "--", "sh", "-c", stubborn]);
    let group = [place.pid("child"), place.pid("grandchild")];
    wait_for("a renewal to be near", || server.command(&["PTTL", "x"]).int() < 8_500);
    server.kill();
    // Past the instant of the renewal, well before TERM is due.
    std::thread::sleep(Duration::from_millis(1_200));
    server.restart();
    // A server that has just been restarted may answer that it is loading.
    wait_for("a renewal to go through", || matches!(server.command(&["PTTL", "x"]), Reply::Int(left) if left > 11_000));
    assert!(run.0.try_wait().unwrap().is_none() && !group.iter().any(|pid| is_dead(*pid)), "the job was killed");
    proxy.black_hole();
    let left = server.command(&["PTTL", "x"]).int();
    let ends = Instant::now() + Duration::from_millis(left.try_into().unwrap());
    wait_for("the group to be dead", || group.iter().all(|pid| is_dead(*pid)));
    let late = Instant::now().saturating_duration_since(ends);
    assert!(late.is_zero(), "beyond the end of the lease the group took {late:?}");
    assert_eq!(run.status().code(), Some(79));
}

#[test]
fn each_refusal_has_its_code_and_one_line() {
    let (place, server) = (Place::new(), RedisServer::builder().password("pw").start());
    let port = server.port();
    server.cli("HSET hash field 1");
    server.cli("SET foreign 1");
    let nowhere = format!("redis://127.0.0.1:{}", tenure_testkit::free_port());
    let gone = nowhere.trim_start_matches("redis://");
    let good = format!("redis://:pw@127.0.0.1:{port}");
    for (store, name, code, word) in [
        (&*nowhere, "x", 69, "127.0.0.1"),
        (&*format!("redis://127.0.0.1:{port}"), "x", 77, "password"),
        (&*format!("redis://:hunter2@127.0.0.1:{port}"), "x", 77, "password"),
        (&*good, "hash", 77, "kind"),
        (&*good, "foreign", 75, "never ends"),
        (&*format!("{good}?nonsense=1"), "x", 64, "nonsense"),
        (&*format!("{good}?scheme=redlock"), "x", 64, "redlock"),
        (&*nowhere.replace("redis", "redis+sentinel"), "x", 64, "no service"),
        (&*format!("{}/m", nowhere.replace("redis", "redis+sentinel")), "x", 69, "make sure that the sentinels run"),
        (&*format!("redis+sentinel://:hunter2@127.0.0.1:{port}/m"), "x", 77, "no sentinel"),
        // The others will be back, and may not want that password.
        (&*format!("redis+sentinel://127.0.0.1:{port},{gone}/m"), "x", 69, "no sentinel"),
        (&*format!("redis+cluster://:hunter2@127.0.0.1:{port},{gone}"), "x", 69, "password"),
        (&*format!("quorum+redis://:hunter2@127.0.0.1:{port},{gone},127.0.0.1:1"), "x", 69, "password"),
        // Those back again are no majority.
        (&*format!("quorum+redis://:hunter2@127.0.0.1:{port},localhost:{port},{gone}"), "x", 77, "password"),
    ] {
        let mut run = place.tenure(&["run", "-n", name, "--", "touch", "ran"]);
        let ended = Ended::from(Spawned::output(run.env("TENURE_STORE", store)).unwrap());
        ended.says(code, word);
        assert!(!ended.err.contains("hunter2") && !ended.err.contains(":pw@"), "{}", ended.err);
    }
    assert!(!Path::new(&place.path("ran")).exists(), "a command ran without its lock");
    assert_eq!(server.cli("KEYS x"), "");
}

#[test]
fn a_password_need_not_be_in_the_arguments() {
    let (place, server) = (Place::new(), RedisServer::builder().password("pw").start());
    std::fs::write(place.path("secret"), "pw\n").unwrap();
    let url = format!("redis://127.0.0.1:{}", server.port());
    let run = |variable: &str, value: &str| {
        let mut command = place.tenure(&["run", "--store", &url, "x", "--", "true"]);
        command.env(variable, value).output().unwrap().status.code()
    };
    assert_eq!(run("TENURE_PASSWORD", "pw"), Some(0));
    assert_eq!(run("TENURE_PASSWORD_FILE", "secret"), Some(0));
    assert_eq!(run("UNRELATED", "pw"), Some(77));
    place.write_config(&format!("store = \"{url}\"\npassword = \"pw\"\n"));
    assert_eq!(place.output(&["run", "x", "--", "true"]).code, 0);
}

#[test]
fn waiting_rides_out_an_outage_and_tells_it_until_it_is_over() {
    let (place, server) = (Place::new(), RedisServer::start());
    let url = server.url();
    server.cli("SET x 1");
    let work = "until [ -e go ]; do sleep 0.01; done";
    let mut waiter = place.tenure(&["run", "-v", "--store", &url, "x", "--", "sh", "-c", work]);
    let mut waiter = Running::of(waiter.stderr(File::create(place.path("said")).unwrap()).spawn().unwrap());
    // A server that has not answered yet is no outage, also when it was asked.
    wait_for("the waiter to be answered", || place.read("said").contains("held by another client"));
    server.kill();
    let again = || place.read("said").lines().any(|line| line.contains("does not serve us for "));
    wait_for("another report of the outage", again);
    server.restart_empty();
    wait_for("the end of the outage to be reported", || place.read("said").contains("serves us again"));
    std::fs::write(place.path("go"), "").unwrap();
    assert_eq!(waiter.status().code(), Some(0));
    // If the outage begins late, another line says for whom it waits.
    let said = place.read("said");
    let (down, up) =
        ["does not serve us", "serves us again"].map(|what| said.lines().filter(|line| line.contains(what)).count()).into();
    // On a busy machine a second outage may follow.
    assert!(down >= 2 && up >= 1, "{said}");
}

/// The store has released the lease for the keeper, and nobody has heard of it.
#[test]
fn a_release_whose_answer_the_keeper_has_not_heard_is_no_loss() {
    let (place, server) = (Place::new(), RedisServer::start());
    let proxy = Proxy::start(server.addr());
    let mut script = watched();
    // The server has our functions, so that a release is one command.
    assert_eq!(place.output(&["run", "--store", &server.url(), "x", "--", "true"]).code, 0);
    let (url, pid) = (proxy.url(), script.pid().to_string());
    let printed = place.output(&["acquire", "--store", &url, "--ttl", "20s", "--watch-pid", &pid, "x"]);
    let token = printed.out.lines().find_map(|line| line.strip_prefix("TENURE_TOKEN=")).unwrap().to_owned();
    proxy.swallow_reply(1);
    let ended = place.output(&["release", "--store", &url, "x", "--token", &token]);
    assert_eq!((ended.code, server.cli("EXISTS x").as_str()), (0, "0"), "{ended:?}");
    assert!(ended.err.contains("unknown") && !ended.err.contains("has not released it"), "{ended:?}");
    wait_for("the end of the keeper", || keepers(&place).is_empty());
    assert!(script.0.try_wait().unwrap().is_none(), "the script was notified of a loss");
}

/// The commands on a Sentinel group whose Sentinels have a password of their own, which the command does not get.
#[test]
fn a_sentinel_group_is_a_store() {
    let (place, group) = (Place::new(), SentinelGroup::start_with(Some("pw"), Some("s3cret"), None));
    let tenure = |args: &[&str], url: &str| {
        let mut command = place.tenure(args);
        command.env("TENURE_STORE", url).env("TENURE_PASSWORD", "pw").env("TENURE_SENTINEL_PASSWORD", "s3cret");
        Ended::from(Spawned::output(&mut command).unwrap())
    };
    let (bare, full) = (group.url().replace(":pw@", ""), format!("{}?sentinel_password=s3cret", group.url()));
    for url in [&bare, &full] {
        let inside = tenure(&["run", "x", "--", "env"], url);
        assert_eq!(inside.code, 0, "{inside:?}");
        assert!(!inside.out.contains("s3cret") && inside.out.contains(&format!("TENURE_STORE={bare}\n")), "{inside:?}");
        let lease = tenure(&["acquire", "--ttl", "1m", "held"], url);
        assert!(lease.code == 0 && lease.out.contains("TENURE_FENCE="), "{lease:?}");
        let shown = tenure(&["show", "-o", "json", "held"], url);
        assert!(shown.out.contains("\"fence\":\""), "{shown:?}");
        assert_eq!(tenure(&["break", "held"], url).code, 0);
    }
    std::fs::write(place.path("sentinels"), "s3cret\n").unwrap();
    let mut by_file = place.tenure(&["run", "x", "--", "env"]);
    by_file.env("TENURE_STORE", &bare).env("TENURE_PASSWORD", "pw").env("TENURE_SENTINEL_PASSWORD_FILE", "sentinels");
    let inside = Ended::from(Spawned::output(&mut by_file).unwrap());
    assert!(inside.code == 0 && !inside.out.contains("SENTINEL_PASSWORD"), "{inside:?}");
    let wrong = Ended::from(Spawned::output(place.tenure(&["run", "x", "--", "true"]).env("TENURE_STORE", &bare)).unwrap());
    assert!(wrong.code == 77 && wrong.err.contains("TENURE_SENTINEL_PASSWORD"), "{wrong:?}");
}

/// The servers to try a topology with grant at once, and end with their script.
#[test]
fn servers_of_each_topology_are_there_to_try() {
    for topology in ["cluster", "quorum", "sentinel"] {
        let place = Place::new();
        let mut script = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/try"));
        script.arg(topology).env("TENURE", env!("CARGO_BIN_EXE_tenure")).stdout(File::create(place.path("url")).unwrap());
        let servers = Running::of(script.spawn().unwrap());
        let url = place.line("url");
        let run = |limit: &[&str]| place.output(&[&["run", "--store", &url], limit, &["x", "--", "true"]].concat()).code;
        assert_eq!(run(&[]), 0, "{topology}");
        servers.signal(Signal::SIGTERM);
        assert_eq!(servers.end_by_signal().code(), Some(143), "{topology}");
        assert_eq!(run(&["-n"]), 69, "{topology}");
    }
}

/// A user of a server that endangers locks is warned once, and can switch the warning off. Of several, each that this process uses
/// is named.
#[test]
fn each_server_that_endangers_locks_is_named() {
    let place = Place::new();
    let said = |url: &str, flag: &str| {
        let ended = place.output(&["run", flag, "--ttl=1m", "--store", url, "x", "--", "sleep", "0.5"]);
        assert_eq!(ended.code, 0, "{ended:?}");
        ended.err
    };
    let evict = |server: &RedisServer| {
        server.cli("CONFIG SET maxmemory 100mb");
        server.cli("CONFIG SET maxmemory-policy allkeys-lru");
        format!("{}: it may evict locks", server.addr())
    };
    let server = RedisServer::start();
    evict(&server);
    server.cli("ACL SETUSER modest on >pw +@all -config -info ~* &*");
    let (url, modest) = (server.url(), server.url().replacen("redis://", "redis://modest:pw@", 1));
    for (url, flag, expected) in [
        (&url, "--no-renew", [1, 0]),
        (&url, "-v", [1, 1]),
        (&url, "-q", [0, 0]),
        (&format!("{url}?quiet=yes"), "-v", [0, 0]),
        // This user may not ask.
        (&modest, "-v", [0, 0]),
    ] {
        let said = said(url, flag);
        assert_eq!(["may evict locks", "may forget"].map(|what| said.matches(what).count()), expected, "{url} {flag}: {said}");
    }
    server.cli("CONFIG SET maxmemory-policy noeviction");
    assert!(!said(&url, "--no-renew").contains("may evict"));
    server.cli("REPLICAOF 127.0.0.1 1");
    let mut waiter = place.tenure(&["run", "--store", &url, "x", "--", "true"]);
    let waiter = Running::of(waiter.stderr(File::create(place.path("said")).unwrap()).spawn().unwrap());
    wait_for("the warning of a replica", || place.read("said").contains("it is a replica and grants nothing"));
    waiter.signal(Signal::SIGTERM);
    assert_eq!(waiter.end_by_signal().code(), Some(128 + 15));
    let (servers, url) = quorum_of_five();
    let all = [1, 3].map(|at| evict(&servers[at]));
    let (told, detail) = (said(&url, "--no-renew"), said(&url, "-v"));
    assert!(all.iter().all(|one| told.matches(one).count() == 1) && told.matches("warning about").count() == 2, "{told}");
    assert_eq!(detail.matches("warning about").count(), 2, "a server that forgets has no vote for a while: {detail}");
    let cluster = RedisCluster::start(3, 0);
    let all = cluster.servers().iter().map(evict).collect::<Vec<_>>();
    let used = cluster.serving(cluster.servers()[0].cli("CLUSTER KEYSLOT x").parse().unwrap()).unwrap();
    let told = said(&cluster.url(), "--no-renew");
    assert!(told.matches("warning about").count() == 1 && told.contains(&all[used]), "{told}, not {}", all[used]);
}
