//! Locks of libraries that take several keys, or wake one another: keys and messages as they have them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tenure::store::{AcquireReply, Notice, ReleaseReply, RenewReply, Store};
use tenure::{ErrorKind, Lease};
use tenure_redis::Options;
use tenure_testkit::{RedisServer, Reply};
use tokio::time::timeout;

use crate::PATIENCE;
use crate::steps::request;
use crate::subject::Lent;

const KEYS: [&str; 3] = ["rueidislock:0:door", "rueidislock:1:door", "rueidislock:2:door"];

async fn open(server: &RedisServer, profile: &str) -> Arc<dyn Store> {
    Options::parse(&format!("{}?scheme=set-nx&profile={profile}", server.url())).unwrap().open().await.unwrap()
}

async fn take(store: &dyn Store) -> Lease {
    let held = request("door");
    assert!(matches!(store.acquire(&held).await.unwrap(), AcquireReply::Granted(_)));
    held.lease()
}

async fn release(store: &dyn Store, lease: &Lease) -> ReleaseReply {
    store.release(lease, Duration::ZERO).await.unwrap()
}

fn values(server: &RedisServer) -> Vec<String> {
    KEYS.iter()
        .map(|key| server.command(&["GET", key]))
        .map(|found| if found.is_nil() { String::new() } else { found.text() })
        .collect()
}

#[tokio::test]
async fn all_free_keys_are_taken_and_given_back() {
    let server = Lent::alone();
    let store = open(&server, "rueidislock").await;
    let lease = take(&*store).await;
    let owner = lease.owner.to_string();
    assert_eq!(values(&server), [&*owner; 3]);
    assert_eq!(release(&*store, &lease).await, ReleaseReply::Released);
    assert_eq!(server.command(&[&["EXISTS"], &KEYS[..]].concat()), 0);

    // With two keys one holds; the third is a neighbour's, who is on its way or has died.
    for taken in KEYS {
        assert_eq!(server.command(&["SET", taken, "theirs", "PX", "60000"]), "OK");
        let lease = take(&*store).await;
        assert_eq!(server.command(&["GET", taken]).text(), "theirs");
        assert_eq!(release(&*store, &lease).await, ReleaseReply::Released);
        assert_eq!(server.command(&[&["EXISTS"], &KEYS[..]].concat()), 1);
        server.command(&["DEL", taken]);
    }
}

#[tokio::test]
async fn a_minority_is_no_lock() {
    let server = Lent::alone();
    let store = open(&server, "rueidislock").await;
    for (first, second) in [(0, 1), (0, 2), (1, 2)] {
        for holder in ["theirs", "others"] {
            server.command(&["SET", KEYS[first], "theirs", "PX", "60000"]);
            server.command(&["SET", KEYS[second], holder, "PX", "30000"]);
            let AcquireReply::Busy(busy) = store.acquire(&request("door")).await.unwrap() else { panic!("two keys are taken") };
            let found = busy.holder.map(|holder| (holder.owner.to_string(), holder.ttl.unwrap() <= Duration::from_secs(30)));
            assert_eq!(found, (holder == "theirs").then(|| ("theirs".to_owned(), true)), "it is lost with the first of two keys");
            assert_eq!(server.command(&[&["DEL"], &KEYS[..]].concat()), 2, "nothing was taken");
        }
    }
}

/// One key may go, and is taken again. With two gone the lease is, and what is left is given back.
#[tokio::test]
async fn a_lease_lasts_as_long_as_a_majority() {
    let server = Lent::alone();
    let store = open(&server, "rueidislock").await;
    for gone in KEYS {
        let lease = take(&*store).await;
        let owner = lease.owner.to_string();
        server.command(&["DEL", gone]);
        assert!(matches!(store.renew(std::slice::from_ref(&lease)).await[..], [Ok(RenewReply::Renewed)]));
        assert_eq!(values(&server), [&*owner; 3]);
        assert!(server.command(&["PTTL", gone]).int() > 0);
        // Of a neighbour it is not taken.
        server.command(&["SET", gone, "theirs"]);
        assert!(matches!(store.renew(std::slice::from_ref(&lease)).await[..], [Ok(RenewReply::Renewed)]));
        assert_eq!(server.command(&["GET", gone]).text(), "theirs");
        let other = KEYS.into_iter().find(|key| *key != gone).unwrap();
        server.command(&["DEL", other]);
        assert!(matches!(store.renew(std::slice::from_ref(&lease)).await[..], [Ok(RenewReply::Gone)]));
        assert_eq!(server.command(&["EXISTS", other]), 0, "a lost lease takes nothing");
        assert_eq!(release(&*store, &lease).await, ReleaseReply::NotHeld);
        assert_eq!(server.command(&[&["DEL"], &KEYS[..]].concat()), 1, "the neighbour's stays");
    }
}

