//! The command between machines: on a real Redis that is stopped, killed, flushed and cut off.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{Ended, Place, Running, assert_one_line, count, is_dead, keepers, wait_for};
use nix::sys::signal::Signal;
use tenure_testkit::{Proxy, RedisCluster, RedisServer, Reply, SentinelGroup, Spawned, some_of};

#[test]
fn five_hundred_turns_on_the_embedded_file() {
    count(20, 25, None, || ());
}

#[test]
fn five_hundred_turns_on_redis() {
    let server = RedisServer::start();
    count(20, 25, Some(&format!("{}?timeout=5s", server.url())), || ());
}

#[test]
fn turns_on_locks_of_redisson() {
    for scheme in ["redisson", "redisson-fair"] {
        let server = RedisServer::start();
        count(20, some_of(25), Some(&format!("{}?scheme={scheme}&timeout=5s", server.url())), || ());
    }
    let cluster = RedisCluster::start(3, 0);
    count(20, some_of(25), Some(&format!("{}?scheme=redisson&timeout=5s", cluster.url())), || ());
}

/// One of five servers is killed in the midst, and comes back without its data.
#[test]
fn turns_on_a_quorum() {
    let (servers, url) = quorum_of_five();
    count(20, some_of(25), Some(&url), || {
        servers[2].kill();
        servers[2].restart_empty();
    });
}

/// Five servers that vote, and their URL.
fn quorum_of_five() -> (Vec<RedisServer>, String) {
    let servers: Vec<RedisServer> = (0..5).map(|_| RedisServer::start()).collect();
    let hosts: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    let url = format!("quorum+redis://{}", hosts.join(","));
    let admitted = Place::new().output(&["admit", "--store", &url]);
    assert_eq!(admitted.code, 0, "{admitted:?}");
    (servers, url)
}

