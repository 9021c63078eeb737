//! The queue at the store: its order, and waiters that never come for their share.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use tenure::store::{AcquireReply, Busy, Enqueue, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{BootTime, Owner, Queued, Share};
use tokio::time::timeout;

use super::basics::listed_at_last;
use super::shares::release;
use super::steps::{
    HANDOFF_TTL, LONG, PATIENCE, TTL, assert_free, granted, is_busy, joining, keeping, lease, name, renew, request,
};
use crate::{NotApplicable, Outcome, Subject};

/// Long enough for a busy machine to look after a place in time, short enough to wait for its end.
const KEEP: Duration = Duration::from_millis(2_500);

/// Two handles, as two processes have.
async fn two(subject: &dyn Subject) -> Result<[Arc<dyn Store>; 2], NotApplicable> {
    let stores = [subject.store().await, subject.store().await];
    if stores[0].features().queue { Ok(stores) } else { Err(NotApplicable("it has no queue")) }
}

fn waiter() -> Request {
    joining(&request("door", LONG))
}

fn brief(keep: Duration) -> Request {
    request("door", LONG).with_enqueue(Enqueue::Join { entry_ttl: keep, handoff_ttl: HANDOFF_TTL })
}

async fn holder(store: &dyn Store) -> Request {
    let held = request("door", LONG);
    granted(store, &held).await;
    held
}

async fn busy(store: &dyn Store, request: &Request) -> Busy {
    match store.acquire(request).await.unwrap() {
        AcquireReply::Busy(busy) => busy,
        other => panic!("{:?} was to be busy: {other:?}", request.owner),
    }
}

async fn ahead(store: &dyn Store, request: &Request) -> Option<u32> {
    busy(store, request).await.position
}

async fn waiters(store: &dyn Store) -> usize {
    store.inspect(Some(&name("door"))).await.unwrap().pop().map_or(0, |entry| entry.waiters.len())
}

/// Who holds the name now.
async fn inside(store: &dyn Store) -> Vec<Owner> {
    let entry = store.inspect(Some(&name("door"))).await.unwrap().pop();
    entry.map_or_else(Vec::new, |entry| entry.holders.into_iter().map(|holder| holder.owner).collect())
}

async fn assert_inside(store: &dyn Store, request: &Request) {
    assert_eq!(inside(store).await, std::slice::from_ref(&request.owner), "the wrong one holds");
}

/// Whichever handle they came by.
pub async fn waiters_are_served_in_the_order_they_joined(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let mut last = holder(&ours).await;
    let waiting: Vec<_> = (0..6).map(|_| waiter()).collect();
    for (i, request) in (0..).zip(&waiting) {
        assert_eq!(ahead(if i % 2 == 0 { &theirs } else { &ours }, request).await, Some(i));
    }
    for next in &waiting {
        release(&ours, &last).await;
        assert_inside(&theirs, next).await;
        last = next.clone();
    }
    Ok(())
}

/// A try leaves nothing behind, and does not get what those who wait were there for.
pub async fn a_try_neither_queues_nor_overtakes(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let (held, waiting) = (holder(&ours).await, waiter());
    assert_eq!(ahead(&theirs, &request("door", LONG)).await, None);
    assert_eq!(waiters(&ours).await, 0);
    assert_eq!(ahead(&ours, &waiting).await, Some(0), "the try has a place");
    release(&ours, &held).await;
    assert_eq!(ahead(&theirs, &request("door", LONG)).await, None);
    assert_inside(&ours, &waiting).await;
    release(&ours, &waiting).await;
    assert_free(subject, "door").await;
    Ok(())
}

/// Two that were given one value would have one place and one lease: such a value waits without a place.
pub async fn a_given_value_never_queues(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let held = holder(&ours).await;
    let given = waiter().with_owner(Owner::from_bytes(&b"fixed"[..])).with_generated(false);
    assert_eq!((ahead(&ours, &given).await, ahead(&theirs, &given).await), (None, None));
    assert_eq!(waiters(&ours).await, 0);
    release(&ours, &held).await;
    granted(&theirs, &given).await;
    assert!(is_busy(&ours, &given).await);
    Ok(())
}

