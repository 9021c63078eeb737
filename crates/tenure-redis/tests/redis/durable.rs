//! Grants that count only when copies of them are confirmed.

use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::join_all;
use tenure::store::{Durable, RenewReply, Store};
use tenure::{EndReason, ErrorKind, Guard, Locker};
use tenure_redis::{Durability, Options};
use tenure_testkit::{RedisServer, Reply, wait_until};
use tokio::time::timeout;

use crate::subject::Lent;
use crate::{LONG, PATIENCE, store};

/// A server, so many replicas of it, and a locker on it with these parameters.
async fn with_replicas(replicas: usize, parameters: &str) -> (RedisServer, Vec<RedisServer>, Locker) {
    let server = RedisServer::start();
    let replicas: Vec<RedisServer> = (0..replicas).map(|_| RedisServer::replica_of(&server)).collect();
    server.wait_for_copies(replicas.len());
    let locks = locks(&server, parameters).await;
    (server, replicas, locks)
}

async fn locks(server: &RedisServer, parameters: &str) -> Locker {
    let store = store(&format!("{}?timeout=4s&{parameters}", server.url())).await;
    Locker::builder(store).ttl(Duration::from_secs(15)).build().unwrap()
}

fn replicas(guard: &Guard) -> Option<u32> {
    guard.durability().map(|durable| durable.replicas)
}

/// How often the server has executed a command.
fn calls(server: &RedisServer, command: &str) -> u64 {
    let stats = server.cli("INFO commandstats");
    let of = stats.split(&format!("cmdstat_{command}:calls=")).nth(1);
    of.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

/// No link of the replicas stays, so the server counts them no more.
fn cut_off(server: &RedisServer, replicas: &[RedisServer]) {
    replicas.iter().for_each(RedisServer::kill);
    wait_until(PATIENCE, "the replicas to be gone", || server.cli("INFO replication").contains("connected_slaves:0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_says_which_copies_there_are() {
    let (server, others, locks) = with_replicas(2, "durability=replicas:2").await;
    let door = locks.mutex("door").acquire().await.unwrap();
    assert_eq!(replicas(&door), Some(2));
    assert_eq!(others[0].cli("GET door"), door.token().to_string());
    let reader = locks.read("site").acquire().await.unwrap();
    let both = locks.mutex("a").and("b").acquire().await.unwrap();
    assert!(replicas(&reader) == Some(2) && both.iter().all(|guard| replicas(guard) == Some(2)));
    // A task of this process gets it with the lease.
    let next = locks.mutex("door").acquire();
    let (next, _) = tokio::join!(next, async { door.release().await.unwrap() });
    assert_eq!(replicas(&next.unwrap()), Some(2));
    let plain = Locker::new(store(&server.url()).await).mutex("plain").acquire().await.unwrap();
    assert_eq!(plain.durability(), None);
}

/// A wait on this connection would keep everybody else's commands waiting, and a second connection costs something.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_asked_where_nothing_is_wanted() {
    let server = Lent::alone();
    let locks = locks(&server, "durability=none").await;
    let guard = locks.mutex("door").acquire().await.unwrap();
    guard.verify().await.unwrap();
    // One is this test's. The server may not have seen yet that the one before it is closed.
    wait_until(PATIENCE, "one connection", || server.cli("CLIENT LIST TYPE normal").lines().count() == 2);
    assert_eq!(calls(&server, "wait"), 0);
    assert_eq!(calls(&server, "incr"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_too_few_confirm_is_undone() {
    let (server, others, locks) = with_replicas(1, "durability=replicas:1").await;
    others[0].stop();
    let error = locks.mutex("door").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let text = error.to_string();
    assert!(text.contains("0 of 1 replicas") && text.contains("durability="), "{text}");
    let began = Instant::now();
    timeout(PATIENCE, locks.flush_releases()).await.expect("it is not released");
    let took = began.elapsed();
    assert!(took < Duration::from_secs(1), "released only after {took:?}");
    assert_eq!(server.cli("EXISTS door"), "0");
    let both = locks.mutex("a").and("b").try_acquire().await;
    assert!(both.is_err());
    timeout(PATIENCE, locks.flush_releases()).await.unwrap();
    assert_eq!(server.cli("EXISTS a b"), "0");
    // One who waits is granted it when the replica is back.
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.mutex("door").acquire().await }
    });
    wait_until(PATIENCE, "the name to be taken", || server.cli("EXISTS door") == "1");
    others[0].cont();
    let guard = timeout(PATIENCE, waiting).await.expect("it is not granted").unwrap().unwrap();
    assert_eq!(replicas(&guard), Some(1));
}

/// A failover may forget a renewal that no replica has, so the holder does not count on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_is_not_confirmed_does_not_count() {
    let (server, others, locks) = with_replicas(1, "durability=replicas:1").await;
    let ttl = Duration::from_secs(8);
    let guard = locks.mutex("door").ttl(ttl).acquire().await.unwrap();
    others[0].stop();
    let begun = Instant::now();
    assert_eq!(timeout(PATIENCE, guard.lost()).await.expect("the renewal counts"), EndReason::Expired);
    let took = begun.elapsed();
    assert!(took < ttl, "told only after {took:?}");
    assert_eq!(server.cli("EXISTS door"), "1", "it was renewed, and nobody has confirmed it");
}

/// While a grant is waited for, everything else is answered at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_keeps_no_other_call_waiting() {
    let server = RedisServer::start();
    let replica = RedisServer::replica_of(&server);
    let store = store(&format!("{}?timeout=4s&durability=replicas:1", server.url())).await;
    let locks = Locker::builder(store.clone()).ttl(LONG).build().unwrap();
    let held = locks.mutex("held").acquire().await.unwrap();
    replica.stop();
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.mutex("door").try_acquire().await.map(drop) }
    });
    wait_until(PATIENCE, "the wait", || server.cli("INFO clients").contains("blocked_clients:1"));
    let begun = Instant::now();
    assert_eq!(store.inspect(Some(held.name())).await.unwrap().len(), 1);
    let _ = held.release().await.unwrap();
    assert!(server.cli("INFO clients").contains("blocked_clients:1"), "nothing was waited for any more");
    assert!(begun.elapsed() < Duration::from_secs(1), "took {:?}", begun.elapsed());
    waiting.await.unwrap().unwrap_err();
}

