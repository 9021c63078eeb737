//! The answers of the store, one by one.

use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use tenure::store::{Notice, ReleaseReply, RenewReply, Store as _};
use tenure::{Fence, Owner};
use tenure_sql::sqlite::open;

use crate::common::{TTL, busy, fresh, granted, lease, open_files, owner, request, wait_until_closed};

#[tokio::test]
async fn a_name_has_one_holder_and_tells_who() {
    let (_dir, path) = fresh();
    let store = open(&path).unwrap();
    let (a, b) = (owner(), owner());
    let grant = granted(&store, &request("x", &a)).await;
    assert_eq!(grant.ttl, TTL);
    let holder = busy(&open(&path).unwrap(), &request("x", &b)).await.holder.unwrap();
    assert_eq!((holder.owner, holder.fence), (a.clone(), grant.fence));
    assert!(holder.ttl.unwrap() <= TTL && holder.age.unwrap() < TTL);
    assert_eq!(store.release(&lease("x", &b), Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
    assert_eq!(store.release(&lease("x", &a), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    assert_eq!(store.release(&lease("x", &a), Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
    granted(&store, &request("x", &b)).await;
}

#[tokio::test]
async fn only_a_generated_owner_may_repeat() {
    let (_dir, path) = fresh();
    let store = open(&path).unwrap();
    let generated = request("x", &owner());
    let first = granted(&store, &generated).await;
    assert!(granted(&store, &generated).await.fence > first.fence, "every grant has a fence of its own");
    let given = request("y", &Owner::from_bytes(&b"given"[..])).with_generated(false);
    granted(&store, &given).await;
    assert_eq!(busy(&store, &given).await.holder.unwrap().owner, given.owner);
}

#[tokio::test]
async fn a_take_over_is_one_checked_step() {
    let (_dir, path) = fresh();
    let store = open(&path).unwrap();
    let (a, b, c) = (owner(), owner(), owner());
    let take = |to: &Owner, from: &Owner| request("x", to).with_from(from.clone());
    assert_eq!(busy(&store, &take(&b, &a)).await.holder, None, "a free name cannot be taken over");
    let first = granted(&store, &request("x", &a)).await;
    let second = granted(&store, &take(&b, &a)).await;
    assert!(second.fence > first.fence);
    assert_eq!(busy(&store, &take(&c, &a)).await.holder.unwrap().owner, b);
    assert!(granted(&store, &take(&b, &a)).await.fence > second.fence, "a repeated take-over by a generated owner token");
    assert!(matches!(store.renew(&[lease("x", &a), lease("x", &b)]).await[..], [Ok(RenewReply::Gone), Ok(RenewReply::Renewed)]));
}

#[tokio::test]
async fn a_lingering_name_is_nobodys() {
    let (_dir, path) = fresh();
    let store = open(&path).unwrap();
    let (a, b) = (owner(), owner());
    granted(&store, &request("x", &a)).await;
    let (mine, linger) = (lease("x", &a), Duration::from_secs(3));
    assert_eq!(store.release(&mine, linger).await.unwrap(), ReleaseReply::Released);
    assert_eq!(
        store.release(&mine, linger).await.unwrap(),
        ReleaseReply::Released,
        "a repeated release is answered as the first"
    );
    assert_eq!(store.renew(std::slice::from_ref(&mine)).await.remove(0).unwrap(), RenewReply::Gone);
    let by_its_value = lease("x", &a.lingering());
    assert_eq!(store.renew(&[by_its_value]).await.remove(0).unwrap(), RenewReply::Gone, "nobody keeps what lingers");
    for request in [request("x", &a), request("x", &b), request("x", &b).with_from(a.clone())] {
        let holder = busy(&store, &request).await.holder.unwrap();
        assert_eq!(holder.owner, a.lingering());
        assert!(holder.ttl.unwrap() <= linger);
    }
    tokio::time::sleep(linger).await;
    granted(&store, &request("x", &b)).await;
}

#[tokio::test]
async fn a_lease_ends_and_is_not_renewed_after() {
    let (_dir, path) = fresh();
    let store = open(&path).unwrap();
    let (a, b) = (owner(), owner());
    granted(&store, &request("x", &a).with_ttl(Duration::from_millis(30))).await;
    tokio::time::sleep(Duration::from_millis(35)).await;
    assert_eq!(store.renew(&[lease("x", &a)]).await.remove(0).unwrap(), RenewReply::Gone);
    assert_eq!(store.inspect(None).await.unwrap(), []);
    assert_eq!(store.release(&lease("x", &a), Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
    granted(&store, &request("x", &b)).await;
}

/// One that runs late, or by anybody who has the token.
#[tokio::test]
async fn a_renewal_does_not_shorten_a_lease() {
    let (_dir, path) = fresh();
    let store = open(&path).unwrap();
    let a = owner();
    granted(&store, &request("x", &a)).await;
    let short = lease("x", &a).with_ttl(TTL / 100);
    assert_eq!(store.renew(&[short]).await.remove(0).unwrap(), RenewReply::Renewed);
    assert!(busy(&store, &request("x", &owner())).await.holder.unwrap().ttl.unwrap() > TTL / 2);
}

#[tokio::test]
async fn several_names_are_had_together_or_not_at_all() {
    let (_dir, path) = fresh();
    let store = open(&path).unwrap();
    let (a, b) = (owner(), owner());
    granted(&store, &request("y", &a)).await;
    assert_eq!(store.acquire_all(&[request("x", &b), request("y", &b)]).await.unwrap(), None);
    assert_eq!(store.inspect(Some(&"x".parse().unwrap())).await.unwrap(), [], "one of two was kept");
    let both = store.acquire_all(&[request("x", &b), request("z", &b)]).await.unwrap().unwrap();
    assert!(both[0].fence < both[1].fence, "{both:?}");
}

/// A sweep removes ended leases while others are granted, and nothing else.
#[tokio::test]
async fn a_sweep_spares_the_living() {
    let (_dir, path) = fresh();
    let store = open(&path).unwrap();
    let living: Vec<_> = (0..150).map(|n| request(&format!("n{n:03}"), &owner())).collect();
    for request in &living {
        granted(&store, request).await;
    }
    for _ in 0..100 {
        granted(&store, &request(&owner().to_string(), &owner()).with_ttl(Duration::from_millis(10))).await;
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(store.inspect(None).await.unwrap().len(), living.len());
}

#[tokio::test]
async fn a_batch_is_answered_in_order() {
    let (_dir, path) = fresh();
    let store = open(&path).unwrap();
    let a = owner();
    let leases: Vec<_> = (0..300).map(|n| lease(&format!("n{n}"), &a)).collect();
    for n in (0..300).step_by(3) {
        granted(&store, &request(&format!("n{n}"), &a)).await;
    }
    for (n, answer) in store.renew(&leases).await.into_iter().enumerate() {
        assert_eq!(answer.unwrap() == RenewReply::Gone, n % 3 != 0, "n{n}");
    }
    assert_eq!(store.renew(&[]).await.len(), 0);
}

#[tokio::test]
async fn every_name_and_owner_is_kept_as_it_is() {
    let (_dir, path) = fresh();
    let store = open(&path).unwrap();
    let names = ["A", "a", "a%", "a_", " ", "'; DROP TABLE lock; --", "заказ", "日本", &"n".repeat(1024)];
    for (n, name) in names.iter().enumerate() {
        let odd = Owner::from_bytes([&[0xff, 0, u8::try_from(n).unwrap()][..], &[7; 600]].concat());
        granted(&store, &request(name, &odd)).await;
        let entry = store.inspect(Some(&name.parse().unwrap())).await.unwrap().remove(0);
        assert_eq!((entry.name.as_str(), &entry.holders[0].owner), (*name, &odd));
    }
    assert_eq!(store.inspect(None).await.unwrap().len(), names.len());
    assert_eq!(store.inspect(Some(&"free".parse().unwrap())).await.unwrap(), []);
}

#[tokio::test]
async fn a_release_wakes_waiters_of_the_same_store() {
    let (_dir, path) = fresh();
    let store = open(&path).unwrap();
    let (a, b) = (owner(), owner());
    granted(&store, &request("x", &a)).await;
    let mut hints = store.watch(&request("x", &b)).await.unwrap();
    assert!(hints.next().now_or_never().is_none());
    store.clone().release(&lease("x", &a), Duration::ZERO).await.unwrap();
    let hint = tokio::time::timeout(Duration::from_secs(5), hints.next()).await.unwrap();
    assert_eq!(hint, Some(Notice::Changed));
}

/// Futures dropped at any point leave the store usable, and nothing but what a release clears up.
#[tokio::test]
async fn dropped_futures_break_nothing() {
    let (_dir, path) = fresh();
    let store = open(&path).unwrap();
    for round in 0..200_u64 {
        let a = owner();
        let dropped = tokio::time::timeout(Duration::from_micros(round), store.acquire(&request("x", &a))).await;
        store.release(&lease("x", &a), Duration::ZERO).await.unwrap();
        let free = store.inspect(Some(&"x".parse().unwrap())).await.unwrap().is_empty();
        assert!(free, "round {round} left the name taken: {dropped:?}");
    }
}

#[tokio::test]
async fn the_thread_ends_with_the_last_handle() {
    let (_dir, path) = fresh();
    let store = open(&path).unwrap();
    let clone = store.clone();
    drop(store);
    granted(&clone, &request("x", &owner())).await;
    assert_eq!(open_files(&path), 1);
    drop(clone);
    wait_until_closed(&path);
}

/// The path is taken as a path, whatever SQLite would read into it.
#[tokio::test]
async fn a_path_is_a_path() {
    let (dir, _) = fresh();
    let deep = dir.path().join("a/b/file:x?mode=memory");
    granted(&open(&deep).unwrap(), &request("x", &owner())).await;
    assert!(deep.is_file());
    assert!(open("").is_err());
}

#[tokio::test]
async fn fences_do_not_fall_back_with_the_file() {
    let (_dir, path) = fresh();
    let mut last: Option<Fence> = None;
    for _ in 0..5 {
        let store = open(&path).unwrap();
        for _ in 0..20 {
            let grant = granted(&store, &request(&owner().to_string(), &owner())).await;
            assert!(grant.fence > last, "{:?} after {last:?}", grant.fence);
            last = grant.fence;
        }
        for file in ["locks.db", "locks.db-wal", "locks.db-shm"] {
            std::fs::remove_file(path.with_file_name(file)).unwrap();
        }
        // The store that is still open finds the new file, not the deleted one.
        granted(&store, &request("x", &owner())).await;
        busy(&open(&path).unwrap(), &request("x", &owner())).await;
    }
}