/// The process ends with its answer. The servers that have granted it do not keep the name for the ttl, and neither does a silent one.
#[test]
fn a_command_that_is_not_granted_leaves_nothing_at_a_quorum() {
    let (servers, url) = quorum_of_five();
    for server in &servers[..3] {
        server.cli("SET door another");
    }
    for is_silent in [false, true] {
        if is_silent {
            servers[4].stop();
        }
        let refused = Place::new().output(&["run", "-n", "--store", &url, "door", "--", "true"]);
        servers[4].cont();
        assert_eq!(refused.code, 75, "{refused:?}");
        wait_for("the others to be free", || servers[3..].iter().all(|server| server.cli("EXISTS door") == "0"));
    }
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

/// Each report has the time that is left then.
#[test]
fn a_wait_for_votes_is_reported_with_the_time_that_is_left() {
    let (place, (servers, url)) = (Place::new(), quorum_of_five());
    for server in &servers[..3] {
        server.cli("FLUSHALL");
    }
    let mut run = place.tenure(&["run", "--store", &url, "x", "--", "true"]);
    let _run = Running::of(run.stderr(File::create(place.path("said")).unwrap()).spawn().unwrap());
    let left = || -> Vec<u64> {
        let digits = |line: &str| line.split_once("it waits for ")?.1.split_once('s')?.0.parse().ok();
        place.read("said").lines().filter_map(digits).collect()
    };
    wait_for("two reports", || left().len() >= 2);
    assert!(left()[0] > left()[1], "{}", place.read("said"));
}

#[test]
fn a_killed_holder_is_followed_within_its_ttl() {
    let (place, server) = (Place::new(), RedisServer::start());
    let url = server.url();
    let holder = place.spawn(&["run", "--store", &url, "--ttl", "2s", "x", "--", "sh", "-c", "echo $$ > held; sleep 60"]);
    place.pid("held");
    let next = place.spawn(&["run", "--store", &url, "x", "--", "sh", "-c", "echo in > next"]);
    holder.signal(Signal::SIGKILL);
    let killed = Instant::now();
    place.line("next");
    assert!(killed.elapsed() < Duration::from_secs(3), "followed only after {:?}", killed.elapsed());
    assert_eq!(next.end().code, 0);
}

#[test]
fn a_killed_waiter_leaves_nothing() {
    let (place, server) = (Place::new(), RedisServer::start());
    let url = server.url();
    nix::unistd::mkfifo(&place.path("wait"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let holder = place.spawn(&["run", "--store", &url, "x", "--", "sh", "-c", "echo $$ > held; read -r _ < wait"]);
    place.pid("held");
    let waiter = place.spawn(&["run", "--store", &url, "x", "--", "true"]);
    wait_for("the waiter to ask", || server.cli("INFO clients").contains("connected_clients:3"));
    waiter.signal(Signal::SIGKILL);
    std::fs::write(place.path("wait"), "\n").unwrap();
    assert_eq!(holder.end().code, 0);
    wait_for("the place of the dead waiter to lapse", || server.cli("KEYS *") == "tenure:fence");
}

/// A command whose grandchild ignores TERM, held through a proxy.
struct Held {
    place: Place,
    server: RedisServer,
    proxy: Proxy,
    run: Running,
}

impl Held {
    fn start(ttl: &str, keeps_data: bool) -> Self {
        let place = Place::new();
        let builder = RedisServer::builder();
        let server = if keeps_data { builder.arg("appendonly", "yes").arg("appendfsync", "always") } else { builder }.start();
        let proxy = Proxy::start(server.addr());
        let stubborn = "sh -c 'trap \"\" TERM; echo $$ > grandchild; while :; do sleep 1; done' & echo $$ > child; wait";
        let run = place.spawn(&["run", "--store", &proxy.url(), "--ttl", ttl, "x", "--", "sh", "-c", stubborn]);
        place.pid("child");
        place.pid("grandchild");
        Self { place, server, proxy, run }
    }

    /// When the lease ends at the server, as of its last good renewal.
    fn lease_ends(&self) -> Instant {
        let left = self.server.command(&["PTTL", "x"]).int();
        Instant::now() + Duration::from_millis(left.try_into().unwrap())
    }

    fn group_is_dead(&self) -> bool {
        is_dead(self.place.pid("child")) && is_dead(self.place.pid("grandchild"))
    }

    fn ends_with_79_by(mut self, limit: Instant, fault: &str) {
        wait_for("the group to be dead", || self.group_is_dead());
        let late = Instant::now().saturating_duration_since(limit);
        assert!(late.is_zero(), "{fault}: beyond the end of the lease the group took {late:?}");
        assert_eq!(self.run.status().code(), Some(79), "{fault}");
    }
}

type Fault = fn(&Held);

#[test]
fn the_group_is_dead_before_the_lease_ends() {
    let faults: [(&str, Fault); 4] = [
        ("stopped", |held| held.server.stop()),
        ("killed", |held| held.server.kill()),
        ("black-holed", |held| held.proxy.black_hole()),
        ("replies held", |held| held.proxy.hold_replies()),
    ];
    for (fault, begin) in faults {
        let held = Held::start("4s", false);
        let ends = held.lease_ends();
        begin(&held);
        held.ends_with_79_by(ends, fault);
    }
}

#[test]
fn a_flush_is_noticed_at_the_next_renewal() {
    let held = Held::start("6s", false);
    held.server.cli("FLUSHALL");
    let flushed = Instant::now();
    wait_for("TERM to reach the child", || is_dead(held.place.pid("child")));
    // ttl/3 + the operation timeout of ttl/6.
    assert!(flushed.elapsed() < Duration::from_secs(3), "noticed only after {:?}", flushed.elapsed());
    held.ends_with_79_by(flushed + Duration::from_secs(6), "flushed");
}

#[test]
fn a_server_that_comes_back_in_time_costs_nothing() {
    for fault in ["stopped", "killed", "cut"] {
        let mut held = Held::start("12s", true);
        wait_for("a renewal to be near", || held.server.command(&["PTTL", "x"]).int() < 8_500);
        let kill = match fault {
            "stopped" => RedisServer::stop,
            "killed" => RedisServer::kill,
            _ => |_: &RedisServer| {},
        };
        kill(&held.server);
        if fault == "cut" {
            held.proxy.cut();
        }
        // Past the instant of the renewal, well before TERM is due.
        std::thread::sleep(Duration::from_millis(1_200));
        match fault {
            "stopped" => held.server.cont(),
            "killed" => held.server.restart(),
            _ => {}
        }
        // A server that has just been restarted may answer that it is loading.
        wait_for("a renewal to go through", || matches!(held.server.command(&["PTTL", "x"]), Reply::Int(left) if left > 11_000));
        assert!(!held.group_is_dead() && held.run.0.try_wait().unwrap().is_none(), "{fault}: the job was killed");
        held.run.signal(Signal::SIGTERM);
        wait_for("the child to end", || is_dead(held.place.pid("child")));
        nix::sys::signal::kill(held.place.pid("grandchild"), Signal::SIGKILL).unwrap();
        assert_eq!(held.run.status().code(), Some(128 + 15));
    }
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
        assert_eq!(ended.code, code, "{store} {name}: {ended:?}");
        assert_one_line(&ended);
        assert!(ended.err.contains(word) && !ended.err.contains("hunter2") && !ended.err.contains(":pw@"), "{}", ended.err);
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
fn show_and_break_across_machines() {
    let (place, server) = (Place::new(), RedisServer::start());
    let url = server.url();
    let run = place.spawn(&[
        "run",
        "--store",
        &url,
        "--label",
        "web-1",
        "--ttl",
        "6s",
        "x",
        "--",
        "sh",
        "-c",
        "echo $$ > held; sleep 60",
    ]);
    place.pid("held");
    let shown: serde_json::Value = serde_json::from_str(&place.output(&["show", "--store", &url, "-o", "json"]).out).unwrap();
    let holder = &shown[0]["holders"][0];
    assert_eq!(
        (&shown[0]["name"], &shown[0]["kind"], &shown[0]["waiters"]),
        (&"x".into(), &"mutex".into(), &0.into()),
        "{shown}"
    );
    assert!(holder["owner"].as_str().unwrap().starts_with("web-1.") && holder["fence"].is_string(), "{shown}");
    assert!(holder["ttl_ms"].as_u64().unwrap() <= 6_000 && holder["permits"].is_null() && holder["shared"] == false, "{shown}");
    assert_eq!(place.output(&["break", "--store", &url, "x"]).code, 0);
    assert_eq!(place.output(&["break", "--store", &url, "x"]).code, 1);
    assert_eq!(run.end().code, 79);
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
    let mut script = Running::start(std::process::Command::new("sleep").arg("600"));
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

/// A master of the cluster is killed in the midst, its replica takes over, and it comes back as a replica.
#[test]
fn turns_on_a_cluster() {
    let cluster = RedisCluster::start(3, 1);
    count(20, some_of(25), Some(&cluster.url()), || {
        let slot = cluster.servers()[0].cli("CLUSTER KEYSLOT x").parse().unwrap();
        let victim = &cluster.servers()[cluster.serving(slot).unwrap()];
        victim.kill();
        wait_for("a replica to take over", || cluster.serving(slot).is_some());
        victim.restart();
    });
}

/// The master of a Sentinel group is killed in the midst, a replica takes over that has every grant, and the other comes back.
#[test]
fn turns_on_a_sentinel_group() {
    let group = SentinelGroup::start();
    count(20, some_of(25), Some(&format!("{}?durability=majority", group.url())), || {
        group.servers[0].kill();
        group.wait_for_another(0);
        group.restart_as_replica(0);
    });
}

/// The commands on a cluster, by any one of its nodes.
#[test]
fn a_cluster_is_a_store() {
    let (place, cluster) = (Place::new(), RedisCluster::start(3, 0));
    for (at, server) in cluster.servers().iter().enumerate() {
        let url = format!("redis+cluster://{}", server.addr());
        for name in ["a", "b", "c", "d"] {
            let name = format!("{name}{at}");
            let lease = place.output(&["acquire", "--store", &url, "--ttl", "1m", &name]);
            assert!(lease.code == 0 && lease.out.contains("TENURE_FENCE="), "{lease:?}");
        }
    }
    let url = cluster.url();
    let shown = place.output(&["show", "--store", &url, "-o", "json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown.out).unwrap();
    assert_eq!(shown.as_array().unwrap().len(), 12, "{shown}");
    assert_eq!(place.output(&["run", "-n", "--store", &url, "b1", "--", "true"]).code, 75);
    assert_eq!(place.output(&["break", "--store", &url, "b1"]).code, 0);
    // Names of several slots, all or nothing.
    assert_eq!(place.output(&["run", "-n", "--store", &url, "-a", "x", "-a", "y", "b1", "--", "true"]).code, 0);
    assert_eq!(place.output(&["run", "-n", "--store", &url, "-a", "x", "-a", "c1", "b1", "--", "true"]).code, 75);
    assert_eq!(place.output(&["show", "--store", &url, "x"]).code, 0);
}

#[test]
fn a_cluster_is_there_to_try() {
    serves_to_try("cluster");
}

/// The servers to try a topology with grant at once, and end with their script.
#[test]
fn five_servers_are_there_to_try() {
    serves_to_try("quorum");
}

#[test]
fn a_sentinel_group_is_there_to_try() {
    serves_to_try("sentinel");
}

fn serves_to_try(topology: &str) {
    let place = Place::new();
    let mut script = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/try"));
    script.arg(topology).env("TENURE", env!("CARGO_BIN_EXE_tenure")).stdout(File::create(place.path("url")).unwrap());
    let servers = Running::of(script.spawn().unwrap());
    let url = place.line("url");
    let ended = place.output(&["run", "--store", &url, "x", "--", "true"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    servers.signal(Signal::SIGTERM);
    assert_eq!(servers.end_by_signal().code(), Some(143));
    let gone = place.output(&["run", "-n", "--store", &url, "x", "--", "true"]);
    assert_eq!(gone.code, 69, "{gone:?}");
}

/// A user of such a server is warned once, and can switch the warning off.
#[test]
fn a_server_that_endangers_locks_is_named() {
    let (place, server) = (Place::new(), RedisServer::start());
    server.cli("CONFIG SET maxmemory 100mb");
    server.cli("CONFIG SET maxmemory-policy allkeys-lru");
    server.cli("ACL SETUSER modest on >pw +@all -config -info ~* &*");
    let modest = server.url().replacen("redis://", "redis://modest:pw@", 1);
    let said = |url: &str, flag: &str| {
        let ended = place.output(&["run", flag, "--ttl=1m", "--store", url, "x", "--", "sh", "-c", "sleep 0.5"]);
        assert_eq!(ended.code, 0, "{ended:?}");
        ["may evict locks", "may forget"].map(|what| ended.err.matches(what).count())
    };
    assert_eq!(said(&server.url(), "--no-renew"), [1, 0]);
    assert_eq!(said(&server.url(), "-v"), [1, 1]);
    assert_eq!(said(&server.url(), "-q"), [0, 0]);
    assert_eq!(said(&format!("{}?quiet=yes", server.url()), "-v"), [0, 0]);
    assert_eq!(said(&modest, "-v"), [0, 0], "the user may not ask");
    server.cli("CONFIG SET maxmemory-policy noeviction");
    assert_eq!(said(&server.url(), "--no-renew"), [0, 0]);
    server.cli("REPLICAOF 127.0.0.1 1");
    let mut waiter = place.tenure(&["run", "--store", &server.url(), "x", "--", "true"]);
    let waiter = Running::of(waiter.stderr(File::create(place.path("said")).unwrap()).spawn().unwrap());
    wait_for("the warning of a replica", || place.read("said").contains("it is a replica and grants nothing"));
    waiter.signal(Signal::SIGTERM);
    assert_eq!(waiter.end_by_signal().code(), Some(128 + 15));
}

/// So is each server of several that this process uses, by its own name.
#[test]
fn each_server_of_several_that_endangers_locks_is_named() {
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
    let (servers, url) = quorum_of_five();
    let [one, other] = [1, 3].map(|at| evict(&servers[at]));
    let (told, detail) = (said(&url, "--no-renew"), said(&url, "-v"));
    assert_eq!(
        (told.matches(&one).count(), told.matches(&other).count(), told.matches("warning about").count()),
        (1, 1, 2),
        "{told}"
    );
    assert_eq!(detail.matches("warning about").count(), 2, "a server that forgets has no vote for a while: {detail}");
    assert!(!said(&format!("{url}?quiet=yes"), "-v").contains("warning"));
    let cluster = RedisCluster::start(3, 0);
    let all = cluster.servers().iter().map(evict).collect::<Vec<_>>();
    let used = cluster.serving(cluster.servers()[0].cli("CLUSTER KEYSLOT x").parse().unwrap()).unwrap();
    let told = said(&cluster.url(), "--no-renew");
    assert!(told.matches("warning about").count() == 1 && told.contains(&all[used]), "{told}, not {}", all[used]);
}
