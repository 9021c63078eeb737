//! Holders as others see them.

use std::time::Duration;

use futures_util::StreamExt as _;
use tenure::store::{Enqueue, Notice, RenewReply, Store};
use tenure::{Name, Share};
use tenure_testkit::EtcdCluster;
use tokio::time::timeout;

use crate::requests::{TTL, busy, granted, joining, lease, owner, request};
use crate::{PATIENCE, behind_proxy, open};

/// A renewal that writes the key leaves the number that others see.
#[tokio::test]
async fn the_fence_that_is_shown_is_the_holders() {
    let (etcd, prefix) = (EtcdCluster::shared(), EtcdCluster::fresh_prefix());
    let (store, other) = (open(&etcd.url(&prefix)).await, open(&etcd.url(&prefix)).await);
    let shown = async || other.inspect(None).await.unwrap().remove(0).holders.remove(0).fence;
    let held = owner();
    let fence = granted(&store, &request("x", &held)).await.fence;
    assert_eq!(shown().await, fence);
    // A longer ttl needs another lease.
    let longer = lease("x", &held).with_fence(fence).with_ttl(2 * TTL);
    assert_eq!(store.renew(&[longer]).await.remove(0).unwrap(), RenewReply::Renewed);
    assert_eq!(shown().await, fence);
    // The owner may not know its fence.
    let longest = lease("x", &held).with_ttl(3 * TTL);
    assert_eq!(store.renew(&[longest]).await.remove(0).unwrap(), RenewReply::Renewed);
    assert_eq!(shown().await, fence);
    let waiting = joining("x");
    busy(&store, &waiting).await;
    let mut notices = store.watch(&waiting).await.unwrap();
    let (notice, _) = tokio::join!(timeout(PATIENCE, notices.next()), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        other.release(&lease("x", &held), Duration::ZERO).await
    });
    let Some(Notice::Granted { fence, .. }) = notice.expect("nobody told the waiter") else { panic!("it is not served") };
    assert_eq!(shown().await, None, "nothing says yet which number it has");
    assert_eq!(store.renew(&[waiting.lease().with_fence(fence)]).await.remove(0).unwrap(), RenewReply::Renewed);
    assert_eq!(shown().await, Some(fence));
    // Renewed by somebody who knows the token alone.
    store.release(&waiting.lease(), Duration::ZERO).await.unwrap();
    let (first, second) = (owner(), joining("x"));
    granted(&store, &request("x", &first)).await;
    busy(&store, &second).await;
    other.release(&lease("x", &first), Duration::ZERO).await.unwrap();
    assert_eq!(other.renew(&[second.lease()]).await.remove(0).unwrap(), RenewReply::Renewed);
    assert_eq!(shown().await, None);
}

/// A heartbeat may have confirmed the hold without an answer. Its number is the fence, and no later one.
#[tokio::test]
async fn a_notice_has_the_fence_that_the_store_keeps() {
    let (etcd, prefix) = (EtcdCluster::shared(), EtcdCluster::fresh_prefix());
    let (store, other) = (open(&etcd.url(&prefix)).await, open(&etcd.url(&prefix)).await);
    let permits = |weight| Share::permits(weight, 2).unwrap();
    let (held, waiting) = (request("x", &owner()).with_share(permits(2)), joining("x").with_share(permits(1)));
    granted(&store, &held).await;
    busy(&store, &waiting).await;
    let mut notices = store.watch(&waiting).await.unwrap();
    other.release(&held.lease(), Duration::ZERO).await.unwrap();
    let kept = granted(&other, &waiting.clone().with_enqueue(Enqueue::Heartbeat)).await.fence;
    granted(&other, &request("y", &owner())).await;
    let notice = timeout(PATIENCE, notices.next()).await.expect("nobody told the waiter");
    let Some(Notice::Granted { fence, .. }) = notice else { panic!("it is not served: {notice:?}") };
    assert_eq!(Some(fence), kept);
    let shown = other.inspect(None).await.unwrap().remove(0).holders.remove(0).fence;
    assert_eq!(shown, kept);
}

/// A renewal that moves it to another lease, between the two questions of who asks, hides no holder.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_changes_its_lease_is_shown() {
    let (proxy, behind, store) = behind_proxy().await;
    let (held, name) = (owner(), Name::new("x").unwrap());
    granted(&store, &request("x", &held)).await;
    for (times, name) in [(2, Some(&name)), (3, None)] {
        let before = proxy.commands();
        proxy.hold_replies();
        let (shown, renewed) = tokio::join!(behind.inspect(name), async {
            // The first question is answered, and the answer is on its way.
            proxy.reached(before + 1).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            let renewed = store.renew(&[lease("x", &held).with_ttl(times * TTL)]).await.remove(0).unwrap();
            proxy.heal();
            renewed
        });
        assert_eq!(renewed, RenewReply::Renewed);
        let shown = shown.unwrap();
        assert!(shown.len() == 1 && shown[0].holders.len() == 1, "the holder is left out: {shown:?}");
    }
}
