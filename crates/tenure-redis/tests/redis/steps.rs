//! Steps that the tests of a store share.

use std::sync::Arc;
use std::time::Duration;

use tenure::store::{AcquireReply, Busy, Enqueue, ReleaseReply, RenewReply, Request, Store};
use tenure::{Fence, Name, Owner, Share};
use tenure_redis::Options;
use tenure_testkit::RedisServer;

use crate::{LONG, PATIENCE};

/// For a mutex, by an owner of its own.
pub(crate) fn request(name: &str) -> Request {
    Request::new(Name::new(name).unwrap(), Owner::generate("web-1").unwrap(), Share::MUTEX, LONG)
}

pub(crate) fn shared(name: &str, share: Share) -> Request {
    request(name).with_share(share)
}

/// The same, in a queue.
pub(crate) fn joining(request: Request) -> Request {
    request.with_enqueue(Enqueue::Join { entry_ttl: LONG, handoff_ttl: PATIENCE })
}

pub(crate) async fn open(server: &RedisServer, parameters: &str) -> Arc<dyn Store> {
    open_url(&format!("{}?{parameters}", server.url())).await
}

pub(crate) async fn open_url(url: &str) -> Arc<dyn Store> {
    Options::parse(url).unwrap().open().await.unwrap()
}

pub(crate) async fn takes(store: &dyn Store, request: &Request) -> Option<Fence> {
    match store.acquire(request).await.unwrap() {
        AcquireReply::Granted(grant) => grant.fence,
        other => panic!("{:?}: {other:?}", request.share),
    }
}

pub(crate) async fn fence_of(store: &dyn Store, request: &Request) -> Fence {
    takes(store, request).await.expect("it counts its grants")
}

pub(crate) async fn is_busy(store: &dyn Store, request: &Request) -> Busy {
    match store.acquire(request).await.unwrap() {
        AcquireReply::Busy(busy) => busy,
        other => panic!("{:?}: {other:?}", request.share),
    }
}

pub(crate) async fn releases(store: &dyn Store, request: &Request) -> ReleaseReply {
    store.release(&request.lease(), Duration::ZERO).await.unwrap()
}

pub(crate) async fn gives_up(store: &dyn Store, request: &Request) {
    assert_eq!(releases(store, request).await, ReleaseReply::Released);
}

pub(crate) async fn renewal(store: &dyn Store, request: &Request) -> RenewReply {
    store.renew(&[request.lease()]).await.remove(0).unwrap()
}
