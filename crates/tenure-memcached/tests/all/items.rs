//! The items as other clients see them.

use std::time::Duration;

use tenure::store::{AcquireReply, ReleaseReply, RenewReply};
use tenure::{ErrorKind, Lease, Locker, Owner};
use tenure_testkit::MemcachedServer;

use crate::requests::{busy, granted, joining, lease, owner, request};
use crate::{behind_proxy, open};

/// Answer to `get`.
fn get(server: &MemcachedServer, key: &str) -> Vec<String> {
    server.ask(&format!("get {key}"), None)
}

/// As Laravel, Symfony and others keep a lock: the token alone, without flags, for whole seconds.
#[tokio::test]
async fn add_keeps_the_token_alone() {
    let server = MemcachedServer::start();
    let store = open(&(server.url() + "?scheme=add&prefix=app:")).await;
    let given = request("x", &Owner::from_bytes(&b"token"[..])).with_generated(false).with_ttl(Duration::from_millis(1_500));
    let AcquireReply::Granted(grant) = store.acquire(&given).await.unwrap() else { panic!("a free name") };
    assert_eq!(grant.ttl, Duration::from_millis(1_500), "no more is claimed than was asked for");
    assert_eq!(get(&server, "app:x"), ["VALUE app:x 0 5", "token"]);
    assert_eq!(server.ask("add app:x 0 10 1\r\ny", Some(1)), ["NOT_STORED"], "their add is refused");
    assert_eq!(store.release(&given.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    assert_eq!(server.ask("add app:x 0 10 5\r\ntheir", Some(1)), ["STORED"]);
    assert_eq!(busy(&store, &request("x", &owner())).await.holder.unwrap().owner.as_bytes(), b"their");
    assert_eq!(store.release(&given.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
    assert_eq!(get(&server, "app:x"), ["VALUE app:x 0 5", "their"]);
}

/// Names are keys as they are, but for spaces.
#[tokio::test]
async fn a_name_is_its_own_key() {
    let server = MemcachedServer::start();
    let store = open(&server.url()).await;
    for (name, listed) in [("plain", "key=plain "), ("ключ", "key=%D0%BA%D0%BB%D1%8E%D1%87 "), ("a b", "key=a%2520b ")] {
        granted(&store, &request(name, &owner())).await;
        let keys = server.ask("lru_crawler metadump hash", None);
        assert!(keys.iter().any(|key| key.starts_with(listed)), "{listed} in {keys:?}");
    }
    let error = store.acquire(&request(&format!("{} b", "n".repeat(250)), &owner())).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("254"), "{error}");
}

/// Nothing is left of a lock that nobody holds or waits for.
#[tokio::test]
async fn a_released_name_leaves_no_item() {
    let server = MemcachedServer::start();
    let store = open(&server.url()).await;
    let (held, waits) = (owner(), joining("x"));
    granted(&store, &request("x", &held)).await;
    assert_eq!(busy(&store, &waits).await.position, Some(0));
    store.release(&lease("x", &held), Duration::ZERO).await.unwrap();
    granted(&store, &waits).await;
    store.release(&waits.lease(), Duration::ZERO).await.unwrap();
    assert_eq!(server.stat("curr_items"), 0);
}

/// The server counts whole seconds.
#[tokio::test]
async fn a_ttl_is_rounded_up_and_one_below_a_second_is_refused() {
    let server = MemcachedServer::start();
    for scheme in ["cas", "add"] {
        let store = open(&(server.url() + "?scheme=" + scheme)).await;
        for (millis, least, most) in [(1_000, 1, 6), (1_500, 2, 7), (2_001, 3, 8)] {
            let (name, ttl) = (format!("{scheme}{millis}"), Duration::from_millis(millis));
            granted(&store, &request(&name, &owner()).with_ttl(ttl)).await;
            let answer = server.ask(&format!("mg {name} t"), Some(1)).remove(0);
            let left: u64 = answer.strip_prefix("HD t").and_then(|left| left.parse().ok()).expect("an item");
            assert!((least..=most).contains(&left), "scheme={scheme}: {left} s for {ttl:?}");
        }
        let in_time = open(&format!("{}?scheme={scheme}&timeout=100ms", server.url())).await;
        let brief = Locker::new(in_time).mutex("brief").ttl(Duration::from_millis(999)).try_acquire().await;
        assert_eq!(brief.unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(server.ask("mg brief", Some(1)), ["EN"]);
    }
}

/// 30 days is where memcached takes a span for a point in time.
#[tokio::test]
async fn long_leases_are_no_points_in_time() {
    let server = MemcachedServer::start();
    for scheme in ["cas", "add"] {
        let store = open(&(server.url() + "?scheme=" + scheme)).await;
        for days in [29, 30, 31, 400] {
            let ttl = Duration::from_secs(days * 86_400);
            let request = request(&format!("{scheme} {days}"), &owner()).with_ttl(ttl);
            granted(&store, &request).await;
            assert_eq!(store.renew(&[request.lease()]).await.remove(0).unwrap(), RenewReply::Renewed);
            let left = store.inspect(Some(&request.name)).await.unwrap()[0].holders[0].ttl.unwrap();
            assert!(left <= ttl && left + Duration::from_secs(5) > ttl, "{scheme}: {left:?} of {ttl:?}");
        }
    }
}

/// A record of a later version is left as it is.
#[tokio::test]
async fn a_record_of_another_version_is_refused() {
    let server = MemcachedServer::start();
    let store = open(&server.url()).await;
    server.set_bytes("x", b"tenure:record:2\nwhatever", 0);
    let error = store.acquire(&request("x", &owner())).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Mismatch && !error.may_have_been_applied(), "{error:?}");
    assert_eq!(get(&server, "x"), ["VALUE x 0 24", "tenure:record:2", "whatever"]);
    assert!(store.inspect(None).await.unwrap().is_empty(), "a list leaves it out");
}

/// Its item is known from the grant. What others have changed meanwhile is read.
#[tokio::test]
async fn a_release_asks_once() {
    let (proxy, store, other) = behind_proxy().await;
    let asks = async |lease: &Lease| {
        let before = proxy.commands();
        assert_eq!(store.release(lease, Duration::ZERO).await.unwrap(), ReleaseReply::Released);
        proxy.commands() - before
    };
    let held = owner();
    granted(&store, &request("x", &held)).await;
    assert_eq!(asks(&lease("x", &held)).await, 1);
    assert!(other.inspect(None).await.unwrap().is_empty());
    granted(&store, &request("x", &held)).await;
    assert_eq!(store.renew(&[lease("x", &held)]).await.remove(0).unwrap(), RenewReply::Renewed);
    assert_eq!(asks(&lease("x", &held)).await, 1);
    granted(&store, &request("x", &held)).await;
    let waiting = joining("x");
    busy(&other, &waiting).await;
    assert_eq!(asks(&lease("x", &held)).await, 3);
    granted(&other, &waiting).await;
}
