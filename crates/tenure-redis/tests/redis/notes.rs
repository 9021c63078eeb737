//! The number of a grant beside its name: who sees it, and that nothing depends on it.

use std::time::Duration;

use tenure::store::{AcquireReply, ReleaseReply, RenewReply, Request, Store};
use tenure::{BootTime, Fence, Holder, Lease, Name, Owner, Share};
use tenure_redis::RedisStore;
use tenure_testkit::RedisServer;

use crate::{LONG, store};

/// Key beside the name `door`.
const BESIDE: &str = "{CFEH}:s:door";

fn kinds() -> [Share; 4] {
    [Share::MUTEX, Share::READ, Share::WRITE, Share::permits(2, 3).unwrap()]
}

fn request(share: Share) -> Request {
    Request::new(Name::new("door").unwrap(), Owner::generate("notes").unwrap(), share, LONG)
}

async fn fence(store: &RedisStore, request: &Request) -> Fence {
    match store.acquire(request).await.unwrap() {
        AcquireReply::Granted(grant) => grant.fence.unwrap(),
        busy => panic!("{:?}: {busy:?}", request.share),
    }
}

async fn holders(store: &RedisStore) -> Vec<Holder> {
    store.inspect(None).await.unwrap().pop().map_or_else(Vec::new, |entry| entry.holders)
}

async fn renew(store: &RedisStore, lease: Lease) {
    assert_eq!(store.renew(&[lease]).await.remove(0).unwrap(), RenewReply::Renewed);
}

