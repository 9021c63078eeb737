//! The server launcher, against the real thing.

use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use tenure_testkit::{Certificates, Client, Proxy, RedisServer, Reply, is_alive, wait_until};

const SOON: Duration = Duration::from_secs(10);

#[test]
fn a_server_answers_over_tcp_and_its_socket_and_dies_with_its_guard() {
    let server = RedisServer::start();
    assert_eq!(server.command(&["SET", "k", "v"]), "OK");
    assert_eq!(server.cli("GET k"), "v");
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.port()));
    for mut client in [Client::connect(server.addr(), SOON).unwrap(), Client::connect_unix(&server.unix_socket(), SOON).unwrap()]
    {
        assert_eq!(client.command(&["GET", "k"]).unwrap(), "v");
    }
    let (pid, dir) = (server.pid(), server.dir().to_owned());
    assert!(is_alive(pid));
    drop(server);
    assert!(!is_alive(pid));
    assert!(!dir.exists());
}

#[test]
fn two_servers_share_nothing() {
    let (one, two) = (RedisServer::start(), RedisServer::start());
    one.cli("SET k v");
    assert!(two.command(&["GET", "k"]).is_nil());
}

#[test]
fn a_stopped_server_is_silent_and_executes_later_what_was_sent() {
    let server = RedisServer::start();
    let mut client = Client::connect(server.addr(), Duration::from_millis(100)).unwrap();
    server.stop();
    assert!(client.command(&["SET", "late", "1"]).is_err());
    assert!(is_alive(server.pid()));
    drop(client);
    server.cont();
    wait_until(SOON, "the late command", || server.cli("GET late") == "1");
}

#[test]
fn a_killed_server_keeps_what_the_append_only_file_has() {
    let durable = RedisServer::builder().arg("appendonly", "yes").start();
    durable.cli("SET k v");
    let (pid, port) = (durable.pid(), durable.port());
    durable.kill();
    assert!(!is_alive(pid));
    assert!(Client::connect(durable.addr(), SOON).is_err());
    durable.restart();
    assert_eq!(durable.port(), port);
    // It answers while it loads.
    wait_until(SOON, "the append-only file", || durable.command(&["GET", "k"]) == "v");
    durable.restart_empty();
    wait_until(SOON, "the empty file", || durable.command(&["DBSIZE"]) == 0);
}

#[test]
fn a_server_whose_port_is_taken_is_started_again_until_it_is_free() {
    let server = RedisServer::start();
    server.kill();
    let taken = TcpListener::bind(server.addr()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| server.restart());
        wait_until(SOON, "the complaint about the port", || server.log().contains("Address already in use"));
        drop(taken);
    });
    assert_eq!(server.cli("PING"), "PONG");
}

#[test]
fn a_restart_without_persistence_forgets() {
    let server = RedisServer::start();
    server.cli("SET k v");
    server.stop();
    server.restart();
    assert!(server.command(&["GET", "k"]).is_nil());
}

#[test]
fn a_server_comes_back_with_older_data() {
    let durable = || RedisServer::builder().arg("appendonly", "yes").arg("appendfsync", "always").start();
    for (server, persists) in [(durable(), true), (RedisServer::start(), false)] {
        server.cli("SET old 1");
        let snapshot = server.snapshot();
        server.cli("SET new 1");
        for _ in 0..2 {
            server.restart_with(&snapshot);
            assert_eq!(server.cli("KEYS *"), "old");
            server.cli("SET new 2");
        }
        server.restart();
        let left = if persists { 2 } else { 0 };
        wait_until(SOON, "the data", || server.command(&["DBSIZE"]) == left);
    }
}

#[test]
fn a_killed_server_with_an_append_only_file_can_be_copied() {
    let server = RedisServer::builder().arg("appendonly", "yes").start();
    server.cli("SET k v");
    server.kill();
    let snapshot = server.snapshot();
    server.restart_empty();
    server.restart_with(&snapshot);
    assert_eq!(server.cli("GET k"), "v");
}

