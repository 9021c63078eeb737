//! Settings of a URL, as the server sees them.

use std::time::Duration;

use tenure::ErrorKind;
use tenure_testkit::ZooKeeperServer as Server;
use tenure_zookeeper::Options;

use crate::open;
use crate::requests::{busy, granted, lease, owner, request};

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
    let stranger = open(&(plain.clone() + "?prefix=closed")).await;
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
    for bad in ["/a", "a//b", "a/..", "a/lock-0000000001"] {
        let error = all.acquire(&request(bad, &owner())).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && !error.may_have_been_applied(), "{error}");
    }
}

/// The server has its shortest and its longest, of 2 and, here, 600 ticks.
#[tokio::test(flavor = "multi_thread")]
async fn a_ttl_is_what_the_server_keeps() {
    let store = open(&Server::shared().url(&Server::fresh_chroot())).await;
    assert_eq!(store.features().min_ttl, Duration::from_millis(400));
    let held = request("x", &owner()).with_ttl(Duration::from_secs(3_600));
    let kept = granted(&store, &held).await.ttl;
    assert_eq!(kept, Duration::from_millis(119_800), "the longest, less a tick");
    let error = store.renew(&[held.lease()]).await.remove(0).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("maxSessionTimeout"), "{error}");
    let unreachable = Options::parse("zookeeper://127.0.0.1:1").unwrap().open().await.unwrap_err();
    assert_eq!(unreachable.kind(), ErrorKind::Unreachable, "{unreachable}");
}