/// The library goes on with the other two keys. With two of another type nobody can hold.
#[tokio::test]
async fn a_key_of_another_type_counts_as_taken_by_nobody() {
    let server = Lent::alone();
    let store = open(&server, "rueidislock").await;
    for odd in KEYS {
        let others: Vec<&str> = KEYS.into_iter().filter(|key| *key != odd).collect();
        server.command(&["HSET", odd, "color", "red"]);
        let lease = take(&*store).await;
        let owner = lease.owner.to_string();
        assert!(others.iter().all(|key| server.command(&["GET", key]).text() == owner), "{odd}");
        let held = store.inspect(Some(&lease.name)).await.unwrap();
        assert_eq!(held[0].holders[0].owner, lease.owner, "{odd}");
        assert!(matches!(store.renew(std::slice::from_ref(&lease)).await[..], [Ok(RenewReply::Renewed)]));
        let AcquireReply::Busy(busy) = store.acquire(&request("door")).await.unwrap() else { panic!("two keys are taken") };
        assert_eq!(busy.holder.unwrap().owner, lease.owner, "{odd}");
        assert_eq!(release(&*store, &lease).await, ReleaseReply::Released);
        assert!(store.inspect(Some(&lease.name)).await.unwrap().is_empty(), "{odd}");
        // The other client needs both of the others as well.
        server.command(&["SET", others[0], "theirs", "PX", "60000"]);
        assert!(matches!(store.acquire(&request("door")).await.unwrap(), AcquireReply::Busy(_)), "{odd}");
        server.command(&["DEL", others[0]]);
        server.command(&["HSET", others[1], "color", "red"]);
        assert_eq!(store.acquire(&request("door")).await.unwrap_err().kind(), ErrorKind::Mismatch, "{odd}");
        assert_eq!(store.inspect(Some(&lease.name)).await.unwrap_err().kind(), ErrorKind::Mismatch, "{odd}");
        assert_eq!(server.command(&[&["DEL"], &KEYS[..]].concat()), 2, "{odd}: nothing was taken");
    }
}

/// A release sends the library's own message to those who wait.
#[tokio::test]
async fn a_release_wakes_as_the_library_does() {
    let server = Lent::alone();
    let store = open(&server, "spring&prefix=app").await;
    let mut heard = server.connect().unwrap();
    heard.command(&["PSUBSCRIBE", "app-channel:*"]).unwrap();
    let lease = take(&*store).await;
    assert_eq!(release(&*store, &lease).await, ReleaseReply::Released);
    let Reply::Array(message) = heard.receive().unwrap() else { panic!("no message") };
    let message: Vec<String> = message.iter().map(Reply::text).collect();
    assert_eq!(message, ["pmessage", "app-channel:*", "app-channel:app:door", "app:door"]);

    let store = open(&server, "python-redis-lock").await;
    for _ in 0..2 {
        let lease = take(&*store).await;
        let began = Instant::now();
        assert_eq!(release(&*store, &lease).await, ReleaseReply::Released);
        let [signals, left] = ["LLEN", "PTTL"].map(|asks| server.command(&[asks, "lock-signal:door"]).int());
        let is_left = signals == 1 && (1..=1_000).contains(&left);
        assert!(is_left || began.elapsed() >= Duration::from_secs(1), "{signals} signals for {left} ms");
        // One that held nothing wakes nobody.
        server.command(&["DEL", "lock-signal:door"]);
        assert_eq!(release(&*store, &lease).await, ReleaseReply::NotHeld);
        assert_eq!(server.command(&["EXISTS", "lock-signal:door"]), 0);
    }
}

/// Who may not wake others gives the lock up all the same.
#[tokio::test]
async fn a_release_does_not_need_the_waking() {
    for (profile, forbidden) in [("spring&prefix=app", "publish"), ("python-redis-lock", "lpush")] {
        let server = Lent::alone();
        let store = open(&server, profile).await;
        let lease = take(&*store).await;
        assert_eq!(server.command(&["ACL", "SETUSER", "default", &format!("-{forbidden}")]), "OK");
        assert_eq!(release(&*store, &lease).await, ReleaseReply::Released);
        assert_eq!(server.command(&["DBSIZE"]), 0, "{profile}");
        // Nor one who has a right to the key alone.
        let key = if profile.starts_with("spring") { "~app:*" } else { "~lock:*" };
        assert_eq!(server.command(&["ACL", "SETUSER", "keys", "on", "nopass", "+@all", key]), "OK");
        let url = server.url().replace("redis://", "redis://keys:any@");
        let store = Options::parse(&format!("{url}?scheme=set-nx&profile={profile}")).unwrap().open().await.unwrap();
        let lease = take(&*store).await;
        assert_eq!(release(&*store, &lease).await, ReleaseReply::Released, "{profile}");
    }
}

