//! Kinds of locks other than a mutex: how much of a name each holder has.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure::store::{AcquireReply, ReleaseReply, RenewReply, Request, Store};
use tenure::{BootTime, Error, ErrorKind, Owner, Share};
use tokio::task::JoinSet;

use super::basics::listed_at_last;
use super::steps::{
    LONG, TTL, assert_free, granted, granted_after, is_busy, joined, joining, keeping, lease, name, of_any_process, renew,
    request,
};
use crate::{NotApplicable, Outcome, Subject};

pub(super) fn share(share: Share, ttl: Duration) -> Request {
    request("door", ttl).with_share(share)
}

pub(super) fn reader() -> Request {
    share(Share::READ, LONG)
}

pub(super) fn writer() -> Request {
    share(Share::WRITE, LONG)
}

fn given(value: &'static str, request: Request) -> Request {
    request.with_owner(Owner::from_bytes(value.as_bytes())).with_generated(false)
}

pub(super) fn permits(weight: u32, capacity: u32) -> Request {
    share(Share::permits(weight, capacity).unwrap(), LONG)
}

/// Two handles, as two processes have.
pub(super) async fn two(subject: &dyn Subject) -> Result<[Arc<dyn Store>; 2], NotApplicable> {
    let stores = [subject.store().await, subject.store().await];
    if stores[0].features().shares { Ok(stores) } else { Err(NotApplicable("it keeps mutexes only")) }
}