#[test]
fn a_replica_has_its_primary_s_data_and_is_promoted() {
    for primary in [RedisServer::start(), RedisServer::builder().password("secret").start()] {
        primary.cli("SET k v");
        let start = Instant::now();
        let replica = RedisServer::replica_of(&primary);
        assert!(start.elapsed() < Duration::from_secs(4), "replication took {:?}", start.elapsed());
        assert_eq!(replica.cli("GET k"), "v");
        let Reply::Error(text) = replica.command(&["SET", "k", "w"]) else { panic!("a replica took a write") };
        assert!(text.starts_with("READONLY"), "{text}");
        primary.kill();
        replica.promote();
        assert_eq!(replica.cli("SET k w"), "OK");
    }
}

#[test]
fn a_replica_behind_a_proxy_misses_what_was_held() {
    let primary = RedisServer::start();
    // Replication is no protocol of requests and replies.
    let proxy = Proxy::start_opaque(primary.addr());
    let replica = RedisServer::builder().replica_at(proxy.addr()).start();
    primary.cli("SET k 1");
    replica.catch_up(&primary);
    proxy.hold_replies();
    primary.cli("SET k 2");
    primary.kill();
    replica.promote();
    assert_eq!(replica.cli("GET k"), "1");
}

#[test]
fn a_password_is_asked_for_and_known() {
    let server = RedisServer::builder().password("secret").start();
    assert_eq!(server.cli("PING"), "PONG");
    assert_eq!(server.url(), format!("redis://:secret@127.0.0.1:{}", server.port()));
    let mut stranger = Client::connect(server.addr(), SOON).unwrap();
    let Reply::Error(text) = stranger.command(&["PING"]).unwrap() else { panic!("a stranger was let in") };
    assert!(text.starts_with("NOAUTH"), "{text}");
}

#[test]
fn rules_and_limits_are_in_force() {
    let rules = "user default on nopass ~* &* +@all\nuser reader on >pw ~* +get\n";
    let server = RedisServer::builder().acl(rules).arg("maxmemory", "1mb").start();
    let mut reader = Client::connect(server.addr(), SOON).unwrap();
    assert_eq!(reader.command(&["AUTH", "reader", "pw"]).unwrap(), "OK");
    let Reply::Error(text) = reader.command(&["SET", "k", "v"]).unwrap() else { panic!("the rules were not read") };
    assert!(text.starts_with("NOPERM"), "{text}");
    let full = server.command(&["SET", "k", &"x".repeat(2 << 20)]);
    let then = server.command(&["SET", "k", "v"]);
    assert!([&full, &then].iter().any(|r| matches!(r, Reply::Error(text) if text.starts_with("OOM"))), "{full:?} {then:?}");
}

#[test]
fn tls_is_served_with_a_certificate_its_authority_signed() {
    let dir = tempfile::tempdir().unwrap();
    let certificates = Certificates::generate(dir.path());
    let other = tempfile::tempdir().unwrap();
    let stranger = Certificates::generate(other.path());
    let server = RedisServer::builder().tls(&certificates).start();
    assert_eq!(server.tls_url(), format!("rediss://127.0.0.1:{}", server.tls_port()));
    let shake = |ca: std::path::PathBuf| {
        let mut command = Command::new("openssl");
        command.args(["s_client", "-verify_return_error", "-verify_ip", "127.0.0.1", "-connect"]);
        command.arg(format!("127.0.0.1:{}", server.tls_port())).arg("-CAfile").arg(ca);
        command.arg("-cert").arg(certificates.client_cert()).arg("-key").arg(certificates.client_key());
        command.stdin(std::process::Stdio::null()).output().unwrap().status.success()
    };
    assert!(shake(certificates.ca()));
    assert!(!shake(stranger.ca()));
}

#[test]
#[should_panic(expected = "/no/such/server not found: install it (apt-get install redis-server) or set TENURE_REDIS_SERVER")]
fn a_missing_server_is_named_with_its_remedy() {
    RedisServer::builder().program("/no/such/server").start();
}

#[test]
#[should_panic(expected = "no-such-directive")]
fn a_wrong_argument_is_told() {
    RedisServer::builder().arg("no-such-directive", "1").start();
}

#[test]
#[should_panic(expected = "redis-server refused \"INCR k\": WRONGTYPE")]
fn a_refused_set_up_command_stops_the_test() {
    let server = RedisServer::start();
    server.cli("LPUSH k 1");
    server.cli("INCR k");
}