/// By the change itself, whatever command makes it; also after the connection was replaced. With the profile of a library
/// that polls, ours polls as well: else it would leave the others no turn.
#[tokio::test]
async fn a_waiter_hears_of_a_release_that_says_nothing() {
    for (profile, key, wakes) in [
        ("spring&prefix=app", "app:door", true),
        ("python-redis-lock", "lock:door", true),
        ("rueidislock-one", "rueidislock:0:door", true),
        ("rueidislock", "rueidislock:1:door", true),
        ("redis-py", "door", false),
    ] {
        let server = Lent::alone();
        let store = open(&server, profile).await;
        let all: &[&str] = if profile == "rueidislock" { &KEYS[1..] } else { &[key] };
        let theirs = || all.iter().for_each(|key| assert_eq!(server.command(&["SET", key, "theirs", "PX", "60000"]), "OK"));
        theirs();
        let held = request("door");
        let mut notices = store.watch(&held).await.unwrap();
        let polls = async || match store.acquire(&held).await.unwrap() {
            AcquireReply::Busy(busy) => busy.poll_interval,
            other => panic!("{profile}: {other:?}"),
        };
        let slow = Duration::from_secs(1);
        assert_eq!(polls().await >= slow, wakes, "{profile}");
        if !wakes {
            assert!(server.cli("INFO clients").contains("tracking_clients:0"), "{profile}");
            continue;
        }
        server.command(&["DEL", key]);
        assert_eq!(timeout(PATIENCE, notices.next()).await.unwrap(), Some(Notice::Changed), "{profile}");
        theirs();
        polls().await;
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        assert_eq!(timeout(PATIENCE, notices.next()).await.unwrap(), Some(Notice::Changed), "{profile}: it has to look");
        // The end of a lease is a change as well.
        server.command(&["PEXPIRE", key, "2000"]);
        assert!(polls().await >= slow, "{profile}");
        while server.command(&["EXISTS", key]) == 1 {
            // The loss of the connection may have been noticed twice.
            assert_eq!(timeout(PATIENCE, notices.next()).await.unwrap(), Some(Notice::Changed), "{profile}");
        }
    }
}

/// Where the server tracks nothing for this user, a waiter polls. Nothing else changes.
#[tokio::test]
async fn a_waiter_that_is_told_nothing_polls() {
    for (profile, forbidden) in [("python-redis-lock", "tracking"), ("python-redis-lock", "caching"), ("rueidislock", "tracking")]
    {
        let server = Lent::alone();
        let store = open(&server, profile).await;
        assert_eq!(server.command(&["ACL", "SETUSER", "default", &format!("-client|{forbidden}")]), "OK");
        let (held, waits) = (take(&*store).await, request("door"));
        let notices = store.watch(&waits).await;
        assert!(notices.is_ok(), "{profile}");
        let AcquireReply::Busy(busy) = store.acquire(&waits).await.unwrap() else { panic!("{profile}: it is held") };
        assert!(busy.poll_interval < Duration::from_secs(1), "{profile}: {busy:?}");
        assert_eq!(release(&*store, &held).await, ReleaseReply::Released);
        assert!(matches!(store.acquire(&waits).await.unwrap(), AcquireReply::Granted(_)), "{profile}");
    }
}

/// A repeated request finds itself granted, and never shortens what was renewed since. A supplied token does not.
#[tokio::test]
async fn a_repetition_is_one_grant() {
    let server = Lent::alone();
    let store = open(&server, "rueidislock").await;
    let held = request("door");
    for _ in 0..2 {
        assert!(matches!(store.acquire(&held).await.unwrap(), AcquireReply::Granted(_)));
        server.command(&["PEXPIRE", KEYS[1], "600000"]);
        server.command(&["PEXPIRE", KEYS[2], "10"]);
    }
    assert!(server.command(&["PTTL", KEYS[1]]).int() > 60_000);
    assert!(server.command(&["PTTL", KEYS[0]]).int() > 10);
    let supplied = held.clone().with_generated(false);
    assert!(matches!(store.acquire(&supplied).await.unwrap(), AcquireReply::Busy(_)));
    let next = request("door").with_from(held.owner.clone());
    assert!(matches!(store.acquire(&next).await.unwrap(), AcquireReply::Granted(_)));
    assert_eq!(values(&server), [next.owner.to_string().as_str(); 3]);
    assert!(matches!(store.acquire(&request("door").with_from(held.owner)).await.unwrap(), AcquireReply::Busy(_)));
}