/// One wait serves all that have come while the last was under way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_grants_share_a_wait() {
    let (server, _others, locks) = with_replicas(1, "durability=replicas:1").await;
    let all = (0..64).map(|n| {
        let locks = locks.clone();
        tokio::spawn(async move {
            for turn in 0..4 {
                let guard = locks.mutex(format!("{n}/{turn}")).acquire().await.unwrap();
                assert_eq!(replicas(&guard), Some(1));
            }
        })
    });
    for one in all.collect::<Vec<_>>() {
        one.await.unwrap();
    }
    let waits = calls(&server, "wait");
    assert!(waits < 128, "{waits} waits for 256 grants");
}

/// Renewals gather for one wait. One that has little time takes none of the others'.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_in_a_hurry_takes_no_time_from_another() {
    let (server, _others, _) = with_replicas(1, "durability=replicas:1").await;
    let store = store(&format!("{}?timeout=4s&durability=replicas:1", server.url())).await;
    let locks = Locker::builder(store.clone()).ttl(LONG).build().unwrap();
    let mut leases = Vec::new();
    for name in ["first", "hurried", "patient"] {
        leases.push(locks.mutex(name).acquire().await.unwrap().into_lease());
    }
    server.stop();
    let mut renewals: Vec<_> = leases.iter().map(|lease| store.renew(std::slice::from_ref(lease))).collect();
    let mut patient = renewals.pop().unwrap();
    // The first one asks alone. The others gather until that is over.
    for renewal in &mut renewals {
        assert!(renewal.as_mut().now_or_never().is_none());
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(patient.as_mut().now_or_never().is_none());
    let (hurried, patient) = tokio::join!(join_all(renewals), async {
        timeout(Duration::from_millis(1_600), &mut patient).await.expect_err("it has as much time left");
        server.cont();
        patient.await
    });
    assert!(hurried.iter().all(|answers| matches!(answers[..], [Err(_)])), "{hurried:?}");
    assert!(matches!(patient[..], [Ok(RenewReply::Renewed)]), "{patient:?}");
}

