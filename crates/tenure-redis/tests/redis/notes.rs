//! The number of a grant beside its name: who sees it, and that nothing depends on it.

use std::time::Duration;

use tenure::store::{AcquireReply, RenewReply, Store};
use tenure::{BootTime, Holder, Lease, Share};
use tenure_redis::RedisStore;
use tenure_testkit::RedisServer;

use crate::steps::{fence_of, gives_up, renewal, shared};
use crate::{served, store};

/// Key beside the name `door`.
const BESIDE: &str = "{CFEH}:s:door";

fn kinds() -> [Share; 4] {
    [Share::MUTEX, Share::READ, Share::WRITE, Share::permits(2, 3).unwrap()]
}

async fn renew(store: &RedisStore, lease: Lease) {
    assert_eq!(store.renew(&[lease]).await.remove(0).unwrap(), RenewReply::Renewed);
}

async fn holders(store: &RedisStore) -> Vec<Holder> {
    store.inspect(None).await.unwrap().pop().map_or_else(Vec::new, |entry| entry.holders)
}

/// The first grant of a process is noted with it, and a grant soon after by its first renewal.
#[tokio::test]
async fn a_grant_is_noted_at_once_or_by_its_renewal() {
    for share in kinds() {
        let (server, store) = served().await;
        let (first, second) = (shared("door", share), shared("door", share));
        let (began, granted) = (BootTime::now(), fence_of(&store, &first).await);
        let holder = &holders(&store).await[0];
        assert_eq!((&holder.owner, holder.fence), (&first.owner, Some(granted)), "{share:?}");
        let held_for = BootTime::now().since(began);
        assert!(holder.age.unwrap() <= held_for + Duration::from_secs(1), "{holder:?} after {held_for:?}");
        gives_up(&store, &first).await;
        assert_eq!(server.cli("KEYS *"), "tenure:fence", "{share:?}");

        let granted = fence_of(&store, &second).await;
        assert_eq!(renewal(&store, &second).await, RenewReply::Renewed);
        let noted = holders(&store).await[0].fence;
        assert!(noted.is_none() || BootTime::now().since(began) >= Duration::from_secs(1), "{share:?}: two in a second");
        renew(&store, second.lease().with_fence(granted)).await;
        assert_eq!(holders(&store).await[0].fence, Some(granted), "{share:?}");
        gives_up(&store, &second).await;
        assert_eq!(server.cli("KEYS *"), "tenure:fence", "{share:?}");
    }
}

/// Who is refused hears what `show` would say.
#[tokio::test]
async fn a_busy_answer_has_the_fence_and_the_age_of_the_holder() {
    for share in [Share::MUTEX, Share::WRITE] {
        let server = RedisServer::start();
        let store = store(&server.url()).await;
        let (began, granted) = (BootTime::now(), fence_of(&store, &shared("door", share)).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
        let AcquireReply::Busy(busy) = store.acquire(&shared("door", share)).await.unwrap() else {
            panic!("{share:?} beside itself")
        };
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
    let (server, store) = served().await;
    let (dead, foreign, next) = (shared("door", Share::MUTEX), shared("door", Share::MUTEX), shared("door", Share::READ));
    fence_of(&store, &dead).await;
    assert_eq!(server.cli(&format!("EXISTS {BESIDE}")), "1", "{}", server.cli("KEYS *"));
    server.cli(&format!("SET door {} XX PX 60000", foreign.owner));
    assert_eq!((holders(&store).await[0].fence, holders(&store).await[0].age), (None, None));
    server.cli("DEL door");
    let granted = fence_of(&store, &next).await;
    let [holder] = &holders(&store).await[..] else { panic!("one holds") };
    assert!(holder.fence.is_none_or(|noted| noted == granted), "{holder:?}");
    gives_up(&store, &next).await;
    assert_eq!(server.cli("KEYS *"), "tenure:fence");
}

/// A downgrade is a new grant, with a new number.
#[tokio::test]
async fn the_number_of_a_downgrade_is_shown() {
    let (_server, store) = served().await;
    let writer = shared("door", Share::WRITE);
    let reader = writer.clone().with_share(Share::READ);
    let written = fence_of(&store, &writer).await;
    let read = fence_of(&store, &reader).await;
    assert!(read > written);
    assert_eq!(holders(&store).await[0].fence, Some(read));
}

/// Shares whose hash was lost are not renewed, so that the name becomes free. A note brings no hash back.
#[tokio::test]
async fn a_note_makes_no_lost_hash_anew() {
    let (server, store) = served().await;
    let reader = shared("door", Share::READ);
    let granted = fence_of(&store, &reader).await;
    for _ in 0..2 {
        server.cli(&format!("DEL {BESIDE}"));
        let answer = store.renew(&[reader.lease().with_fence(granted)]).await.remove(0).unwrap();
        assert_eq!((answer, server.cli(&format!("EXISTS {BESIDE}"))), (RenewReply::Gone, "0".to_owned()));
    }
}

/// Neither the holder nor other clients depend on what is noted.
#[tokio::test]
async fn nothing_depends_on_what_is_noted() {
    let (server, store) = served().await;
    let held = shared("door", Share::MUTEX);
    let granted = fence_of(&store, &held).await;
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
    gives_up(&store, &held).await;
    let supplied = shared("door", Share::MUTEX).with_owner("job-7".parse().unwrap()).with_generated(false);
    let other = crate::store(&crate::patient(&server.url())).await;
    fence_of(&other, &supplied).await;
    assert_eq!(server.cli("KEYS *").lines().count(), 2, "the name and the counter");
}
