//! Those whose leases and places have ended by themselves, many at a name: the living do not pay for them.

use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use tenure::store::{AcquireReply, Enqueue, Request, Store};
use tenure::{BootTime, Share};
use tokio::time::timeout;

use super::shares::{reader, release, share, two, writer};
use super::steps::{HANDOFF_TTL, LONG, PATIENCE, TTL, granted, is_busy, joining, locker, name, request};
use crate::{NotApplicable, Outcome, Subject};

/// More than a store may see to in one step.
const MANY: usize = 300;

/// The results of these calls, a few of them at a time: some stores make one call after another.
async fn few_at_a_time<F: Future>(calls: Vec<F>) -> Vec<F::Output> {
    stream::iter(calls).buffer_unordered(8).collect().await
}

/// The answer to one of many that ask at once. A busy server may take longer than a call may, or give way to others: then it is
/// asked again.
async fn answered(store: &dyn Store, request: &Request) -> AcquireReply {
    let deadline = BootTime::now() + PATIENCE;
    loop {
        match store.acquire(request).await {
            Err(error) if error.is_transient() && BootTime::now() < deadline => {}
            answer => return answer.unwrap(),
        }
    }
}

/// Readers that hold all at once, and whose leases have all ended when this returns.
async fn dead_readers(subject: &dyn Subject, store: &dyn Store) {
    let dead: Vec<_> = (0..MANY).map(|_| share(Share::READ, TTL)).collect();
    let answers = few_at_a_time(dead.iter().map(|reader| answered(store, reader)).collect()).await;
    assert!(answers.iter().all(|answer| matches!(answer, AcquireReply::Granted(_))), "{answers:?}");
    tokio::time::sleep(TTL + subject.overtime() + Duration::from_millis(50)).await;
}

/// The first try after the end of the last of them is granted.
pub async fn dead_readers_keep_no_writer_out(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let alive = reader();
    granted(&ours, &alive).await;
    dead_readers(subject, &ours).await;
    release(&ours, &alive).await;
    assert!(!is_busy(&theirs, &writer()).await, "the dead kept it out");
    Ok(())
}

/// Nobody holds the name, so it is of no kind; not even where one had a longer lease and has given it up.
pub async fn dead_readers_leave_no_kind_behind(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let (long, brief) = (reader(), share(Share::READ, TTL));
    granted(&ours, &long).await;
    granted(&theirs, &brief).await;
    release(&ours, &long).await;
    tokio::time::sleep(TTL + subject.overtime() + Duration::from_millis(50)).await;
    granted(&theirs, &request("door", LONG)).await;
    Ok(())
}

/// A refused client is never shown a holder that is dead.
pub async fn nobody_is_told_of_a_dead_holder(subject: &dyn Subject) -> Outcome {
    let [ours, theirs] = two(subject).await?;
    let alive = reader();
    granted(&ours, &alive).await;
    dead_readers(subject, &ours).await;
    for _ in 0..3 {
        let AcquireReply::Busy(busy) = theirs.acquire(&writer()).await.unwrap() else { panic!("a writer beside a reader") };
        assert!(busy.holder.as_ref().is_none_or(|holder| holder.owner == alive.owner), "{:?} has ended", busy.holder);
    }
    Ok(())
}

/// Queue entries that lapsed behind a living one are met when that one leaves. The waiter behind them has the free name soon.
pub async fn dead_places_cost_the_living_little(subject: &dyn Subject) -> Outcome {
    let store = subject.store().await;
    if !store.features().queue {
        return Err(NotApplicable("it has no queue"));
    }
    let (held, first) = (request("door", LONG), joining(&request("door", LONG)));
    granted(&store, &held).await;
    assert!(is_busy(&store, &first).await);
    let lapsing = Enqueue::Join { entry_ttl: Duration::from_millis(50), handoff_ttl: HANDOFF_TTL };
    let dead: Vec<_> = (0..MANY).map(|_| request("door", LONG).with_enqueue(lapsing)).collect();
    let answers = few_at_a_time(dead.iter().map(|dead| answered(&store, dead)).collect()).await;
    assert!(answers.iter().all(|answer| matches!(answer, AcquireReply::Busy(_))), "{answers:?}");
    tokio::time::sleep(subject.overtime() + Duration::from_millis(100)).await;
    let known: Vec<_> = dead.iter().chain([&first]).map(|request| &request.owner).collect();
    let waiters = async || store.inspect(Some(&name("door"))).await.unwrap().remove(0).waiters;
    let living = tokio::spawn(locker(subject).await.mutex("door").ttl(LONG).acquire());
    let joined = async {
        while waiters().await.iter().all(|waiter| known.contains(&&waiter.owner)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, joined).await.expect("it never queued");
    release(&store, &first).await;
    release(&store, &held).await;
    let freed = BootTime::now();
    let guard = timeout(PATIENCE, living).await.expect("it was forgotten").unwrap().unwrap();
    let took = BootTime::now().since(freed);
    assert!(took < subject.overtime() + Duration::from_secs(3), "{MANY} dead places took {took:?}");
    drop(guard);
    Ok(())
}
