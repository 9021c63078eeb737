//! The Redis store when others change, lose or forbid the keys of a lock: what the store reports, and who gets the name.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use tenure::store::{AcquireReply, Enqueue, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{ErrorKind, Name, Owner, Share};
use tenure_redis::RedisStore;
use tenure_testkit::wait_until;
use tokio::time::timeout;

use crate::steps::{joining, open_url, releases, renewal, shared, takes};
use crate::subject::Lent;
use crate::{PATIENCE, served};

/// So long that no call is sent again.
const TIMEOUT: &str = "timeout=10s";

async fn store(url: &str) -> RedisStore {
    crate::store(&format!("{url}?{TIMEOUT}")).await
}

async fn queues(store: &dyn Store, request: &Request) -> u32 {
    match store.acquire(request).await.unwrap() {
        AcquireReply::Busy(busy) => busy.position.expect("a place"),
        other => panic!("{other:?}"),
    }
}

/// Waits for the push of a hand-over.
async fn told(notices: &mut BoxStream<'static, Notice>) {
    let granted = async { while !matches!(notices.next().await, Some(Notice::Granted { .. })) {} };
    timeout(PATIENCE, granted).await.expect("nothing was pushed");
}

/// A lease that a user may not look at is not known to be lost: the call is refused, and the lease may still be there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_forbidden_is_not_told_as_lost() {
    let mutex = [Share::MUTEX];
    let all = [Share::MUTEX, Share::READ, Share::permits(2, 3).unwrap()];
    let schemes: [(&str, &[Share]); 5] =
        [("native", &all), ("watch", &all), ("set-nx", &mutex), ("php", &mutex), ("getset", &mutex)];
    for (scheme, shares) in schemes {
        for (share, forbidden) in
            shares.iter().flat_map(|share| ["resetkeys ~tenure:fence", "-get -zscore"].map(|rule| (share, rule)))
        {
            let server = Lent::alone();
            server.cli("ACL SETUSER app on >pw ~* &* +@all");
            let store = open_url(&format!("redis://app:pw@{}?scheme={scheme}&{TIMEOUT}", server.addr())).await;
            let held = shared("door", *share);
            takes(&store, &held).await;
            server.cli(&format!("ACL SETUSER app {forbidden}"));
            let (case, renewed) = (format!("{scheme} {share:?} {forbidden}"), store.renew(&[held.lease()]).await.remove(0));
            let released = store.release(&held.lease(), Duration::ZERO).await;
            // A mutex is renewed by another command than it is looked at.
            assert!(
                matches!(&renewed, Err(error) if error.kind() == ErrorKind::Refused)
                    || forbidden == "-get -zscore" && matches!(renewed, Ok(RenewReply::Renewed)),
                "{case}: {renewed:?}"
            );
            assert!(matches!(&released, Err(error) if error.kind() == ErrorKind::Refused), "{case}: {released:?}");
        }
    }
}

/// Shares whose weights are lost can let nobody in: their holders are notified, and the name is free when they have released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shares_without_their_weights_are_lost_and_given_up() {
    let server = Lent::alone();
    let (ours, theirs) = (store(&server.url()).await, store(&server.url()).await);
    let held = [shared("door", Share::permits(2, 3).unwrap()), shared("door", Share::permits(1, 3).unwrap())];
    for request in &held {
        takes(&ours, request).await;
    }
    let beside = server.cli("KEYS *:s:door");
    assert_eq!(server.cli(&format!("DEL {beside}")), "1");
    let other = shared("door", Share::permits(3, 3).unwrap());
    assert_eq!(theirs.acquire(&other).await.unwrap_err().kind(), ErrorKind::Mismatch, "nobody knows what is left");
    let before = server.cli("PTTL door").parse::<u64>().unwrap();
    for request in &held {
        assert_eq!(renewal(&ours, request).await, RenewReply::Gone);
    }
    assert!(server.cli("PTTL door").parse::<u64>().unwrap() <= before, "it lives on by renewals");
    for request in &held {
        assert_eq!(releases(&ours, request).await, ReleaseReply::Released);
        assert_eq!(releases(&ours, request).await, ReleaseReply::NotHeld);
    }
    takes(&theirs, &other).await;
}

