//! A name that leads to another server: the proxy stands for it. The old server keeps its connections.

use std::time::Duration;

use tenure::{ErrorKind, Locker, State};
use tenure_redis::Options;
use tenure_testkit::{Proxy, RedisCluster, RedisServer, admit, wait_until};
use tokio::time::timeout;

use crate::{LONG, PATIENCE, patient};

/// A server, its replica, and a name of the server.
fn group() -> (RedisServer, RedisServer, Proxy) {
    let server = RedisServer::start();
    let replica = RedisServer::replica_of(&server);
    server.wait_for_copies(1);
    let name = Proxy::start(server.addr());
    (server, replica, name)
}

/// The replica becomes the master and has the name; the old master becomes its replica.
fn switch(old: &RedisServer, new: &RedisServer, name: &Proxy) {
    new.catch_up(old);
    new.promote();
    name.lead_to(new.addr());
    old.command(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]);
    wait_until(PATIENCE, "the old master to be a replica", || old.cli("ROLE").contains("slave"));
}

/// Its lease was copied, so it lives on there. Who waits is served by the new master.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_and_a_wait_go_on_at_the_new_master() {
    let (old, new, name) = group();
    let locks = || async {
        let store = Options::parse(&name.url()).unwrap().open().await.unwrap();
        Locker::builder(store).ttl(LONG).build().unwrap()
    };
    let (holders, waiters) = (locks().await, locks().await);
    let held = holders.mutex("door").acquire().await.unwrap();
    let waiting = tokio::spawn(async move { waiters.mutex("door").acquire().await });
    wait_until(PATIENCE, "the waiter to be queued", || old.cli("KEYS *").contains("queue") || name.commands() > 12);
    switch(&old, &new, &name);
    timeout(PATIENCE, async {
        while held.extend(LONG).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("the lease is renewed at the new master");
    assert_eq!((held.state(), new.cli("GET door")), (State::Held, held.token().to_string()));
    held.release().await.unwrap();
    let served = timeout(PATIENCE, waiting).await.expect("the waiter is served").unwrap().unwrap();
    assert_eq!(new.cli("GET door"), served.token().to_string());
}

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
