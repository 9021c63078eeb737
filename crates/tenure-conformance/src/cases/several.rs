//! Several names in one step of the store: all or none.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tenure::store::{AcquireReply, ReleaseReply, RenewReply, Request, Store};
use tenure::{BootTime, ErrorKind, Fence, Share};

use super::steps::{LONG, TTL, assert_free, granted, granted_after, is_busy, joining, keeping, lease, renew, request};
use crate::{NotApplicable, Outcome, Subject};

const NAMES: [&str; 3] = ["door", "attic", "cellar"];

fn each(ttl: Duration) -> Vec<Request> {
    NAMES.map(|name| request(name, ttl)).to_vec()
}

/// The fences of requests of which none was to be had by others before, and none for longer than any here is.
async fn taken(store: &dyn Store, requests: &[Request]) -> Vec<Option<Fence>> {
    let grants = store.acquire_all(requests).await.unwrap().expect("all are free");
    assert_eq!(grants.len(), requests.len());
    for request in requests {
        let entry = store.inspect(Some(&request.name)).await.unwrap().pop().expect("it is held");
        let holder = entry.holders.iter().find(|holder| holder.owner == request.owner).expect("it is held by its owner");
        assert!(holder.ttl.is_some_and(|left| left <= LONG), "{holder:?}");
    }
    grants.into_iter().map(|grant| grant.fence).collect()
}

async fn is_refused(store: &dyn Store, requests: &[Request]) -> bool {
    store.acquire_all(requests).await.unwrap().is_none()
}

async fn release(store: &dyn Store, requests: &[Request]) {
    for request in requests {
        assert_eq!(store.release(&lease(request), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    }
}

/// Two handles, as two processes have, on a store that takes several names in one step.
async fn two(subject: &dyn Subject) -> Result<[Arc<dyn Store>; 2], NotApplicable> {
    let stores = [subject.store().await, subject.store().await];
    let probe = [request("probe", LONG), request("other probe", LONG)];
    if is_refused(&stores[0], &probe).await {
        return Err(NotApplicable("it takes one name after another"));
    }
    release(&stores[0], &probe).await;
    Ok(stores)
}

/// A client that gets them has leases and fences like any other. A client that does not has nothing.
pub async fn all_are_taken_in_one_step_or_none(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let mut highest = None;
    for held in NAMES {
        let alone = request(held, LONG);
        highest = highest.max(granted(&theirs, &alone).await.fence);
        let requests = each(LONG);
        assert!(is_refused(&ours, &requests).await, "{held} is another's");
        for free in NAMES.into_iter().filter(|name| *name != held) {
            assert_free(subject, free).await;
        }
        assert_eq!(renew(&theirs, &lease(&alone)).await, RenewReply::Renewed);
        release(&theirs, &[alone]).await;
    }
    let requests = each(LONG);
    let fences = taken(&ours, &requests).await;
    assert_eq!(fences.iter().collect::<BTreeSet<_>>().len(), NAMES.len(), "{fences:?}");
    assert!(!ours.features().fence || fences.iter().all(|fence| *fence > highest), "{fences:?} after {highest:?}");
    for name in NAMES {
        assert!(is_busy(&theirs, &request(name, LONG)).await, "{name}");
    }
    let leases: Vec<_> = requests.iter().map(lease).collect();
    assert!(ours.renew(&leases).await.into_iter().all(|answer| answer.unwrap() == RenewReply::Renewed));
    release(&ours, &requests).await;
    for name in NAMES {
        assert_free(subject, name).await;
    }
    assert!(taken(&theirs, &each(LONG)).await > fences);
    Ok(())
}

/// As a request whose reply was lost is repeated; and one that runs late ends nothing that a renewal has prolonged.
pub async fn all_are_taken_once_however_often_it_is_asked(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let ttl = TTL * 2;
    let brief = each(ttl);
    let first = taken(&ours, &brief).await;
    let longer: Vec<_> = brief.iter().map(|request| lease(&request.clone().with_ttl(LONG))).collect();
    assert!(ours.renew(&longer).await.into_iter().all(|answer| answer.unwrap() == RenewReply::Renewed));
    let second = taken(&theirs, &brief).await;
    assert!(!ours.features().fence || second.iter().zip(&first).all(|(second, first)| second >= first));
    tokio::time::sleep(ttl + TTL / 2 + subject.overtime()).await;
    assert!(is_refused(&theirs, &each(LONG)).await, "the repetition shortened the leases");
    release(&ours, &brief).await;
    let others = each(LONG);
    taken(&theirs, &others).await;
    assert!(is_refused(&ours, &each(LONG)).await);
    release(&theirs, &others).await;
    Ok(())
}

/// Leases end one by one, and the last decides.
pub async fn all_are_taken_when_the_last_has_ended(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let since = BootTime::now();
    for (i, name) in (1..).zip(NAMES) {
        granted(&theirs, &request(name, TTL * i / 3)).await;
    }
    let requests = each(LONG);
    while is_refused(&ours, &requests).await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(BootTime::now().since(since) >= TTL, "a lease was cut short");
    release(&ours, &requests).await;
    Ok(())
}

/// A free name that is waited for goes to its waiter, whether the other names are free or not.
pub async fn all_does_not_overtake_who_waits(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    if !ours.features().queue {
        return Ok(());
    }
    for cellar_is_free in [true, false] {
        let cellar = request("cellar", LONG);
        if !cellar_is_free {
            granted(&theirs, &cellar).await;
        }
        let dying = request("door", 2 * TTL);
        granted(&theirs, &dying).await;
        let waiting = joining(&request("door", LONG));
        assert!(matches!(theirs.acquire(&waiting).await.unwrap(), AcquireReply::Busy(_)));
        tokio::time::sleep(2 * TTL + subject.overtime() + Duration::from_millis(50)).await;
        assert!(is_refused(&ours, &each(LONG)).await, "it overtook who waits");
        assert!(is_refused(&ours, &each(LONG)).await, "it overtook who was served");
        assert_free(subject, "attic").await;
        granted_after(&theirs, &keeping(&waiting), BootTime::now()).await;
        release(&theirs, &[waiting]).await;
        if !cellar_is_free {
            release(&theirs, &[cellar]).await;
        }
        let requests = each(LONG);
        taken(&ours, &requests).await;
        release(&ours, &requests).await;
    }
    Ok(())
}

/// Shares of any kind, and two kinds at a name are refused.
pub async fn all_shares_of_a_kind_are_taken_together(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    if !ours.features().shares {
        return Ok(());
    }
    let shares = |share: Share| each(LONG).into_iter().map(|request| request.with_share(share)).collect::<Vec<_>>();
    let (first, second, writers) = (shares(Share::READ), shares(Share::READ), shares(Share::WRITE));
    taken(&ours, &first).await;
    taken(&ours, &first).await;
    taken(&theirs, &second).await;
    assert!(is_refused(&ours, &writers).await);
    release(&ours, &first).await;
    assert!(is_refused(&ours, &writers).await, "the other readers are still there");
    assert!(is_refused(&ours, &each(LONG)).await, "a mutex is a writer");
    let error = ours.acquire_all(&shares(Share::permits(2, 3).unwrap())).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Mismatch, false), "{error}");
    assert!(error.to_string().contains("door"), "it names none: {error}");
    release(&theirs, &second).await;
    taken(&ours, &writers).await;
    assert!(is_refused(&theirs, &shares(Share::READ)).await);
    release(&ours, &writers).await;
    let permits = shares(Share::permits(2, 3).unwrap());
    taken(&ours, &permits).await;
    assert!(is_refused(&theirs, &shares(Share::permits(2, 3).unwrap())).await);
    taken(&theirs, &shares(Share::permits(1, 3).unwrap())).await;
    Ok(())
}