/// A place that makes no sense is dropped like a dead one: nobody could take the name, nor give it up, while it stood there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_makes_no_sense_is_dropped() {
    for nonsense in ["", "x", "1 2 3", "99999999999999 1500 2500 1"] {
        let (server, store) = served().await;
        let (held, waiting) = (shared("door", Share::MUTEX), joining(shared("door", Share::MUTEX)));
        takes(&store, &held).await;
        assert_eq!(queues(&store, &waiting).await, 0);
        let (queue, places) = (server.cli("KEYS *:q:door"), server.cli("KEYS *:p:door"));
        server.cli(&format!("ZADD {queue} -1 odd"));
        server.command(&["HSET", &places, "odd", nonsense]);
        assert_eq!(releases(&store, &held).await, ReleaseReply::Released, "{nonsense:?}");
        takes(&store, &waiting.with_enqueue(Enqueue::Heartbeat)).await;
        assert_eq!(server.cli("KEYS *:[qp]:door"), "", "{nonsense:?}");
    }
}

/// However many have died at once in front of a waiter, a release reaches it at once: nobody hears for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_died_at_once_costs_those_behind_it_nothing() {
    let server = Lent::alone();
    let (theirs, ours) = (store(&server.url()).await, store(&server.url()).await);
    let held = shared("door", Share::MUTEX);
    takes(&ours, &held).await;
    let dead: Vec<Request> = (0..300).map(|_| joining(shared("door", Share::MUTEX))).collect();
    let hears = theirs.watch(&dead[0]).await.unwrap();
    for request in &dead {
        queues(&theirs, request).await;
    }
    let waiting = joining(shared("door", Share::MUTEX));
    let mut notices = ours.watch(&waiting).await.unwrap();
    assert_eq!(queues(&ours, &waiting).await, 300);
    drop((hears, theirs));
    wait_until(PATIENCE, "the end of their connection", || server.cli("PUBSUB CHANNELS *").lines().count() == 1);
    assert_eq!(releases(&ours, &held).await, ReleaseReply::Released);
    told(&mut notices).await;
    assert_eq!(server.command(&["GET", "door"]).text().as_bytes(), waiting.owner.as_bytes());
}

/// A waiter whose connection is gone at the moment of its turn is passed over once; from its next heartbeat on nobody passes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_hears_nothing_for_a_moment_is_passed_over_once() {
    let server = Lent::alone();
    let (theirs, ours) = (store(&server.url()).await, store(&server.url()).await);
    let (first, writer, second) =
        (shared("door", Share::READ), joining(shared("door", Share::WRITE)), joining(shared("door", Share::READ)));
    takes(&ours, &first).await;
    let mut hears = theirs.watch(&writer).await.unwrap();
    assert_eq!(queues(&theirs, &writer).await, 0);
    assert_eq!(queues(&ours, &second).await, 1);
    // A reader that gives up lets nobody pass a writer who does not fit: the line is looked at from its head.
    let third = joining(shared("door", Share::READ));
    assert_eq!(queues(&ours, &third).await, 2);
    assert_eq!(releases(&ours, &third).await, ReleaseReply::Released);
    assert_eq!(server.cli("ZCARD door"), "1");
    server.cli("CLIENT KILL TYPE pubsub");
    assert_eq!(releases(&ours, &first).await, ReleaseReply::Released);
    assert_eq!(server.cli("ZRANGE door 0 -1"), second.owner.to_string(), "nobody heard for the writer");
    let heartbeat = writer.clone().with_enqueue(Enqueue::Heartbeat);
    assert_eq!(queues(&theirs, &heartbeat).await, 0, "its place");
    let late = joining(shared("door", Share::READ));
    assert_eq!(queues(&ours, &late).await, 1, "a reader passed a writer who hears");
    assert_eq!(releases(&ours, &second).await, ReleaseReply::Released);
    told(&mut hears).await;
    takes(&theirs, &heartbeat).await;
}

