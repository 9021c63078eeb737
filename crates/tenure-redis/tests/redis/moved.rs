//! Names that lead to another server: a proxy stands for each. And servers that cannot serve now.

use tenure::{ErrorKind, Locker};
use tenure_redis::Options;
use tenure_testkit::{Proxy, RedisCluster, RedisServer, admit};
use tokio::time::timeout;

use crate::{LONG, PATIENCE, patient};

/// A quorum refuses a server that is two of its nodes. These two are not for long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_of_a_quorum_may_swap_their_addresses() {
    let servers: Vec<RedisServer> = (0..3).map(|_| RedisServer::start()).collect();
    let names: Vec<Proxy> = servers.iter().map(|server| Proxy::start(server.addr())).collect();
    let hosts: Vec<String> = names.iter().map(|name| name.addr().to_string()).collect();
    let url = format!("quorum+redis://{}?timeout=2s", hosts.join(","));
    admit(&url);
    let locks = Locker::new(Options::parse(&url).unwrap().open().await.unwrap());
    locks.mutex("before").acquire().await.unwrap().release().await.unwrap();
    names[0].lead_to(servers[1].addr());
    names[1].lead_to(servers[0].addr());
    // So both have to vote.
    names[2].refuse();
    names[2].cut();
    // The other connection stands for a while, so both names lead to one server. It has one vote.
    names[0].cut();
    for _ in 0..3 {
        assert!(!matches!(locks.mutex("door").try_acquire().await, Ok(Some(_))), "one server is a majority");
    }
    names[1].cut();
    let granted = timeout(PATIENCE, locks.mutex("door").acquire()).await.expect("the two vote").unwrap();
    for server in &servers[..2] {
        assert_eq!(server.cli("GET door"), granted.token().to_string());
    }
}

/// The connection breaks at each command in turn, and leads to another server from then on. That one is asked for its own run before
/// anything is written there. With the run of the first it would take its locks for lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_to_an_address_goes_on_voting() {
    let servers: Vec<RedisServer> = (0..4).map(|_| RedisServer::start()).collect();
    let name = Proxy::start(servers[0].addr());
    let url =
        |first: &dyn std::fmt::Display| format!("quorum+redis://{first},{},{}?timeout=2s", servers[2].addr(), servers[3].addr());
    for first in [servers[0].addr(), servers[1].addr()] {
        admit(&url(&first));
    }
    for k in 1..=8 {
        name.lead_to(servers[0].addr());
        let quorum = Options::parse(&url(&name.addr())).unwrap().quorum().await.unwrap();
        name.lead_to(servers[1].addr());
        name.cut_at(k);
        quorum.memories().await;
        let votes = |server: &RedisServer| !server.cli("HGET tenure:node floor").is_empty();
        assert!(servers.iter().all(votes), "cut at command {k}: {}", servers[1].cli("HGETALL tenure:node"));
        name.heal();
        name.cut();
    }
}

/// Each is provoked on a server. A wait goes on after the first kind, and ends with the second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_answers_has_a_class() {
    let server = RedisServer::start();
    let locks = Locker::new(Options::parse(&server.url()).unwrap().open().await.unwrap());
    for (cause, code, kind, mend) in [
        ("CONFIG SET min-replicas-to-write 1", "NOREPLICAS", ErrorKind::Unavailable, "CONFIG SET min-replicas-to-write 0"),
        ("CONFIG SET maxmemory 1", "OOM", ErrorKind::Unavailable, "CONFIG SET maxmemory 0"),
        ("REPLICAOF 127.0.0.1 1", "READONLY", ErrorKind::Unavailable, "CONFIG SET replica-serve-stale-data no"),
        ("CONFIG GET port", "MASTERDOWN", ErrorKind::Unavailable, "REPLICAOF NO ONE"),
        ("ACL SETUSER default -@all +acl", "NOPERM", ErrorKind::Refused, "ACL SETUSER default +@all"),
    ] {
        server.cli(cause);
        let error = locks.mutex("door").try_acquire().await.unwrap_err();
        assert!(error.kind() == kind && error.to_string().contains(code), "{cause}: {error:?}");
        assert!(!error.may_have_been_applied(), "{cause}: {error:?}");
        server.cli(mend);
    }
    assert!(locks.mutex("door").try_acquire().await.unwrap().is_some());
    server.cli("CONFIG SET requirepass s3cret");
    let error = Options::parse(&server.url()).unwrap().open().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Refused && error.to_string().contains("NOAUTH"), "{error:?}");
    assert!(locks.mutex("gate").try_acquire().await.unwrap().is_some(), "the link that stands goes on");
}

/// Neither can serve for a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_loads_and_a_cluster_with_a_gap_are_waited_for() {
    // It pauses after each key, and answers after each kilobyte.
    let slow = [("key-load-delay", "50000"), ("loading-process-events-interval-bytes", "1024"), ("rdbcompression", "no")];
    let server = slow.into_iter().fold(RedisServer::builder(), |builder, (name, value)| builder.arg(name, value)).start();
    let cluster = RedisCluster::start(1, 0);
    server.command(&["EVAL", "for i = 1, 1000 do redis.call('SET', i, string.rep('x', 1500)) end", "0"]);
    server.cli("SAVE");
    let gap = cluster.servers()[0].cli("CLUSTER KEYSLOT door");
    let [one, all] = [patient(&server.url()), patient(&cluster.url())];
    let mend = |way: &str| match way {
        "LOADING" => server.cli("CONFIG SET key-load-delay 0"),
        _ => cluster.servers()[0].cli(&format!("CLUSTER ADDSLOTS {gap}")),
    };
    for (way, url) in [("LOADING", one), ("CLUSTERDOWN", all)] {
        let locks = Locker::new(Options::parse(&url).unwrap().open().await.unwrap());
        locks.mutex("door").acquire().await.unwrap().release().await.unwrap();
        match way {
            "LOADING" => server.restart(),
            _ => drop(cluster.servers()[0].cli(&format!("CLUSTER DELSLOTS {gap}"))),
        }
        let error = loop {
            // The first may have gone to the server that was there before.
            let error = locks.mutex("door").try_acquire().await.unwrap_err();
            if !error.may_have_been_applied() {
                break error;
            }
        };
        assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains(way), "{way}: {error:?}");
        let waiting = tokio::spawn(locks.mutex("door").wait(LONG).acquire());
        mend(way);
        let _ = timeout(LONG, waiting).await.expect("it is served").unwrap().unwrap();
    }
}
