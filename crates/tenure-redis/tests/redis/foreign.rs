//! Objects of Redisson at the key of a lock: refused by their names, with the URL that shares them.

use tenure::store::{Request, Store};
use tenure::{Error, ErrorKind, Name, Owner, Share};
use tenure_redis::Options;
use tenure_testkit::RedisServer;

use crate::LONG;
use crate::subject::Lent;

/// A thread of a client of Redisson.
const THEIRS: &str = "00d0c0f4-3b6b-4d1c-8b7e-7f1d6f6f2a11:48";

const NATIVE: [&str; 2] = ["", "?scheme=set-nx"];
const REDISSON: [&str; 2] = ["?scheme=redisson", "?scheme=redisson-fair"];

async fn open(server: &RedisServer, parameters: &str) -> std::sync::Arc<dyn Store> {
    let separator = if parameters.is_empty() { "?" } else { "&" };
    Options::parse(&format!("{}{parameters}{separator}timeout=10s", server.url())).unwrap().open().await.unwrap()
}

async fn refusal(store: &dyn Store, name: &str, share: Share) -> Error {
    let request = Request::new(Name::new(name).unwrap(), Owner::generate("web-1").unwrap(), share, LONG);
    let error = store.acquire(&request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    error
}

/// The text of an error contains all of these.
fn says(error: &Error, parts: &[&str]) -> bool {
    let text = error.to_string();
    parts.iter().all(|part| text.contains(part))
}

type Command = Vec<Vec<u8>>;

/// Each with what it is called, and the parameter of the URL that shares it, if there is one.
fn objects() -> Vec<(Command, &'static str, Option<&'static str>)> {
    let words = |words: &[&str]| words.iter().map(|word| word.as_bytes().to_vec()).collect::<Command>();
    let id = [0xff; 16];
    let permit = [&[16][..], &id, &[2, 0, 0, 0]].concat();
    let group = ["HSET", "x", "Jh0", THEIRS, &format!("Jh0:{THEIRS}:lock_count"), "1", &format!("Jh0:{THEIRS}:expire_time"), "9"];
    vec![
        (words(&["HSET", "x", THEIRS, "1"]), "an RLock", Some("redisson")),
        (words(&["HSET", "x", "mode", "read", THEIRS, "1"]), "an RReadWriteLock", Some("redisson")),
        (words(&["HSET", "x", "rate", "5", "interval", "1000", "type", "0"]), "an RRateLimiter", None),
        (words(&["HSET", "x", "rate", "5", "interval", "1000", "keepAliveTime", "0", "type", "1"]), "an RRateLimiter", None),
        (words(&group), "a group of getMultiLock", None),
        (
            [words(&["ZADD", "{x}:timeout", "922337203685477"]), vec![id.to_vec()]].concat(),
            "an RPermitExpirableSemaphore",
            Some("redisson"),
        ),
        ([words(&["ZADD", "{x}:permits", "1"]), vec![permit.clone()]].concat(), "an RRateLimiter", None),
        (
            [words(&["ZADD", "{x}:permits:00d0c0f4-3b6b-4d1c-8b7e-7f1d6f6f2a11", "1"]), vec![permit]].concat(),
            "an RRateLimiter",
            None,
        ),
        (words(&["RPUSH", "redisson_lock_queue:{x}", THEIRS]), "an RFairLock", Some("redisson-fair")),
        (words(&["ZADD", "redisson_lock_timeout:{x}", "9", THEIRS]), "an RFairLock", Some("redisson-fair")),
    ]
}

/// The refusal names the object and the name that it belongs to, and the scheme that shares it.
#[tokio::test]
async fn objects_of_redisson_are_named() {
    let server = Lent::alone();
    for (command, what, scheme) in objects() {
        let command: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        server.command(&["FLUSHALL"]);
        assert_ne!(server.command(&command), 0);
        let key = std::str::from_utf8(command[1]).unwrap();
        for parameters in NATIVE {
            let store = open(&server, parameters).await;
            let error = refusal(&*store, key, Share::MUTEX).await;
            assert!(says(&error, &[what, "of Redisson"]), "{parameters}: {error}");
            assert_eq!(
                says(&error, &[&format!("put scheme={} into", scheme.unwrap_or("redisson"))]),
                scheme.is_some(),
                "{error}"
            );
            // A key beside a name: that is the one to ask for.
            assert!(says(&error, &[r#""x""#]), "{error}");
            // Nobody but the native store looks at a name of such keys.
            if parameters.is_empty() {
                let error = store.inspect(Some(&Name::new(key).unwrap())).await.unwrap_err();
                assert!(error.kind() == ErrorKind::Mismatch && says(&error, &[what, "of Redisson"]), "{error}");
            }
        }
        for parameters in REDISSON {
            let store = open(&server, parameters).await;
            // These it shares, so that the name is busy.
            if ["an RLock", "an RReadWriteLock"].contains(&what) {
                continue;
            }
            let error = refusal(&*store, key, Share::MUTEX).await;
            assert!(says(&error, &[what, "of Redisson", r#""x""#]), "{parameters}: {error}");
            let put = format!("put scheme={} into", scheme.unwrap_or("redisson"));
            let shares = scheme.is_some_and(|scheme| parameters != format!("?scheme={scheme}"));
            assert_eq!(says(&error, &[&put]), shares, "{parameters}: {error}");
            let error = store.inspect(Some(&Name::new(key).unwrap())).await.unwrap_err();
            assert!(error.kind() == ErrorKind::Mismatch && says(&error, &[what, "of Redisson"]), "{parameters}: {error}");
        }
    }
}

/// Permits are asked for where a lock is, and the other way round: the object is named, and no URL helps.
#[tokio::test]
async fn another_kind_of_redisson_is_named() {
    let server = Lent::alone();
    let permits = Share::permits(1, 5).unwrap();
    for (share, command, what) in [
        (permits, &["HSET", "x", THEIRS, "1"][..], "an RLock of Redisson"),
        (permits, &["HSET", "x", "mode", "read", THEIRS, "1"], "an RReadWriteLock of Redisson"),
        (Share::MUTEX, &["SET", "x", "5"], "an RSemaphore"),
        (Share::READ, &["SET", "x", "-3"], "an RSemaphore"),
    ] {
        server.command(&["FLUSHALL"]);
        server.command(command);
        let error = refusal(&*open(&server, "?scheme=redisson").await, "x", share).await;
        assert!(says(&error, &[what]) && !says(&error, &["put scheme="]), "{share:?}: {error}");
    }
}

/// A number without an expiry is nobody's lock by its looks.
#[tokio::test]
async fn a_number_without_an_expiry_may_be_a_semaphore() {
    let server = Lent::alone();
    let store = open(&server, "").await;
    let permits = Share::permits(1, 5).unwrap();
    let all = ["an RSemaphore", "an RPermitExpirableSemaphore", "an RCountDownLatch", "put scheme=redisson into"];
    for (number, expiry, is_named) in [("5", "", true), ("-3", "", true), ("5", "60000", false), ("theirs", "", false)] {
        server.command(&["SET", "x", number]);
        if !expiry.is_empty() {
            server.command(&["PEXPIRE", "x", expiry]);
        }
        let error = refusal(&*store, "x", permits).await;
        assert_eq!(says(&error, &all), is_named, "{number} {expiry}: {error}");
    }
}

/// An application's own objects are not taken for Redisson's.
#[tokio::test]
async fn other_objects_are_not_named() {
    let server = Lent::alone();
    for command in [
        &["HSET", "x", "rate", "5", "interval", "1000"][..],
        &["HSET", "x", "a:lock_count", "5", "a", "b"],
        &["HSET", "x", "color", "red", "size", "9"],
        &["ZADD", "{x}:timeout", "1", "somebody"],
        &["ZADD", "{x}:permits", "1", "somebody"],
        &["ZADD", "{x}:permitsé", "1", "somebody"],
        &["ZADD", "x:timeout", "1", "somebody-of-16-b"],
        &["ZADD", "redisson_lock_timeout:x", "1", THEIRS],
        &["RPUSH", "redisson_lock_queue:{x}", "somebody"],
        &["SADD", "x", THEIRS],
    ] {
        server.command(&["FLUSHALL"]);
        assert_eq!(server.command(&["EXISTS", command[1]]), 0);
        server.command(command);
        for parameters in NATIVE.iter().chain(&REDISSON) {
            let error = refusal(&*open(&server, parameters).await, command[1], Share::MUTEX).await;
            assert!(!says(&error, &["of Redisson:"]) && !says(&error, &["put scheme="]), "{command:?} {parameters}: {error}");
        }
    }
}

/// Also if several names are asked for at once, and if replicas have to confirm a grant.
#[tokio::test]
async fn an_object_among_several_names_is_named() {
    let server = Lent::alone();
    server.command(&["HSET", "x", THEIRS, "1"]);
    let store = open(&server, "").await;
    let asks = |name: &str| Request::new(Name::new(name).unwrap(), Owner::generate("web-1").unwrap(), Share::MUTEX, LONG);
    let error = store.acquire_all(&[asks("a"), asks("x")]).await.unwrap_err();
    assert!(says(&error, &[r#""x" is an RLock of Redisson"#]), "{error}");
    let error = refusal(&*open(&server, "?durability=replicas:1").await, "x", Share::MUTEX).await;
    assert!(says(&error, &[r#""x" is an RLock of Redisson"#]), "{error}");
}
