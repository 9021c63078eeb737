//! Direct calls to the store in memory.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use tenure::store::{AcquireReply, Busy, Enqueue, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{ErrorKind, Lease, MemoryStore, Name, Owner, Share};

use crate::test_clock::TestClock;
use crate::{LONG, ms, secs};

fn request(name: &str) -> Request {
    let (name, owner) = (Name::new(name).unwrap(), Owner::generate("m").unwrap());
    Request::new(name, owner, Share::MUTEX, LONG)
}

fn lease(request: &Request) -> Lease {
    request.lease()
}

fn new() -> (TestClock, Arc<dyn Store>) {
    let clock = TestClock::new();
    // Behind a pointer, as a locker keeps it, and once more, as a user may.
    (clock.clone(), Arc::new(Arc::new(MemoryStore::with_clock(clock))))
}

async fn granted(store: &dyn Store, request: &Request) -> Grant {
    match store.acquire(request).await.unwrap() {
        AcquireReply::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

async fn busy(store: &dyn Store, request: &Request) -> Busy {
    match store.acquire(request).await.unwrap() {
        AcquireReply::Busy(busy) => busy,
        other => panic!("{other:?}"),
    }
}

async fn renewed(store: &dyn Store, lease: &Lease) -> bool {
    match store.renew(std::slice::from_ref(lease)).await[..] {
        [Ok(RenewReply::Renewed)] => true,
        [Ok(RenewReply::Gone)] => false,
        ref other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_has_one_holder_until_its_lease_ends() {
    let (clock, store) = new();
    let (first, second) = (request("door"), request("door"));
    let grant = granted(&*store, &first).await;
    assert_eq!((grant.fence.unwrap().counter(), grant.ttl), (1, LONG));
    clock.sleep(LONG - ms(1));
    let holder = busy(&*store, &second).await.holder.unwrap();
    assert_eq!((holder.owner, holder.ttl, holder.age), (first.owner.clone(), Some(ms(1)), Some(LONG - ms(1))));
    assert_eq!(holder.fence, grant.fence);
    assert_eq!(store.inspect(None).await.unwrap().len(), 1);
    clock.sleep(ms(1));
    assert_eq!(store.inspect(None).await.unwrap(), [], "what has ended is not listed");
    assert!(!renewed(&*store, &lease(&first)).await, "what has ended is not renewed");
    assert_eq!(store.release(&lease(&first), Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
    assert!(granted(&*store, &second).await.fence > grant.fence);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_counts_from_now_and_never_shortens() {
    let (clock, store) = new();
    let (held, other) = (request("door"), request("door"));
    granted(&*store, &held).await;
    clock.sleep(secs(40));
    assert!(renewed(&*store, &lease(&held)).await);
    assert!(renewed(&*store, &lease(&held).with_ttl(ms(10))).await);
    assert!(!renewed(&*store, &lease(&other)).await);
    assert_eq!(busy(&*store, &other).await.holder.unwrap().ttl, Some(LONG));
    let both = store.renew(&[lease(&other), lease(&held)]).await;
    assert!(matches!(both[..], [Ok(RenewReply::Gone), Ok(RenewReply::Renewed)]), "{both:?}");
}

/// The answer depends on the value at the name, and on whether the request's token was generated.
#[tokio::test(start_paused = true)]
async fn an_owner_finds_itself_and_takes_over_whom_it_names() {
    let (_clock, store) = new();
    let held = request("door");
    let first = granted(&*store, &held).await;
    assert!(granted(&*store, &held).await.fence > first.fence, "a repeated acquire is one tenure with a later number");
    busy(&*store, &held.clone().with_generated(false)).await;
    let given = request("door").with_generated(false).with_from(held.owner.clone());
    let stranger = request("door").with_from(Owner::generate("stranger").unwrap());
    busy(&*store, &stranger).await;
    assert!(granted(&*store, &given).await.fence > first.fence);
    busy(&*store, &given).await;
    assert!(!renewed(&*store, &lease(&held)).await);
    assert_eq!(busy(&*store, &stranger.with_name(Name::new("free").unwrap())).await.holder, None);
    assert_eq!(store.inspect(None).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn only_the_owner_frees() {
    let (_clock, store) = new();
    let (held, other) = (request("door"), request("door"));
    granted(&*store, &held).await;
    assert_eq!(store.release(&lease(&other), Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
    assert_eq!(store.release(&lease(&other), LONG).await.unwrap(), ReleaseReply::NotHeld);
    busy(&*store, &other).await;
    assert_eq!(store.release(&lease(&held), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    assert_eq!(store.release(&lease(&held), Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
    granted(&*store, &other).await;
}

/// A lingering name is nobody's, for exactly that long, however often its release is repeated. Its
/// value can be broken.
#[tokio::test(start_paused = true)]
async fn a_lingering_name_is_nobodys() {
    let (clock, store) = new();
    let (held, other) = (request("door"), request("door"));
    granted(&*store, &held).await;
    assert_eq!(store.release(&lease(&held), secs(5)).await.unwrap(), ReleaseReply::Released);
    assert_eq!(store.release(&lease(&held), LONG).await.unwrap(), ReleaseReply::Released);
    assert_eq!(store.release(&lease(&other), LONG).await.unwrap(), ReleaseReply::NotHeld);
    assert!(!renewed(&*store, &lease(&held)).await);
    let holder = busy(&*store, &held).await.holder.unwrap();
    assert_eq!((holder.owner.lingers_after(), holder.ttl), (Some(held.owner.clone()), Some(secs(5))));
    busy(&*store, &request("door").with_from(held.owner.clone())).await;
    clock.sleep(secs(5));
    granted(&*store, &held).await;
    assert_eq!(store.release(&lease(&held), LONG).await.unwrap(), ReleaseReply::Released);
    let broken = lease(&held).with_owner(held.owner.lingering());
    assert_eq!(store.release(&broken, Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    granted(&*store, &other).await;
    // A value that looks like a linger and is none breaks nothing.
    assert_eq!(store.release(&broken, Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld);
    busy(&*store, &request("door")).await;
}

#[tokio::test(start_paused = true)]
async fn names_are_kept_apart_and_listed() {
    let (_clock, store) = new();
    let (door, gate) = (request("door"), request("gate"));
    granted(&*store, &door).await;
    granted(&*store, &gate).await;
    let of_one = store.inspect(Some(&gate.name)).await.unwrap();
    assert_eq!((of_one.len(), &of_one[0].name, &of_one[0].holders[0].owner), (1, &gate.name, &gate.owner));
    assert_eq!(store.inspect(None).await.unwrap().len(), 2);
    assert_eq!(store.inspect(Some(&request("free").name)).await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_release_is_told_to_those_who_watch() {
    let (_clock, store) = new();
    let held = request("door");
    granted(&*store, &held).await;
    let (mut waiter, mut observer) = (store.watch(&join("door")).await.unwrap(), store.watch(&request("door")).await.unwrap());
    for _ in 0..2 {
        for notices in [&mut waiter, &mut observer] {
            assert!(notices.next().now_or_never().is_none());
        }
        store.release(&lease(&held), Duration::ZERO).await.unwrap();
        for notices in [&mut waiter, &mut observer] {
            assert!(notices.next().now_or_never().is_some(), "nobody was notified");
            assert!(notices.next().now_or_never().is_none());
        }
        granted(&*store, &held).await;
        assert!(observer.next().now_or_never().is_some(), "there is another holder");
    }
}

/// Another kind at a name is an error of its own. The store keeps all that the trait has.
#[tokio::test(start_paused = true)]
async fn it_keeps_every_kind_and_two_of_them_apart() {
    let (_clock, store) = new();
    let reader = |name: &str| request(name).with_share(Share::READ);
    granted(&*store, &reader("door")).await;
    granted(&*store, &reader("door")).await;
    let permit = request("door").with_share(Share::permits(1, 3).unwrap());
    assert_eq!(store.acquire(&permit).await.unwrap_err().kind(), ErrorKind::Mismatch);
    assert_eq!(store.inspect(None).await.unwrap()[0].holders.len(), 2);
    let features = store.features();
    assert!(features.fence && features.push && features.shares && features.queue && !features.late_commands);
    let memory = MemoryStore::new();
    granted(&memory, &request("door")).await;
    assert_eq!((memory.to_string(), format!("{memory:?}")), ("memory:".to_owned(), "MemoryStore { names: 1, .. }".to_owned()));
}

fn join(name: &str) -> Request {
    request(name).with_enqueue(Enqueue::Join { entry_ttl: secs(2), handoff_ttl: secs(1) })
}

/// The waiter that is served is notified, with all that it needs. The waiters behind it are not
/// disturbed.
#[tokio::test(start_paused = true)]
async fn a_hand_over_is_told_to_the_one_that_is_served() {
    let (clock, store) = new();
    let (held, first, second, other) = (request("door"), join("door"), join("door"), join("gate"));
    let before = granted(&*store, &held).await.fence.unwrap();
    granted(&*store, &request("gate")).await;
    let mut notices = Vec::new();
    for (waiter, ahead) in [(&first, 0), (&second, 1), (&other, 0)] {
        let told = busy(&*store, waiter).await;
        assert_eq!((told.position, told.poll_interval), (Some(ahead), secs(1)));
        assert!(told.grant_seq >= Some(before.counter()));
        notices.push(store.watch(waiter).await.unwrap());
    }
    let mark = busy(&*store, &first).await.grant_seq.unwrap();
    assert_eq!(store.release(&lease(&held), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    let Some(Some(Notice::Granted { owner, fence, handoff_ttl })) = notices[0].next().now_or_never() else {
        panic!("not notified")
    };
    assert_eq!((&owner, handoff_ttl), (&first.owner, secs(1)));
    assert!(fence.counter() > mark);
    for silent in &mut notices[1..] {
        assert!(silent.next().now_or_never().is_none(), "it was notified as well");
    }
    clock.sleep(secs(1));
    let grant = granted(&*store, &second.clone().with_enqueue(Enqueue::Heartbeat)).await;
    assert_eq!(grant.ttl, LONG);
    assert!(grant.fence.unwrap() > fence, "the first one's claim has ended");
}

/// A watcher without an entry is notified of a free name. An observer is also notified of one that was handed on.
#[tokio::test(start_paused = true)]
async fn a_name_that_is_free_is_told_to_those_without_a_place() {
    let (_clock, store) = new();
    let (held, waiter) = (request("door"), join("door"));
    granted(&*store, &held).await;
    busy(&*store, &waiter).await;
    let (mut notices, mut observer) = (store.watch(&join("door")).await.unwrap(), store.watch(&request("door")).await.unwrap());
    store.release(&lease(&held), Duration::ZERO).await.unwrap();
    assert!(notices.next().now_or_never().is_none(), "the waiter has it");
    assert_eq!(observer.next().now_or_never(), Some(Some(Notice::Changed)));
    for _ in 0..5 {
        store.release(&lease(&waiter), Duration::ZERO).await.unwrap();
        granted(&*store, &waiter).await;
    }
    for _ in 0..2 {
        assert_eq!(notices.next().now_or_never(), Some(Some(Notice::Changed)));
    }
    assert!(notices.next().now_or_never().is_none(), "notices pile up");
}

/// Names that nobody asks for again do not stay in memory.
#[tokio::test(start_paused = true)]
async fn dead_names_are_forgotten() {
    for several in [false, true] {
        let clock = TestClock::new();
        let store = MemoryStore::with_clock(clock.clone());
        for i in 0..10_000 {
            let request = request(&i.to_string());
            if several {
                assert!(store.acquire_all(&[request]).await.unwrap().is_some());
            } else {
                granted(&store, &request).await;
            }
            clock.sleep(LONG / 100);
        }
        let text = format!("{store:?}");
        let names: usize = text.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap();
        assert!((100..400).contains(&names), "{text}");
    }
}
