//! Settings of a URL, as the server sees them.

use std::time::Duration;

use tenure::ErrorKind;
use tenure_testkit::zookeeper::TICK;
use tenure_testkit::{ZooKeeperServer as Server, wait_until};
use tenure_zookeeper::Options;

use crate::requests::{busy, granted, joining, lease, owner, request};
use crate::{gone, open};

/// With its nodes closed to all but its user.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_acl_keeps_others_out() {
    let chroot = Server::fresh_chroot();
    let plain = Server::shared().url(&chroot);
    let closed = plain.replace("://", "://me:s%40cret@") + "?acl=creator&prefix=closed";
    let (store, same) = (open(&closed).await, open(&closed).await);
    let held = owner();
    granted(&store, &request("x", &held)).await;
    busy(&same, &request("x", &owner())).await;
    let stranger = open(&(plain.clone() + "?prefix=closed&timeout=10s")).await;
    let error = stranger.acquire(&request("x", &owner())).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Refused && error.to_string().contains("ACL"), "{error}");
    store.release(&lease("x", &held), Duration::ZERO).await.unwrap();
    let error = Options::parse(&(plain + "?acl=creator")).unwrap().open().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("password"), "{error}");
}

/// A name may be a part of another, and a store with a prefix lists its own alone.
#[tokio::test(flavor = "multi_thread")]
async fn names_are_paths_below_the_chroot() {
    let url = Server::shared().url(&Server::fresh_chroot());
    let (all, some) = (open(&url).await, open(&(url.clone() + "?prefix=a/b")).await);
    for name in ["a", "a/b", "a/b/c"] {
        granted(&all, &request(name, &owner())).await;
    }
    busy(&some, &request("c", &owner())).await;
    let names = async |store: &dyn tenure::store::Store| {
        let mut names: Vec<_> = store.inspect(None).await.unwrap().iter().map(|entry| entry.name.to_string()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&*all).await, ["a", "a/b", "a/b/c"]);
    assert_eq!(names(&*some).await, ["c"]);
    granted(&all, &request("zookeeper/x", &owner())).await;
    for bad in ["/a", "a//b", "a/..", "a/lock-0000000001"] {
        let error = all.acquire(&request(bad, &owner())).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && !error.may_have_been_applied(), "{error}");
    }
}

/// One in reserve, one because sessions end at whole ticks, and one until the leader hears.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_may_end_three_ticks_late() {
    assert_eq!(open(&Server::shared().url(&Server::fresh_chroot())).await.features().late_end, 3 * TICK);
}

/// The server has its shortest and its longest, of 2 and, here, 600 ticks.
#[tokio::test(flavor = "multi_thread")]
async fn a_ttl_is_what_the_server_keeps() {
    let store = open(&(Server::shared().url(&Server::fresh_chroot()) + "?timeout=5s")).await;
    assert_eq!(store.features().min_ttl, Duration::from_millis(400));
    let longest = request("x", &owner()).with_ttl(Duration::from_millis(119_800));
    assert_eq!(granted(&store, &longest).await.ttl, longest.ttl, "the longest, less a tick");
    let held = request("y", &owner()).with_ttl(Duration::from_secs(10));
    granted(&store, &held).await;
    for ttl in [Duration::from_secs(3_600), Duration::MAX] {
        let refused = store.acquire(&request("z", &owner()).with_ttl(ttl)).await.unwrap_err();
        let renewal = store.renew(&[held.lease().with_ttl(ttl)]).await.remove(0).unwrap_err();
        for error in [refused, renewal] {
            assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("1m59s"), "{error}");
            assert!(!error.may_have_been_applied());
        }
    }
    gone(&*store, "y", "a renewal that was refused has prolonged it").await;
    gone(&*store, "z", "it was refused").await;
    let unreachable = Options::parse("zookeeper://127.0.0.1:1").unwrap().open().await.unwrap_err();
    assert_eq!(unreachable.kind(), ErrorKind::Unreachable, "{unreachable}");
}

/// An administrator gives a team a path of its own, and no right to the one above it.
#[tokio::test(flavor = "multi_thread")]
async fn the_nodes_above_the_chroot_may_be_closed() {
    let above = Server::fresh_chroot();
    let login = |url: String| url.replace("://", "://admin:secret@");
    let closed = open(&(login(Server::shared().url(&above)) + "?acl=creator")).await;
    granted(&closed, &request("closed", &owner())).await;
    let inner = Server::shared().url(&format!("{above}/team"));
    let theirs = open(&login(inner.clone())).await;
    granted(&theirs, &request("first", &owner())).await;
    let team = open(&inner).await;
    let held = owner();
    granted(&team, &request("a/b", &held)).await;
    stays_closed(&above).await;
    team.release(&lease("a/b", &held), Duration::ZERO).await.unwrap();
}

/// The closed node itself takes no locks of others, and says so.
async fn stays_closed(above: &str) {
    let outside = open(&Server::shared().url(above)).await;
    let error = outside.acquire(&request("x", &owner())).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Refused && !error.may_have_been_applied(), "{error}");
}

/// A server takes 60 connections of one address by default, and each ttl has a session of its own.
#[tokio::test(flavor = "multi_thread")]
async fn leases_of_many_ttls_leave_few_sessions() {
    let server = Server::start();
    let store = open(&(server.url("app") + "?timeout=5s")).await;
    let kept = request("kept", &owner());
    granted(&store, &kept).await;
    for ttl in 1..=20 {
        let held = request("x", &owner()).with_ttl(Duration::from_millis(1_000 + ttl));
        granted(&store, &held).await;
        store.release(&held.lease(), Duration::ZERO).await.unwrap();
    }
    let connections = || server.four_letters("cons").lines().filter(|line| line.contains("sid=")).count();
    wait_until(Duration::from_secs(10), "unused sessions to be closed", || connections() <= 6);
    assert!(connections() >= 1, "{}", server.four_letters("cons"));
    busy(&store, &request("kept", &owner())).await;
}

/// A server takes 60 connections of one address by default. Every wait begins with a try.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_waits_has_one_connection() {
    let server = Server::start();
    let holder = open(&server.url("app")).await;
    granted(&holder, &request("x", &owner())).await;
    let connections = || server.four_letters("cons").lines().filter(|line| line.contains("sid=")).count();
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let store = open(&server.url("app")).await;
        busy(&store, &request("x", &owner())).await;
        store.inspect(None).await.unwrap();
        let place = joining("x");
        busy(&store, &place).await;
        waiting.push((store, place));
    }
    wait_until(Duration::from_secs(5), "one connection of each", || connections() == 1 + waiting.len());
}
