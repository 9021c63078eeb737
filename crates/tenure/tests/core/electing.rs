//! Elections: who leads, and what an observer sees of it.

use futures_util::{FutureExt, StreamExt};
use tenure::store::Notice;
use tenure::{ErrorKind, Fence, Leader, Locker, MemoryStore, Owner};
use tokio::time::timeout;

use crate::scripted_store::{Call, Fate, Hints};
use crate::{LONG, SOON, ms, secs, settle, world};

type Leaders = futures_util::stream::BoxStream<'static, Result<Option<Leader>, tenure::Error>>;

async fn next(leaders: &mut Leaders) -> Option<Leader> {
    timeout(LONG, leaders.next()).await.expect("nothing was seen").expect("the stream has ended").unwrap()
}

fn label(leader: Option<&Leader>) -> Option<&str> {
    leader.and_then(Leader::label)
}

#[tokio::test(start_paused = true)]
async fn each_leader_is_seen_once() {
    let (clock, _, locks) = world();
    let election = locks.election("billing");
    let mut leaders = election.observe();
    assert_eq!(next(&mut leaders).await, None);
    let first = election.candidate("a").ttl(LONG).campaign().await.unwrap();
    let seen = next(&mut leaders).await;
    assert_eq!((label(seen.as_ref()), seen.as_ref().and_then(|leader| leader.fence)), (Some("a"), first.fence()));
    clock.sleep(secs(5));
    tokio::time::sleep(secs(5)).await;
    assert!(leaders.next().now_or_never().is_none(), "the same leader comes again");
    first.resign().await.unwrap();
    assert_eq!(next(&mut leaders).await, None);
    let _second = election.candidate("b").campaign().await.unwrap();
    assert_eq!(label(next(&mut leaders).await.as_ref()), Some("b"));
}

/// A store in memory notices each change.
#[tokio::test]
async fn an_observer_in_memory_hardly_polls() {
    let locks = Locker::builder(MemoryStore::new()).ttl(LONG).build().unwrap();
    let election = locks.election("billing").poll_interval(60 * LONG);
    let mut leaders = election.observe();
    let mut sees = async || {
        label(timeout(SOON, leaders.next()).await.expect("nothing was noticed").unwrap().unwrap().as_ref()).map(String::from)
    };
    assert_eq!(sees().await, None);
    let first = election.candidate("a").campaign().await.unwrap();
    assert_eq!(sees().await.as_deref(), Some("a"));
    let second = tokio::spawn({
        let election = election.clone();
        async move { election.candidate("b").campaign().await.unwrap() }
    });
    while locks.inspect("billing").await.unwrap().unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    first.resign().await.unwrap();
    assert_eq!(sees().await.as_deref(), Some("b"));
    second.await.unwrap().resign().await.unwrap();
    assert_eq!(sees().await, None);
    let _both = locks.mutex("billing").and("other").label("both").acquire().await.unwrap();
    assert_eq!(sees().await.as_deref(), Some("both"));
}