/// As long as somebody looks after it.
pub async fn a_heartbeat_keeps_a_place(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let (_held, first, second) = (holder(&ours).await, brief(KEEP), brief(LONG));
    assert_eq!((ahead(&ours, &first).await, ahead(&theirs, &second).await), (Some(0), Some(1)));
    let until = BootTime::now() + KEEP * 3 / 2;
    while BootTime::now() < until {
        assert_eq!(ahead(&ours, &keeping(&first)).await, Some(0));
        assert_eq!(ahead(&theirs, &keeping(&second)).await, Some(1));
        tokio::time::sleep(KEEP / 10).await;
    }
    Ok(())
}

/// Nobody waits behind a place that is not looked after.
pub async fn a_place_without_heartbeat_lapses(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let (held, dead, alive) = (holder(&ours).await, brief(KEEP), brief(LONG));
    assert_eq!((ahead(&ours, &dead).await, ahead(&theirs, &alive).await), (Some(0), Some(1)));
    tokio::time::sleep(KEEP + subject.overtime() + Duration::from_millis(5)).await;
    assert_eq!(waiters(&ours).await, 1);
    assert_eq!(ahead(&theirs, &keeping(&alive)).await, Some(0));
    release(&ours, &held).await;
    assert_inside(&ours, &alive).await;
    Ok(())
}

/// Neither before it joined, nor after its place lapsed, nor after it was served and gave up.
pub async fn a_heartbeat_never_makes_a_place(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let (held, lapsed, served) = (holder(&ours).await, brief(KEEP), brief(LONG));
    assert_eq!(ahead(&theirs, &keeping(&waiter())).await, None);
    assert_eq!(waiters(&ours).await, 0, "before it joined");
    assert_eq!(ahead(&theirs, &lapsed).await, Some(0));
    tokio::time::sleep(KEEP + subject.overtime() + Duration::from_millis(5)).await;
    assert_eq!(ahead(&theirs, &keeping(&lapsed)).await, None);
    assert_eq!(waiters(&ours).await, 0, "after its place lapsed");
    assert_eq!(ahead(&theirs, &served).await, Some(0));
    release(&ours, &held).await;
    release(&theirs, &served).await;
    let held = holder(&ours).await;
    assert_eq!(ahead(&theirs, &keeping(&served)).await, None);
    assert_eq!(waiters(&ours).await, 0, "after it was served and gave up");
    release(&ours, &held).await;
    assert_free(subject, "door").await;
    Ok(())
}

