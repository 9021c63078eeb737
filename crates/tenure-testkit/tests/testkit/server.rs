//! The server launcher, against the real thing: what it does to a server is done.

use std::time::Duration;

use tenure_testkit::{Client, Proxy, RedisServer, is_alive, wait_until};

const SOON: Duration = Duration::from_secs(10);

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
fn a_killed_server_has_forgotten_what_it_did_not_write() {
    let (durable, plain) = (RedisServer::builder().arg("appendonly", "yes").start(), RedisServer::start());
    for (server, persists) in [(&durable, 1), (&plain, 0)] {
        server.cli("SET k v");
        let (pid, port) = (server.pid(), server.port());
        server.kill();
        assert!(!is_alive(pid) && Client::connect(server.addr(), SOON).is_err());
        server.restart();
        server.wait_until_loaded();
        assert_eq!((server.port(), server.command(&["DBSIZE"]).int()), (port, persists));
    }
    durable.restart_empty();
    durable.wait_until_loaded();
    assert_eq!(durable.cli("DBSIZE"), "0");
}

#[test]
fn a_server_comes_back_with_older_data() {
    let durable = || RedisServer::builder().arg("appendonly", "yes").arg("appendfsync", "always").start();
    for (server, left) in [(durable(), 2), (RedisServer::start(), 0)] {
        server.cli("SET old 1");
        if left > 0 {
            // An append-only file can be copied while nobody writes it.
            server.kill();
        }
        let snapshot = server.snapshot();
        if left > 0 {
            server.restart();
            server.wait_until_loaded();
        }
        server.cli("SET new 1");
        for _ in 0..2 {
            server.restart_with(&snapshot);
            assert_eq!(server.cli("KEYS *"), "old");
            server.cli("SET new 2");
        }
        server.restart();
        server.wait_until_loaded();
        assert_eq!(server.command(&["DBSIZE"]).int(), left);
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