/// A waiter for one kind keeps the other kinds out, also when nobody holds any more.
pub async fn all_is_refused_where_another_kind_is_waited_for(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    if !(ours.features().shares && ours.features().queue) {
        return Ok(());
    }
    let dying = request("door", 2 * TTL).with_share(Share::WRITE);
    granted(&theirs, &dying).await;
    let waiting = joining(&request("door", LONG).with_share(Share::READ));
    assert!(is_busy(&theirs, &waiting).await);
    let permits: Vec<_> = each(LONG).into_iter().map(|request| request.with_share(Share::permits(2, 3).unwrap())).collect();
    let held = request("attic", LONG).with_share(permits[0].share);
    for attic_is_free in [true, false] {
        if !attic_is_free {
            tokio::time::sleep(2 * TTL + subject.overtime() + Duration::from_millis(50)).await;
            granted(&theirs, &held).await;
        }
        let error = ours.acquire_all(&permits).await.unwrap_err();
        assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Mismatch, false), "{error}");
        assert_eq!(error.to_string().matches("door").count(), 1, "it is to be named once: {error}");
    }
    Ok(())
}

/// A lease that was released is not taken again, however late it is asked for.
pub async fn all_takes_nothing_again_that_lingers(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    for share in [Share::MUTEX, Share::READ] {
        if share != Share::MUTEX && !ours.features().shares {
            continue;
        }
        let requests: Vec<_> = each(LONG).into_iter().map(|request| request.with_share(share)).collect();
        taken(&ours, &requests).await;
        let [lingers, free @ ..] = &requests[..] else { unreachable!("there are three") };
        assert_eq!(ours.release(&lease(lingers), LONG).await.unwrap(), ReleaseReply::Released);
        release(&ours, free).await;
        assert!(is_refused(&theirs, &requests).await, "{share:?}");
        for request in free {
            assert_free(subject, request.name.as_str()).await;
        }
        assert_eq!(
            ours.release(&lease(lingers).with_owner(lingers.owner.lingering()), Duration::ZERO).await.unwrap(),
            ReleaseReply::Released
        );
    }
    Ok(())
}