/// Shares that are taken, made smaller, renewed, waited for and given up while the server runs out of memory and recovers: what a call
/// answered is what the server keeps, a refused call has changed nothing, and all together are never more than there is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shares_add_up_while_memory_comes_and_goes() {
    for (seed, functions) in [(1, true), (2, false)] {
        let (server, mut random) = (Lent::alone(), fastrand::Rng::with_seed(seed));
        if !functions {
            server.cli("ACL SETUSER default -function");
        }
        let store = store(&server.url()).await;
        let (mut held, mut waiting, mut refused) = (BTreeMap::<Owner, Request>::new(), Vec::<Request>::new(), 0);
        let weight = |share: u32| Share::permits(share, 5).unwrap();
        for step in 0..600 {
            if random.u8(0..8) == 0 {
                server.cli(&format!("CONFIG SET maxmemory {}", random.u8(0..2)));
            }
            let any = |random: &mut fastrand::Rng| held.values().nth(random.usize(0..held.len().max(1))).cloned();
            match (random.u8(0..10), any(&mut random)) {
                (0..3, Some(one)) if one.share.weight() > 1 => {
                    let share = weight(random.u32(1..one.share.weight()));
                    let smaller = one.with_share(share).with_enqueue(Enqueue::No);
                    match store.acquire(&smaller).await {
                        Ok(AcquireReply::Granted(_)) => drop(held.insert(smaller.owner.clone(), smaller)),
                        Ok(other) => panic!("step {step}: {other:?}"),
                        Err(error) => {
                            assert!(!error.may_have_been_applied(), "step {step}: {error}");
                            refused += 1;
                        }
                    }
                }
                (3..6, Some(one)) => {
                    assert_eq!(releases(&store, &one).await, ReleaseReply::Released, "step {step}");
                    held.remove(&one.owner);
                }
                (6, Some(one)) => assert_eq!(renewal(&store, &one).await, RenewReply::Renewed, "step {step}"),
                (7, _) if !waiting.is_empty() => {
                    let one = waiting.swap_remove(random.usize(0..waiting.len()));
                    // It waits, or was served meanwhile.
                    assert_eq!(releases(&store, &one).await, ReleaseReply::Released, "step {step}");
                    held.remove(&one.owner);
                }
                (chosen, _) => {
                    let share = weight(random.u32(1..=5));
                    let one = if chosen % 2 == 0 { shared("door", share) } else { joining(shared("door", share)) };
                    match store.acquire(&one).await {
                        Ok(AcquireReply::Granted(_)) => drop(held.insert(one.owner.clone(), one)),
                        Ok(AcquireReply::Busy(busy)) if busy.position.is_some() => waiting.push(one),
                        Ok(_) => {}
                        Err(error) => {
                            assert!(!error.may_have_been_applied(), "step {step}: {error}");
                            refused += 1;
                        }
                    }
                }
            }
            let entry = store.inspect(Some(&Name::new("door").unwrap())).await.unwrap().pop();
            let kept: BTreeMap<Owner, Share> =
                entry.map_or_else(BTreeMap::new, |entry| entry.holders.into_iter().map(|h| (h.owner, h.share)).collect());
            // Those who waited may have been served.
            let (came, still): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|one| kept.contains_key(&one.owner));
            waiting = still;
            held.extend(came.into_iter().map(|one| (one.owner.clone(), one)));
            let model: BTreeMap<Owner, Share> = held.values().map(|one| (one.owner.clone(), one.share)).collect();
            assert_eq!(kept, model, "step {step}, seed {seed}");
            let sum: u32 = kept.values().map(|share| share.weight()).sum();
            assert!(sum <= 5, "step {step}, seed {seed}: {sum} of 5");
            let told = server.cli("KEYS *:s:door");
            let counted = if told.is_empty() { 0 } else { server.cli(&format!("HGET {told} #")).parse().unwrap() };
            assert_eq!(counted, sum, "step {step}, seed {seed}: what is counted");
        }
        assert!(refused > 20, "the server was hardly ever out of memory: {refused}");
    }
}