async fn release(store: &RedisStore, request: &Request) {
    assert_eq!(store.release(&request.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
}

/// The first grant of a process is noted with it, and a grant soon after by its first renewal.
#[tokio::test]
async fn a_grant_is_noted_at_once_or_by_its_renewal() {
    for share in kinds() {
        let server = RedisServer::start();
        let store = store(&server.url()).await;
        let (first, second) = (request(share), request(share));
        let (began, granted) = (BootTime::now(), fence(&store, &first).await);
        let holder = &holders(&store).await[0];
        assert_eq!((&holder.owner, holder.fence), (&first.owner, Some(granted)), "{share:?}");
        let held_for = BootTime::now().since(began);
        assert!(holder.age.unwrap() <= held_for + Duration::from_secs(1), "{holder:?} after {held_for:?}");
        release(&store, &first).await;
        assert_eq!(server.cli("KEYS *"), "tenure:fence", "{share:?}");

        let granted = fence(&store, &second).await;
        renew(&store, second.lease()).await;
        let noted = holders(&store).await[0].fence;
        assert!(noted.is_none() || BootTime::now().since(began) >= Duration::from_secs(1), "{share:?}: two in a second");
        renew(&store, second.lease().with_fence(granted)).await;
        assert_eq!(holders(&store).await[0].fence, Some(granted), "{share:?}");
        release(&store, &second).await;
        assert_eq!(server.cli("KEYS *"), "tenure:fence", "{share:?}");
    }
}

/// Who is refused hears what `show` would say.
#[tokio::test]
async fn a_busy_answer_has_the_fence_and_the_age_of_the_holder() {
    for share in [Share::MUTEX, Share::WRITE] {
        let server = RedisServer::start();
        let store = store(&server.url()).await;
        let (began, granted) = (BootTime::now(), fence(&store, &request(share)).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
        let AcquireReply::Busy(busy) = store.acquire(&request(share)).await.unwrap() else { panic!("{share:?} beside itself") };
        let (holder, held_for) = (busy.holder.unwrap(), BootTime::now().since(began));
        assert_eq!(holder.fence, Some(granted), "{share:?}");
        // The counter may have been raised a second before.
        let age = holder.age.unwrap();
        assert!((Duration::from_millis(20)..=held_for + Duration::from_secs(1)).contains(&age), "{age:?} of {held_for:?}");
    }
}

/// A holder that died leaves its number for the rest of its ttl. That is not the next one's.
#[tokio::test]
async fn the_number_of_another_grant_is_not_shown() {
    let server = RedisServer::start();
    let store = store(&server.url()).await;
    let (dead, foreign, next) = (request(Share::MUTEX), request(Share::MUTEX), request(Share::READ));
    fence(&store, &dead).await;
    assert_eq!(server.cli(&format!("EXISTS {BESIDE}")), "1", "{}", server.cli("KEYS *"));
    server.cli(&format!("SET door {} XX PX 60000", foreign.owner));
    assert_eq!((holders(&store).await[0].fence, holders(&store).await[0].age), (None, None));
    server.cli("DEL door");
    let granted = fence(&store, &next).await;
    let [holder] = &holders(&store).await[..] else { panic!("one holds") };
    assert!(holder.fence.is_none_or(|noted| noted == granted), "{holder:?}");
    release(&store, &next).await;
    assert_eq!(server.cli("KEYS *"), "tenure:fence");
}

/// A downgrade is a new grant, with a new number.
#[tokio::test]
async fn the_number_of_a_downgrade_is_shown() {
    let server = RedisServer::start();
    let store = store(&server.url()).await;
    let writer = request(Share::WRITE);
    let reader = writer.clone().with_share(Share::READ);
    let written = fence(&store, &writer).await;
    let read = fence(&store, &reader).await;
    assert!(read > written);
    assert_eq!(holders(&store).await[0].fence, Some(read));
}

/// Shares whose hash was lost are not renewed, so that the name becomes free. A note brings no hash back.
#[tokio::test]
async fn a_note_makes_no_lost_hash_anew() {
    let server = RedisServer::start();
    let store = store(&server.url()).await;
    let reader = request(Share::READ);
    let granted = fence(&store, &reader).await;
    for _ in 0..2 {
        server.cli(&format!("DEL {BESIDE}"));
        let answer = store.renew(&[reader.lease().with_fence(granted)]).await.remove(0).unwrap();
        assert_eq!((answer, server.cli(&format!("EXISTS {BESIDE}"))), (RenewReply::Gone, "0".to_owned()));
    }
}

/// Neither the holder nor other clients depend on what is noted.
#[tokio::test]
async fn nothing_depends_on_what_is_noted() {
    let server = RedisServer::start();
    let store = store(&server.url()).await;
    let held = request(Share::MUTEX);
    let granted = fence(&store, &held).await;
    assert_eq!(server.cli("GET door"), held.owner.to_string(), "other clients compare all of it");
    for spoilt in ["DEL", "SET", "HSET"] {
        match spoilt {
            "SET" => server.cli(&format!("SET {BESIDE} odd")),
            "HSET" => server.cli(&format!("DEL {BESIDE}")) + &server.cli(&format!("HSET {BESIDE} @{} odd", held.owner)),
            _ => server.cli(&format!("DEL {BESIDE}")),
        };
        renew(&store, held.lease().with_fence(granted)).await;
        assert!(holders(&store).await[0].fence.is_none_or(|fence| fence == granted), "after {spoilt}");
    }
    server.cli(&format!("DEL {BESIDE}"));
    server.cli("CONFIG SET maxmemory 1");
    renew(&store, held.lease().with_fence(granted)).await;
    server.cli("CONFIG SET maxmemory 0");
    // A clock that went back leaves numbers that are ahead of it.
    server.cli(&format!("HSET {BESIDE} @{} 9007199254740990", held.owner));
    assert_eq!(holders(&store).await[0].age, None);
    // An owner token that the caller supplied may be another's, whose number is not known.
    release(&store, &held).await;
    let supplied = request(Share::MUTEX).with_owner("job-7".parse().unwrap()).with_generated(false);
    let other = crate::store(&crate::patient(&server.url())).await;
    fence(&other, &supplied).await;
    assert_eq!(server.cli("KEYS *").lines().count(), 2, "the name and the counter");
}
