//! One holder at a time, name by name.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure::store::{ReleaseReply, Store};
use tenure::{BootTime, Entry, ErrorKind};

use super::steps::{LONG, PATIENCE, granted, is_busy, lease, listing, name, request};
use crate::{Outcome, Subject};

/// The heart of it, also across handles.
pub async fn a_free_name_is_granted_and_a_held_one_is_busy(subject: &dyn Subject) -> Outcome {
    let (ours, theirs) = (subject.store().await, subject.store().await);
    let held = request("door", LONG);
    granted(&ours, &held).await;
    assert!(is_busy(&ours, &request("door", LONG)).await);
    assert!(is_busy(&theirs, &request("door", LONG)).await);
    assert_eq!(ours.release(&lease(&held), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    granted(&theirs, &request("door", LONG)).await;
    Ok(())
}

/// Busy and inspect name the holder and what is left of its lease.
pub async fn it_tells_who_holds(subject: &dyn Subject) -> Outcome {
    let store = subject.store().await;
    let held = request("door", LONG);
    let grant = granted(&store, &held).await;
    let tenure::store::AcquireReply::Busy(busy) = store.acquire(&request("door", LONG)).await.unwrap() else {
        panic!("granted twice")
    };
    let entry = store.inspect(Some(&name("door"))).await.unwrap().pop().expect("a held name is listed");
    assert_eq!((&entry.name, entry.waiters.len(), entry.holders.len()), (&held.name, 0, 1));
    for holder in [busy.holder.expect("busy names the holder"), entry.holders[0].clone()] {
        assert_eq!(holder.owner, held.owner);
        assert_eq!(holder.owner.label(), Some("conformance"));
        let left = holder.ttl.expect("our leases end");
        // Some ends are written in whole seconds.
        assert!(left <= LONG + Duration::from_secs(1) && left > LONG / 2, "{left:?}");
        assert!(holder.fence.is_none() || holder.fence == grant.fence);
    }
    Ok(())
}

/// Names that differ anywhere are different locks, and any name can be held.
pub async fn odd_names_are_kept_apart(subject: &dyn Subject) -> Outcome {
    let store = subject.store().await;
    let long = "n".repeat(store.features().max_name.min(1_000));
    let names = [
        "a",
        "A",
        " ",
        "a ",
        "two words",
        "a}b",
        "{a}b",
        "{}x",
        "x{}{y}",
        "a*",
        "[a]",
        "a\\b",
        "%",
        "a'b",
        "a\"b",
        "заказ/42",
        "日本",
        "é",
        "e\u{301}",
        &*long,
        &long[1..],
    ];
    let (refused, kept): (Vec<&str>, Vec<&str>) = names.into_iter().partition(|name| subject.refuses(name));
    for text in refused {
        let error = store.acquire(&request(text, LONG)).await.expect_err(text);
        assert!(error.kind() == ErrorKind::Invalid && !error.may_have_been_applied(), "{text:?}: {error:?}");
    }
    let held: Vec<_> = kept.iter().map(|text| request(text, LONG)).collect();
    for request in &held {
        granted(&store, request).await;
    }
    for request in &held {
        let entry = store.inspect(Some(&request.name)).await.unwrap().pop().expect("held");
        assert_eq!((&entry.name, &entry.holders[0].owner), (&request.name, &request.owner));
        assert_eq!(store.release(&lease(request), Duration::ZERO).await.unwrap(), ReleaseReply::Released, "{:?}", request.name);
    }
    Ok(())
}

/// A name nobody holds is in no list.
pub async fn a_free_name_is_not_listed(subject: &dyn Subject) -> Outcome {
    let store = listing(subject).await?;
    assert_eq!(store.inspect(Some(&name("nothing"))).await.unwrap(), []);
    let held = request("something", LONG);
    granted(&store, &held).await;
    store.release(&lease(&held), Duration::ZERO).await.unwrap();
    assert_eq!(store.inspect(Some(&held.name)).await.unwrap(), []);
    assert_eq!(store.inspect(None).await.unwrap(), []);
    Ok(())
}

/// The list without a name, once it is whole. A server may leave out what it has in hand just then.
pub(super) async fn listed_at_last(store: &dyn Store, is_whole: impl Fn(&[Entry]) -> bool) -> Vec<Entry> {
    let deadline = BootTime::now() + PATIENCE;
    loop {
        let all = store.inspect(None).await.unwrap();
        if is_whole(&all) || BootTime::now() >= deadline {
            return all;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The list without a name has every lock of ours.
pub async fn every_held_name_is_listed(subject: &dyn Subject) -> Outcome {
    let store = listing(subject).await?;
    let held: Vec<_> = (0..50).map(|i| request(&format!("door {i}"), LONG)).collect();
    for request in &held {
        granted(&store, request).await;
    }
    let listed = listed_at_last(&store, |all| all.len() >= held.len()).await;
    let listed: BTreeSet<_> = listed.into_iter().map(|entry| entry.name).collect();
    assert_eq!(listed, held.iter().map(|request| request.name.clone()).collect());
    Ok(())
}