/// A place that was given up is nobody's, and a heartbeat that comes late gets nothing by its token, not even a free name.
pub async fn a_released_place_is_used_up(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let (held, first, second) = (holder(&ours).await, waiter(), waiter());
    assert_eq!((ahead(&ours, &first).await, ahead(&theirs, &second).await), (Some(0), Some(1)));
    release(&ours, &first).await;
    assert_eq!(ours.release(&lease(&first), Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
    assert_eq!((waiters(&ours).await, ahead(&theirs, &keeping(&second)).await), (1, Some(0)));
    release(&ours, &held).await;
    assert_inside(&ours, &second).await;
    release(&theirs, &second).await;
    assert_eq!(ahead(&ours, &keeping(&first)).await, None);
    assert_free(subject, "door").await;
    Ok(())
}

/// A dead first waiter costs the `handoff_ttl` of its own queue entry, and no more.
pub async fn a_served_waiter_that_never_comes_costs_its_claim(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let handoff_ttl = Duration::from_secs(1);
    let dead = waiter().with_enqueue(Enqueue::Join { entry_ttl: LONG, handoff_ttl });
    let (held, alive) = (holder(&ours).await, waiter());
    assert_eq!((ahead(&ours, &dead).await, ahead(&theirs, &alive).await), (Some(0), Some(1)));
    let released_at = BootTime::now();
    release(&ours, &held).await;
    let waited = served_after(&theirs, &alive, released_at).await;
    assert!(waited + Duration::from_millis(2) >= handoff_ttl, "served after {waited:?}");
    assert!(waited < handoff_ttl + subject.overtime() + Duration::from_secs(1), "served only after {waited:?}");
    assert_eq!(renew(&ours, &lease(&dead)).await, RenewReply::Gone);
    assert_eq!(ahead(&ours, &keeping(&dead)).await, None);
    Ok(())
}

/// Keeps a queue entry alive until it is served. Returns the time from `since`.
async fn served_after(store: &dyn Store, request: &Request, since: BootTime) -> Duration {
    super::steps::granted_after(store, &keeping(request), since).await
}

/// Each costs its own `handoff_ttl`.
pub async fn dead_heads_in_a_row_are_passed(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let held = holder(&ours).await;
    let handoff_ttl = Duration::from_millis(400);
    let place = Enqueue::Join { entry_ttl: LONG, handoff_ttl };
    let dead: Vec<_> = (0..3).map(|_| waiter().with_enqueue(place)).collect();
    for request in &dead {
        busy(&ours, request).await;
    }
    let alive = waiter();
    assert_eq!(ahead(&theirs, &alive).await, Some(3));
    let released_at = BootTime::now();
    release(&ours, &held).await;
    let waited = served_after(&theirs, &alive, released_at).await;
    assert!(waited + Duration::from_millis(6) >= 3 * handoff_ttl, "served after {waited:?}");
    assert!(waited < 3 * (handoff_ttl + subject.overtime()) + Duration::from_secs(2), "served only after {waited:?}");
    Ok(())
}

/// The `handoff_ttl` is for coming: a waiter that has come holds for as long as it asked.
pub async fn a_served_waiter_finds_itself_granted(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let (held, waiting) = (holder(&ours).await, waiter());
    assert_eq!(ahead(&theirs, &waiting).await, Some(0));
    release(&ours, &held).await;
    let left = |entry: Vec<tenure::Entry>| entry[0].holders[0].ttl.expect("our leases end");
    assert!(left(ours.inspect(Some(&held.name)).await.unwrap()) <= HANDOFF_TTL);
    let grant = granted(&theirs, &keeping(&waiting)).await;
    assert_eq!(grant.ttl, LONG);
    assert!(left(ours.inspect(Some(&held.name)).await.unwrap()) > LONG / 2);
    assert_eq!(renew(&theirs, &lease(&waiting)).await, RenewReply::Renewed);
    Ok(())
}

/// The push has the waiter's owner token, a fence above every `grant_seq` that the waiter got, and the `handoff_ttl`.
pub async fn a_hand_over_is_pushed_to_the_one_that_is_served(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    if !theirs.features().push {
        return Err(NotApplicable("it does not push"));
    }
    for _ in 0..5 {
        if hand_overs_are_pushed(&ours, &theirs).await {
            return Ok(());
        }
    }
    panic!("no hand-over is pushed: each time the waiter was to ask");
}

/// Whether the notices say so. Those of a connection that was replaced meanwhile have a waiter ask instead, and show nothing.
async fn hand_overs_are_pushed(ours: &dyn Store, theirs: &dyn Store) -> bool {
    let (held, first, second) = (holder(ours).await, waiter(), waiter());
    busy(theirs, &first).await;
    busy(theirs, &second).await;
    let mut notices = theirs.watch(&first).await.unwrap();
    let mut silent = theirs.watch(&second).await.unwrap();
    let mark = busy(theirs, &keeping(&first)).await.grant_seq;
    busy(theirs, &keeping(&second)).await;
    release(ours, &held).await;
    let notice = timeout(PATIENCE, notices.next()).await.expect("nobody told the waiter").expect("the stream ended");
    let Notice::Granted { owner, fence, handoff_ttl } = notice else {
        release(theirs, &first).await;
        release(theirs, &second).await;
        return false;
    };
    assert_eq!((&owner, handoff_ttl), (&first.owner, HANDOFF_TTL));
    // A store without cohorts counts in ones, so 1,024 of its fences have one counter.
    let is_above = Some(fence.counter()) > mark || (!theirs.features().cohort && Some(fence.counter()) == mark);
    assert!(is_above, "{fence} is not above {mark:?}");
    assert!(granted(theirs, &keeping(&first)).await.fence >= Some(fence));
    let early = silent.next().now_or_never().flatten();
    assert!(matches!(early, None | Some(Notice::Changed)), "one that was not served was notified: {early:?}");
    release(theirs, &first).await;
    let notice = timeout(PATIENCE, silent.next()).await.expect("nobody told the next one").expect("the stream ended");
    release(theirs, &second).await;
    match notice {
        Notice::Granted { owner, .. } => assert_eq!(owner, second.owner),
        Notice::Changed => return false,
    }
    early.is_none()
}

/// Nobody releases for a holder that died: the next waiter that polls serves the first that lives.
pub async fn a_dead_holder_is_followed_by_the_first_live_waiter(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let ttl = TTL * 2;
    granted(&ours, &request("door", ttl)).await;
    let (lapsing, first, last) = (brief(ttl / 3 * 2), waiter(), waiter());
    for (i, waiting) in (0..).zip([&lapsing, &first, &last]) {
        assert_eq!(ahead(&ours, waiting).await, Some(i));
    }
    tokio::time::sleep(ttl + subject.overtime() + Duration::from_millis(5)).await;
    // Another process cannot look after an entry that is bound to one.
    let last_polls = if theirs.features().process_bound { &ours } else { &theirs };
    assert_eq!(ahead(last_polls, &keeping(&last)).await, Some(0), "the last one overtook");
    assert_inside(&theirs, &first).await;
    granted(&ours, &keeping(&first)).await;
    assert_eq!(waiters(&ours).await, 1);
    Ok(())
}

/// A join whose answer was lost is asked again.
pub async fn a_repeated_join_is_one_place(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let (held, first, second) = (holder(&ours).await, waiter(), waiter());
    for _ in 0..3 {
        assert_eq!((ahead(&ours, &first).await, ahead(&theirs, &second).await), (Some(0), Some(1)));
    }
    assert_eq!(waiters(&ours).await, 2);
    release(&ours, &held).await;
    granted(&ours, &first).await;
    assert_eq!(waiters(&ours).await, 1);
    release(&ours, &first).await;
    granted(&theirs, &second).await;
    release(&theirs, &second).await;
    assert_free(subject, "door").await;
    Ok(())
}

/// All that fit at once, up to the first that does not.
pub async fn readers_at_the_head_are_served_together(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    if !ours.features().shares {
        return Err(NotApplicable("it keeps mutexes only"));
    }
    let asks = |share| waiter().with_share(share);
    let held = asks(Share::WRITE);
    granted(&ours, &held).await;
    let waiting = [Share::READ, Share::READ, Share::READ, Share::WRITE, Share::READ].map(asks);
    for request in &waiting {
        busy(&theirs, request).await;
    }
    release(&ours, &held).await;
    let mut together: Vec<_> = waiting[..3].iter().map(|request| request.owner.clone()).collect();
    together.sort();
    let mut inside_now = inside(&ours).await;
    inside_now.sort();
    assert_eq!(inside_now, together);
    for reader in &waiting[..3] {
        assert_eq!(ahead(&theirs, &keeping(&waiting[3])).await, Some(0));
        release(&theirs, reader).await;
    }
    assert_inside(&ours, &waiting[3]).await;
    Ok(())
}

/// For people.
pub async fn waiters_are_counted(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let held = holder(&ours).await;
    let waiting: Vec<_> = (0..3).map(|_| waiter()).collect();
    for (i, request) in waiting.iter().enumerate() {
        assert_eq!(waiters(&ours).await, i);
        busy(&theirs, request).await;
    }
    granted(&ours, &held).await;
    let all = listed_at_last(&ours, |all| !all.is_empty()).await;
    assert_eq!((all.len(), all[0].holders.len()), (1, 1));
    let in_order: Vec<_> = waiting.iter().map(|request| Queued::new(request.owner.clone(), request.share)).collect();
    assert_eq!(all[0].waiters, in_order);
    assert_eq!(ours.inspect(Some(&held.name)).await.unwrap()[0].waiters, in_order);
    for (left, request) in (0..3).rev().zip(&waiting) {
        release(&theirs, request).await;
        assert_eq!(waiters(&ours).await, left);
    }
    Ok(())
}

/// A share that ends, or is taken over, while others wait is handed on as any other.
pub async fn an_adoption_leaves_the_queue_as_it_is(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let (held, waiting) = (holder(&ours).await, waiter());
    assert_eq!(ahead(&theirs, &waiting).await, Some(0));
    let adopt = request("door", LONG).with_from(held.owner.clone());
    granted(&ours, &adopt).await;
    assert_eq!(ahead(&theirs, &keeping(&waiting)).await, Some(0));
    let late = waiter().with_from(held.owner.clone());
    assert_eq!((ahead(&ours, &late).await, waiters(&ours).await), (None, 1), "an adopter queued");
    release(&ours, &adopt).await;
    granted(&theirs, &keeping(&waiting)).await;
    Ok(())
}