/// A hand-over counts when the new holder has had it confirmed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_is_confirmed_by_the_next() {
    let (server, others, first) = with_replicas(1, "durability=replicas:1").await;
    let second = locks(&server, "durability=replicas:1").await;
    let held = first.mutex("door").acquire().await.unwrap();
    let waiting = tokio::spawn(async move { second.mutex("door").acquire().await });
    wait_until(PATIENCE, "a waiter", || server.command(&["KEYS", "*:q:door"]) != Reply::Array(Vec::new()));
    let waits = calls(&server, "wait");
    let _ = held.release().await.unwrap();
    let guard = timeout(PATIENCE, waiting).await.expect("it is not served").unwrap().unwrap();
    assert_eq!(replicas(&guard), Some(1));
    assert!(calls(&server, "wait") > waits, "nobody has confirmed it");
    assert_eq!(others[0].cli("GET door"), guard.token().to_string());
}

/// Of a server and two replicas two are a majority, also when the replicas are gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_is_of_all_that_were_seen() {
    let (server, others, locks) = with_replicas(2, "durability=majority").await;
    assert!(replicas(&locks.mutex("a").acquire().await.unwrap()) >= Some(1));
    others[0].stop();
    assert_eq!(replicas(&locks.mutex("b").acquire().await.unwrap()), Some(1));
    others[0].cont();
    cut_off(&server, &others);
    let error = locks.mutex("c").try_acquire().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("0 of 1 replicas"), "{error}");
}

/// Where the server can wait for its disk, the grant says so. Where it cannot, nothing is taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_disk_confirms_where_the_server_can_wait_for_it() {
    let waits_for_disk = |server: &RedisServer| matches!(server.command(&["WAITAOF", "0", "0", "1"]), Reply::Array(_));
    let (with, without) =
        (RedisServer::builder().arg("appendonly", "yes").arg("appendfsync", "always").start(), RedisServer::start());
    let with_log = timeout(PATIENCE, locks(&with, "durability=aof").await.mutex("door").acquire()).await.expect("it hangs");
    let without_log = locks(&without, "durability=aof").await.mutex("door").try_acquire().await.unwrap_err();
    assert_eq!(without_log.kind(), ErrorKind::Refused, "{without_log}");
    assert_eq!(without.cli("KEYS *"), "", "something was taken");
    if waits_for_disk(&with) {
        assert_eq!(with_log.unwrap().durability(), Some(Durable::new(0, true)));
        assert!(without_log.to_string().contains("appendonly yes"), "{without_log}");
        // Once a second is within a timeout of three, and seldom within half a second.
        with.cli("CONFIG SET appendfsync everysec");
        let patient = Locker::new(store(&format!("{}?timeout=3s&durability=aof", with.url())).await);
        let guard = timeout(PATIENCE, patient.mutex("gate").acquire()).await.expect("it hangs").unwrap();
        assert_eq!(guard.durability(), Some(Durable::new(0, true)));
    } else {
        let error = with_log.unwrap_err();
        assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Refused, false), "{error}");
        assert!(error.to_string().contains("WAITAOF") && error.to_string().contains("7.2"), "{error}");
        assert_eq!(with.cli("KEYS *"), "", "something was taken");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_schemes_have_no_durability() {
    let options = Options::parse("redis://127.0.0.1:1?scheme=set-nx").unwrap().durability(Durability::Majority);
    let error = options.open().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("native scheme"), "{error}");
}

/// A server that becomes a replica amid it answers so, and ends the connection. Here the connection stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demotion_amid_a_confirmation_is_an_outage() {
    let (server, others, locks) = with_replicas(1, "durability=replicas:1").await;
    others[0].stop();
    let asking = tokio::spawn(locks.mutex("door").try_acquire());
    wait_until(PATIENCE, "the confirmation", || server.cli("INFO clients").contains("blocked_clients:1"));
    let clients = server.cli("CLIENT LIST");
    let blocked = clients.lines().find(|client| client.contains(" flags=b")).unwrap();
    let id = blocked.split(' ').next().unwrap().trim_start_matches("id=");
    server.command(&["CLIENT", "UNBLOCK", id, "ERROR"]);
    let error = timeout(PATIENCE, asking).await.expect("it is answered").unwrap().unwrap_err();
    assert!(error.is_transient() && error.may_have_been_applied(), "{error:?}");
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let store = crate::store(&format!("{}?timeout=4s&durability=replicas:1", server.url())).await;
    let error = Locker::new(store).mutex("other").try_acquire().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("replica"), "{error:?}");
    server.command(&["REPLICAOF", "NO", "ONE"]);
    others[0].cont();
    let granted = timeout(LONG, locks.mutex("gate").acquire()).await.expect("it is granted").unwrap();
    assert_eq!(replicas(&granted), Some(1));
}