pub(super) async fn release(store: &dyn Store, request: &Request) {
    assert_eq!(store.release(&lease(request), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
}

pub(super) async fn renewed(store: &dyn Store, request: &Request) -> bool {
    renew(store, &lease(request)).await == RenewReply::Renewed
}

/// The error of a request beside `held`. A slow node of a quorum may not know of that yet: a renewal tells it.
pub(super) async fn refusal(store: &dyn Store, held: &Request, request: &Request) -> Error {
    for _ in 0..3 {
        let error = store.acquire(request).await.unwrap_err();
        if !error.may_have_been_applied() {
            return error;
        }
        let _ = store.renew(&[lease(held)]).await;
    }
    store.acquire(request).await.unwrap_err()
}

pub(super) async fn holders(store: &dyn Store) -> BTreeMap<Owner, Share> {
    let entry = store.inspect(Some(&name("door"))).await.unwrap().pop();
    entry.map_or_else(BTreeMap::new, |entry| entry.holders.into_iter().map(|holder| (holder.owner, holder.share)).collect())
}

/// Any number of readers, or one writer.
pub async fn readers_hold_together_and_a_writer_alone(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let readers = [reader(), reader(), reader()];
    for (reader, store) in readers.iter().zip([&ours, &theirs, &ours]) {
        granted(store, reader).await;
    }
    let alone = writer();
    for (i, reader) in readers.iter().enumerate() {
        assert!(is_busy(&theirs, &alone).await, "a writer beside {} readers", readers.len() - i);
        release(&ours, reader).await;
    }
    granted(&theirs, &alone).await;
    assert!(is_busy(&ours, &reader()).await && is_busy(&ours, &writer()).await);
    release(&theirs, &alone).await;
    granted(&ours, &reader()).await;
    Ok(())
}

/// Shares of all sizes add up to the capacity and never to more, also while many come and go.
pub async fn permits_add_up_and_never_to_more(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let held = [permits(2, 5), permits(2, 5), permits(1, 5)];
    for request in &held {
        granted(&ours, request).await;
    }
    assert!(is_busy(&theirs, &permits(1, 5)).await);
    release(&ours, &held[1]).await;
    assert!(is_busy(&theirs, &permits(3, 5)).await);
    let (one, other) = (permits(1, 5), permits(1, 5));
    granted(&theirs, &one).await;
    granted(&theirs, &other).await;
    assert!(is_busy(&theirs, &permits(1, 5)).await);
    for request in [&held[0], &held[2], &one, &other] {
        release(&ours, request).await;
    }
    let inside = Arc::new(AtomicU32::new(0));
    let mut tasks = JoinSet::new();
    for task in 0..6 {
        let (store, inside) = (if task % 2 == 0 { ours.clone() } else { theirs.clone() }, inside.clone());
        tasks.spawn(async move {
            for round in 0..8 {
                let weight = (task + round) % 5 + 1;
                let request = permits(weight, 5);
                granted_after(&store, &request, BootTime::now()).await;
                let before = inside.fetch_add(weight, Ordering::SeqCst);
                assert!(before + weight <= 5, "{weight} of 5 permits beside {before}");
                tokio::time::sleep(Duration::from_millis(1)).await;
                inside.fetch_sub(weight, Ordering::SeqCst);
                release(&store, &request).await;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        joined(done);
    }
    Ok(())
}

/// Readers that come while a writer waits queue behind it.
pub async fn a_stream_of_readers_does_not_starve_a_writer(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    if !ours.features().queue {
        return Err(NotApplicable("it has no queue"));
    }
    let (first, waiting) = (reader(), joining(&writer()));
    granted(&ours, &first).await;
    assert!(is_busy(&theirs, &waiting).await);
    let late: Vec<_> = (0..4).map(|_| joining(&reader())).collect();
    for reader in &late {
        assert!(is_busy(&ours, reader).await, "a reader overtook the writer");
    }
    assert!(is_busy(&ours, &reader()).await, "a try overtook the writer");
    release(&ours, &first).await;
    granted(&theirs, &keeping(&waiting)).await;
    release(&theirs, &waiting).await;
    for reader in &late {
        granted(&ours, &keeping(reader)).await;
    }
    Ok(())
}

/// A writer that asks for a reader's share goes on holding, and readers come in.
pub async fn a_downgrade_lets_readers_in(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let held = writer();
    granted(&ours, &held).await;
    let waiting = joining(&reader());
    assert!(is_busy(&theirs, &waiting).await);
    let smaller = held.clone().with_share(Share::READ);
    granted(&ours, &smaller).await;
    granted(&ours, &smaller).await;
    granted(&theirs, &if ours.features().queue { keeping(&waiting) } else { reader() }).await;
    granted(&theirs, &reader()).await;
    assert_eq!(holders(&ours).await.get(&held.owner), Some(&Share::READ));
    assert!(renewed(&ours, &smaller).await);
    assert!(is_busy(&theirs, &writer()).await);
    Ok(())
}

/// A downgrade that runs after the release, or after the lease has ended, is a heartbeat of nobody.
pub async fn a_downgrade_takes_nothing_that_is_not_held(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let held = writer();
    let late = keeping(&held.clone().with_share(Share::READ));
    granted(&ours, &held).await;
    granted(&ours, &late).await;
    assert_eq!(holders(&ours).await, BTreeMap::from([(held.owner.clone(), Share::READ)]));
    release(&ours, &held).await;
    assert!(is_busy(&theirs, &late).await, "it took a free name");
    granted(&theirs, &reader()).await;
    assert!(is_busy(&ours, &late).await, "it came in beside another reader");
    assert_eq!(holders(&ours).await.len(), 1);
    Ok(())
}

/// Two readers that want to become writers would wait for each other for ever.
pub async fn a_smaller_share_cannot_grow(subject: &dyn Subject) -> Outcome {
    let [ours, _] = two(subject).await?;
    let held = reader();
    granted(&ours, &held).await;
    let larger = held.clone().with_share(Share::WRITE);
    for larger in [joining(&larger), larger] {
        let error = refusal(&ours, &held, &larger).await;
        assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Invalid, false), "{error}");
    }
    assert_eq!(holders(&ours).await, BTreeMap::from([(held.owner.clone(), Share::READ)]));
    assert!(renewed(&ours, &held).await);
    Ok(())
}

/// A reader that died neither ends the others' shares nor lives on by their renewals.
pub async fn a_dead_reader_ends_at_its_own_time(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let (dead, alive) = (share(Share::READ, TTL), reader());
    granted(&theirs, &dead).await;
    granted(&ours, &alive).await;
    let until = BootTime::now() + TTL + subject.overtime();
    while BootTime::now() < until {
        assert!(renewed(&ours, &alive).await);
        granted(&ours, &alive).await;
        tokio::time::sleep(TTL / 10).await;
    }
    assert_eq!(holders(&ours).await, BTreeMap::from([(alive.owner.clone(), Share::READ)]));
    assert!(!renewed(&theirs, &dead).await);
    assert!(is_busy(&theirs, &writer()).await);
    release(&ours, &alive).await;
    granted(&theirs, &writer()).await;
    Ok(())
}

/// The permit of a holder that crashed is free when its own ttl has passed, and not before.
pub async fn a_crashed_permit_returns(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    granted(&ours, &permits(2, 3)).await;
    let began = BootTime::now();
    granted(&theirs, &permits(1, 3).with_ttl(TTL)).await;
    let freed = granted_after(&ours, &permits(1, 3), began).await;
    assert!(freed + Duration::from_millis(2) >= TTL, "free after {freed:?}");
    assert!(freed < TTL + subject.overtime() + Duration::from_secs(2), "free only after {freed:?}");
    assert!(is_busy(&ours, &permits(1, 3)).await);
    Ok(())
}

/// A writer's number is larger than those of all who were before it, readers included.
pub async fn fences_rise_over_exclusive_grants(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    if !ours.features().fence {
        return Err(NotApplicable("it does not count"));
    }
    let mut last = None;
    for round in 0..10 {
        let (store, other) = if round % 2 == 0 { (&ours, &theirs) } else { (&theirs, &ours) };
        let readers = [reader(), reader()];
        for reader in &readers {
            last = last.max(granted(other, reader).await.fence);
        }
        for reader in &readers {
            release(other, reader).await;
        }
        let alone = writer();
        let fence = granted(store, &alone).await.fence;
        assert!(fence > last, "{fence:?} after {last:?}");
        release(store, &alone).await;
        last = fence;
    }
    Ok(())
}

/// Each share of a name has its own answer in the batch, whatever became of the others.
pub async fn many_shares_of_a_name_are_renewed_in_one_batch(subject: &dyn Subject) -> Outcome {
    let [ours, _] = two(subject).await?;
    let readers: Vec<_> = (0..250).map(|_| reader()).collect();
    for (i, reader) in readers.iter().enumerate() {
        if i % 3 != 0 {
            granted(&ours, reader).await;
        }
    }
    let leases: Vec<_> = readers.iter().map(lease).collect();
    for (i, answer) in ours.renew(&leases).await.into_iter().enumerate() {
        let expected = if i % 3 == 0 { RenewReply::Gone } else { RenewReply::Renewed };
        assert_eq!(answer.unwrap(), expected, "lease {i}");
    }
    Ok(())
}

/// A share that was given up with a linger is nobody's for so long; what others hold is not touched.
pub async fn a_lingering_share_is_nobodys_share(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    of_any_process(subject).await?;
    let (gone, stays, linger) = (permits(2, 3), permits(1, 3), TTL * 2);
    granted(&ours, &gone).await;
    granted(&theirs, &stays).await;
    let released_at = BootTime::now();
    assert_eq!(ours.release(&lease(&gone), linger).await.unwrap(), ReleaseReply::Released);
    assert_eq!(ours.release(&lease(&gone), LONG).await.unwrap(), ReleaseReply::Released);
    assert!(!renewed(&ours, &gone).await);
    assert!(is_busy(&ours, &gone).await && is_busy(&ours, &permits(1, 3)).await);
    let expected = BTreeMap::from([(gone.owner.lingering(), gone.share), (stays.owner.clone(), stays.share)]);
    assert_eq!(holders(&ours).await, expected);
    let freed = granted_after(&ours, &permits(2, 3), released_at).await;
    assert!(freed + Duration::from_millis(2) >= linger, "free after {freed:?}");
    assert!(renewed(&theirs, &stays).await);
    Ok(())
}

/// An adoption takes over that one share, with a number of its own.
pub async fn a_share_is_adopted(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let (first, second) = (reader(), reader());
    let before = granted(&ours, &first).await.fence;
    let before = before.max(granted(&ours, &second).await.fence);
    let adopt = reader().with_from(first.owner.clone());
    let theirs = if ours.features().process_bound { ours.clone() } else { theirs };
    let after = granted(&theirs, &adopt).await.fence;
    assert!(after > before || before.is_none());
    let late = reader().with_from(first.owner.clone());
    assert!(matches!(theirs.acquire(&late).await.unwrap(), AcquireReply::Busy(_)), "two adopters of one share");
    assert_eq!(holders(&ours).await.into_keys().collect::<Vec<_>>(), {
        let mut owners = vec![second.owner.clone(), adopt.owner.clone()];
        owners.sort();
        owners
    });
    assert!(!renewed(&ours, &first).await && renewed(&ours, &second).await && renewed(&theirs, &adopt).await);
    Ok(())
}

/// `inspect` returns every holder, with its share.
pub async fn every_holder_of_a_name_is_listed(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let held: Vec<_> = [1, 2, 1, 1].into_iter().map(|weight| permits(weight, 5)).collect();
    for (i, request) in held.iter().enumerate() {
        granted(if i % 2 == 0 { &ours } else { &theirs }, request).await;
    }
    let expected: BTreeMap<_, _> = held.iter().map(|request| (request.owner.clone(), request.share)).collect();
    assert_eq!(holders(&ours).await, expected);
    let all = listed_at_last(&ours, |all| !all.is_empty()).await;
    assert_eq!((all.len(), all[0].holders.len(), all[0].waiters.len()), (1, 4, 0));
    let left = all[0].holders.iter().map(|holder| holder.ttl.expect("our leases end"));
    assert!(left.into_iter().all(|left| left > LONG / 2 && left <= LONG), "{all:?}");
    Ok(())
}

/// One of many shares is given up once.
pub async fn a_share_is_given_up_once(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let (held, other) = (reader(), reader());
    granted(&ours, &held).await;
    granted(&theirs, &other).await;
    release(&ours, &held).await;
    assert_eq!(ours.release(&lease(&held), Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
    assert!(!renewed(&ours, &held).await);
    assert!(renewed(&theirs, &other).await);
    assert_eq!(holders(&ours).await.len(), 1);
    Ok(())
}

/// Two users of one supplied owner token are two users, whatever the second asks for: it would release the share of the first.
pub async fn a_given_share_is_busy_for_its_second_user(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    for (first, second) in
        [(reader(), reader()), (permits(1, 4), permits(1, 4)), (permits(3, 4), permits(1, 4)), (permits(1, 4), permits(2, 4))]
    {
        let (first, second) = (given("fixed", first), given("fixed", second));
        granted(&ours, &first).await;
        assert!(is_busy(&theirs, &second).await, "{:?} beside {:?}", second.share, first.share);
        assert_eq!(holders(&ours).await, BTreeMap::from([(first.owner.clone(), first.share)]));
        if ours.features().process_bound {
            release(&ours, &first).await;
        } else {
            assert_eq!(ours.release(&lease(&first), LONG).await.unwrap(), ReleaseReply::Released);
            assert!(is_busy(&theirs, &second).await, "{:?} while {:?} lingers", second.share, first.share);
            let lingering = first.clone().with_owner(first.owner.lingering());
            release(&ours, &lingering).await;
        }
        granted(&theirs, &second).await;
        release(&theirs, &second).await;
    }
    Ok(())
}

/// A supplied owner token that reads like something a store keeps for itself is a token like any other.
pub async fn odd_given_values_hold_shares(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    for odd in ["#", "##", "=", "linger:x"] {
        for weight in [1, 2] {
            let (plain, odd) = (given("x", permits(1, 5)), given(odd, permits(weight, 5)));
            granted(&theirs, &plain).await;
            granted(&ours, &odd).await;
            assert!(is_busy(&theirs, &permits(5 - weight, 5)).await, "{:?}: more than there is", odd.owner);
            let both = BTreeMap::from([(plain.owner.clone(), plain.share), (odd.owner.clone(), odd.share)]);
            assert_eq!(holders(&ours).await, both);
            assert!(renewed(&ours, &odd).await && renewed(&theirs, &plain).await, "{:?}", odd.owner);
            release(&ours, &odd).await;
            let mutex = share(Share::MUTEX, LONG);
            assert_eq!(ours.acquire(&mutex).await.unwrap_err().kind(), ErrorKind::Mismatch, "{:?}", odd.owner);
            assert!(is_busy(&ours, &permits(5, 5)).await, "{:?} took another's share along", odd.owner);
            let rest = permits(4, 5);
            granted(&ours, &rest).await;
            release(&ours, &rest).await;
            release(&theirs, &plain).await;
            assert_free(subject, "door").await;
        }
    }
    Ok(())
}