/// A plain mutex would go on to the next task of the process, and the store would show the first leader still.
#[tokio::test(start_paused = true)]
async fn the_next_leader_of_the_same_process_is_seen_with_its_own_fence() {
    let (_, _, locks) = world();
    let election = locks.election("billing");
    let candidate = election.candidate("a");
    let first = candidate.campaign().await.unwrap();
    let (token, next_one) = (first.token().clone(), tokio::spawn(async move { candidate.campaign().await.unwrap() }));
    settle().await;
    first.resign().await.unwrap();
    let second = timeout(SOON, next_one).await.expect("nobody leads").unwrap();
    let seen = next(&mut election.observe()).await.expect("nobody is seen");
    assert!(seen.owner != token && (&seen.owner, seen.fence) == (second.token(), second.fence()), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_notice_makes_it_look_at_once() {
    let (_, store, locks) = world();
    store.hints(Hints::Pushed);
    let election = locks.election("billing").poll_interval(LONG);
    let mut leaders = election.observe();
    assert_eq!(next(&mut leaders).await, None);
    let _leadership = election.candidate("a").campaign().await.unwrap();
    assert!(timeout(secs(30), leaders.next()).await.is_err(), "it looks without a reason");
    store.push(&Notice::Changed);
    assert_eq!(label(timeout(ms(1), leaders.next()).await.unwrap().unwrap().unwrap().as_ref()), Some("a"));
}

/// A stream of notices that ends is armed anew, and never makes it look without a pause.
#[tokio::test(start_paused = true)]
async fn a_store_without_notices_is_looked_at_in_its_time() {
    for hints in [Hints::Silent, Hints::End, Hints::Fail] {
        let (_, store, locks) = world();
        store.hints(hints);
        let mut leaders = locks.election("billing").observe();
        assert_eq!(next(&mut leaders).await, None);
        assert!(timeout(secs(10), leaders.next()).await.is_err());
        let polls = store.calls().iter().filter(|(_, call)| matches!(call, Call::Inspect)).count();
        assert!((18..=21).contains(&polls), "{hints:?}: {polls} polls in 10 s");
    }
}

/// The leader is dead, so nobody says when its lease ends. An observer that looks seldom knows when.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_dead_leader_is_seen_when_its_lease_ends() {
    let (_, store, locks) = world();
    store.hints(Hints::Silent);
    let election = locks.election("billing").poll_interval(LONG);
    let guard = locks.mutex("billing").label("a").ttl(secs(6)).acquire().await.unwrap();
    let mut leaders = election.observe();
    assert_eq!(label(next(&mut leaders).await.as_ref()), Some("a"));
    // Nobody renews it.
    let _lease = guard.into_lease();
    let seen = timeout(secs(7), leaders.next()).await.expect("it was not seen");
    assert_eq!(seen.unwrap().unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_one_error_and_the_stream_goes_on() {
    let (_, store, locks) = world();
    let election = locks.election("billing");
    let _leadership = election.candidate("a").ttl(LONG).campaign().await.unwrap();
    let mut leaders = election.observe();
    assert_eq!(label(next(&mut leaders).await.as_ref()), Some("a"));
    store.fated(Fate::Fails);
    let told = timeout(LONG, leaders.next()).await.unwrap().unwrap().unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Unreachable);
    assert!(timeout(secs(10), leaders.next()).await.is_err(), "an outage comes twice");
    store.fated(Fate::Works);
    assert_eq!(label(next(&mut leaders).await.as_ref()), Some("a"), "after an outage nobody knows who leads");
}

#[tokio::test(start_paused = true)]
async fn an_error_that_stays_ends_the_stream() {
    let (_, store, locks) = world();
    store.fated(Fate::Says(ErrorKind::Refused));
    let mut leaders = locks.election("billing").observe();
    assert_eq!(leaders.next().await.unwrap().unwrap_err().kind(), ErrorKind::Refused);
    assert!(leaders.next().await.is_none());
    let told: Vec<_> = locks.election("").observe().collect().await;
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].as_ref().unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(locks.election("").candidate("a").campaign().await.unwrap_err().kind(), ErrorKind::Invalid);
    store.fated(Fate::Works);
    assert_eq!(locks.election("x").candidate("\n").campaign().await.unwrap_err().kind(), ErrorKind::Invalid);
}

/// A store that is behind shows an earlier leader again, or forgets a fence.
#[tokio::test(start_paused = true)]
async fn fences_never_go_back() {
    let (_, store, locks) = world();
    let election = locks.election("billing");
    let first = election.candidate("a").campaign().await.unwrap();
    let old = locks.inspect("billing").await.unwrap().unwrap();
    let mut leaders = election.observe();
    assert_eq!(label(next(&mut leaders).await.as_ref()), Some("a"));
    first.resign().await.unwrap();
    let second = election.candidate("b").campaign().await.unwrap();
    let seen = next(&mut leaders).await;
    assert_eq!((label(seen.as_ref()), seen.as_ref().unwrap().fence), (Some("b"), second.fence()));
    store.shows(old.clone());
    assert!(timeout(secs(10), leaders.next()).await.is_err(), "an old leader comes again");
    let mut without = old.clone();
    (without.holders[0].owner, without.holders[0].fence) = (second.token().clone(), None);
    store.shows(without);
    assert!(timeout(secs(10), leaders.next()).await.is_err(), "a fence is forgotten");
    let mut later = old;
    later.holders[0].fence = Fence::from_counter(second.fence().unwrap().counter() + 1);
    store.shows(later.clone());
    assert_eq!(next(&mut leaders).await.unwrap().fence, later.holders[0].fence);
}

/// A store that lost its counter gives new leaders smaller fences, and they are no old answers.
#[tokio::test(start_paused = true)]
async fn a_store_that_forgot_its_counter_is_one_error_and_the_stream_goes_on() {
    let (clock, store, locks) = world();
    let election = locks.election("billing");
    for _ in 0..2 {
        election.candidate("before").campaign().await.unwrap().resign().await.unwrap();
    }
    let _first = election.candidate("a").campaign().await.unwrap();
    let mut later = locks.inspect("billing").await.unwrap().unwrap();
    let mut leaders = election.observe();
    assert_eq!(label(next(&mut leaders).await.as_ref()), Some("a"));
    let below = Fence::from_counter(later.holders[0].fence.unwrap().counter() - 1);
    (later.holders[0].owner, later.holders[0].fence) = (Owner::generate("b").unwrap(), below);
    store.shows(later.clone());
    assert!(timeout(secs(10), leaders.next()).await.is_err(), "it is no old answer yet");
    clock.sleep(secs(31));
    let told = timeout(SOON, leaders.next()).await.expect("no error").unwrap().unwrap_err();
    assert!(told.kind() == ErrorKind::Unavailable && told.to_string().contains("counter"), "{told}");
    let seen = next(&mut leaders).await.unwrap();
    assert_eq!((label(Some(&seen)), seen.fence), (Some("b"), below));
    clock.sleep(secs(60));
    assert!(timeout(secs(10), leaders.next()).await.is_err(), "it comes twice");
}

/// Two old answers far apart, and nobody between them, are no store that shows nothing else.
#[tokio::test(start_paused = true)]
async fn an_old_answer_after_nobody_is_an_old_answer() {
    let (clock, store, locks) = world();
    let election = locks.election("billing");
    election.candidate("before").campaign().await.unwrap().resign().await.unwrap();
    let first = election.candidate("a").campaign().await.unwrap();
    let mut old = locks.inspect("billing").await.unwrap().unwrap();
    let mut leaders = election.observe();
    assert_eq!(label(next(&mut leaders).await.as_ref()), Some("a"));
    let below = Fence::from_counter(first.fence().unwrap().counter() - 1);
    (old.holders[0].owner, old.holders[0].fence) = (Owner::generate("old").unwrap(), below);
    store.shows(old.clone());
    assert!(timeout(secs(10), leaders.next()).await.is_err(), "an old leader comes again");
    let mut nobody = old.clone();
    nobody.holders.clear();
    store.shows(nobody);
    assert_eq!(next(&mut leaders).await, None);
    clock.sleep(secs(31));
    store.shows(old);
    assert!(timeout(secs(10), leaders.next()).await.is_err(), "an old leader comes again after nobody");
}

/// New leaders below are no old answers, though nobody leads between them.
#[tokio::test(start_paused = true)]
async fn short_leads_of_a_store_that_forgot_its_counter_are_seen() {
    let (clock, store, locks) = world();
    let election = locks.election("billing");
    for _ in 0..9 {
        election.candidate("before").campaign().await.unwrap().resign().await.unwrap();
    }
    let _first = election.candidate("a").campaign().await.unwrap();
    let entry = locks.inspect("billing").await.unwrap().unwrap();
    let mut leaders = election.observe();
    assert_eq!(label(next(&mut leaders).await.as_ref()), Some("a"));
    let mut told = None;
    for counter in 1..5 {
        let mut shown = entry.clone();
        (shown.holders[0].owner, shown.holders[0].fence) = (Owner::generate("b").unwrap(), Fence::from_counter(counter));
        store.shows(shown.clone());
        told = told.or(timeout(secs(2), leaders.next()).await.ok().and_then(|item| item.unwrap().err()));
        clock.sleep(secs(12));
        shown.holders.clear();
        store.shows(shown);
        let _ = timeout(secs(2), leaders.next()).await;
    }
    assert!(told.is_some_and(|error| error.to_string().contains("counter")), "no leader is seen any more");
}
