//! memcached forgets: a lock is free at once, its holder learns it at the next renewal, and the next holder has a larger fence.

use std::time::Duration;

use tenure::ErrorKind;
use tenure::store::{Enqueue, ReleaseReply, RenewReply, Store};
use tenure_testkit::MemcachedServer;

use crate::open;
use crate::requests::{granted, lease, owner, request};

/// Both schemes, on a server of their own.
async fn each(arguments: &[&str], forget: impl Fn(&MemcachedServer)) {
    for scheme in ["cas", "add"] {
        let builder = arguments.iter().fold(MemcachedServer::builder(), |builder, argument| builder.arg(argument));
        let server = builder.start();
        let store = open(&(server.url() + "?scheme=" + scheme)).await;
        let (first, second) = (owner(), owner());
        let before = granted(&store, &request("x", &first)).await.fence.unwrap();
        // The start of a server is known in whole seconds.
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        forget(&server);
        let after = granted_when_back(&store, &second).await;
        assert!(after > before, "{scheme}: {after} after {before}");
        assert_eq!(store.renew(&[lease("x", &first)]).await.remove(0).unwrap(), RenewReply::Gone, "{scheme}");
        assert_eq!(store.release(&lease("x", &first), Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld, "{scheme}");
        assert_eq!(store.renew(&[lease("x", &second)]).await.remove(0).unwrap(), RenewReply::Renewed, "{scheme}");
    }
}

/// The connection may have died with the server.
async fn granted_when_back(store: &dyn Store, held: &tenure::Owner) -> tenure::Fence {
    let _ = store.inspect(Some(&tenure::Name::new("x").unwrap())).await;
    granted(store, &request("x", held)).await.fence.unwrap()
}

#[tokio::test]
async fn a_flush_frees_all_and_fences_go_on() {
    each(&[], MemcachedServer::flush_all).await;
}

#[tokio::test]
async fn a_restart_frees_all_and_fences_go_on() {
    each(&[], MemcachedServer::restart).await;
}

#[tokio::test]
async fn an_eviction_frees_a_lock_and_fences_go_on() {
    each(&["-m", "1", "-I", "512k"], |server| server.evict("x")).await;
}

/// With `-M` the server refuses new locks instead, and keeps the old ones until they end.
#[tokio::test]
async fn a_full_server_that_evicts_nothing_refuses_new_locks() {
    let server = MemcachedServer::builder().arg("-m").arg("1").arg("-I").arg("512k").arg("-M").start();
    let store = open(&server.url()).await;
    let mut held = Vec::new();
    let error = loop {
        // Of one length, so that all are in memory of one kind, and for longer than it takes to fill it.
        let request = request(&format!("door {:05}", held.len()), &owner()).with_ttl(Duration::from_secs(600));
        match store.acquire(&request).await {
            Ok(_) => held.push(request.lease()),
            Err(error) => break error,
        }
        assert!(held.len() < 100_000, "it never gets full");
    };
    assert!(error.kind() == ErrorKind::Unavailable && !error.may_have_been_applied(), "{error:?}");
    assert!(error.to_string().contains("-m"), "{error}");
    assert_eq!(server.stat("evictions"), 0);
    // A try for a held name has no room either, and leaves it held. The meta command `ms` would free it.
    for _ in 0..3 {
        let _ = store.acquire(&request("door 00000", &owner())).await;
    }
    assert_eq!(store.inspect(Some(&held[0].name)).await.unwrap().len(), 1, "it was freed");
    // A renewal needs room for the new value beside the old one. Within a second of the server it has nothing to write.
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    let error = store.renew(&held[..1]).await.remove(0).unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && !error.may_have_been_applied(), "{error:?}");
    for lease in &held[1..] {
        assert_eq!(store.release(lease, Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    }
    granted(&store, &request("door 00001", &owner())).await;
}

/// A server that has started again gives the versions of before to other items.
#[tokio::test]
async fn a_release_deletes_no_lock_of_a_later_life() {
    for scheme in ["cas", "add"] {
        let server = MemcachedServer::start();
        let url = server.url() + "?scheme=" + scheme;
        let (store, held, theirs) = (open(&url).await, owner(), owner());
        granted(&store, &request("x", &held)).await;
        server.restart();
        // The first write of each life.
        granted(&open(&url).await, &request("x", &theirs)).await;
        // It connects again here, at the latest.
        let _ = store.inspect(Some(&tenure::Name::new("y").unwrap())).await;
        assert_eq!(store.release(&lease("x", &held), Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld, "{scheme}");
        assert_eq!(store.renew(&[lease("x", &theirs)]).await.remove(0).unwrap(), RenewReply::Renewed, "{scheme}");
    }
}

/// Those who wait have to fit into one item.
#[tokio::test]
async fn a_queue_that_is_too_long_for_an_item_takes_nobody_else() {
    let server = MemcachedServer::builder().arg("-I").arg("8k").arg("-o").arg("slab_chunk_max=4096").start();
    let store = open(&(server.url() + "?timeout=10s")).await;
    let held = owner();
    granted(&store, &request("x", &held)).await;
    let error = loop {
        let stays = Enqueue::Join { entry_ttl: Duration::from_secs(600), handoff_ttl: Duration::from_secs(1) };
        if let Err(error) = store.acquire(&request("x", &owner()).with_enqueue(stays)).await {
            break error;
        }
    };
    assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Unavailable, false), "{error:?}");
    assert!(error.to_string().contains("too large"), "{error:?}");
    assert_eq!(store.renew(&[lease("x", &held)]).await.remove(0).unwrap(), RenewReply::Renewed);
}
