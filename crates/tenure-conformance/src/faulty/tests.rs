//! Every fate of a faulty store, around the store in memory.

use std::time::Duration;

use tenure::store::{AcquireReply, ReleaseReply, RenewReply, Request, Store};
use tenure::{Error, ErrorKind, Lease, MemoryStore, Name, Owner, Share};
use tokio::time::timeout;

use super::{Fate, Faulty, Operation};

const LONG: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(10);
const DELAY: Duration = Duration::from_millis(500);
/// How long a test listens to be sure that nothing comes.
const SILENCE: Duration = Duration::from_millis(100);

fn faulty() -> Faulty<MemoryStore> {
    Faulty::new(MemoryStore::new())
}

fn request(name: &str) -> Request {
    let owner = Owner::generate("faulty").unwrap();
    let name = Name::new(name).unwrap();
    Request::new(name, owner, Share::MUTEX, LONG)
}

fn lease(request: &Request) -> Lease {
    request.lease()
}

async fn is_held(store: &Faulty<MemoryStore>, request: &Request) -> bool {
    !store.inner().inspect(Some(&request.name)).await.unwrap().is_empty()
}

/// Whether the error is one of a store out of reach, and says that the call may have been applied.
fn may_have<T: std::fmt::Debug>(answer: Result<T, Error>) -> bool {
    let error = answer.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    error.may_have_been_applied()
}

#[tokio::test]
async fn a_call_that_fails_is_applied_or_not_as_planned() {
    for (fate, says_maybe, applied) in
        [(Fate::FailsBefore, false, false), (Fate::Lost, true, false), (Fate::FailsAfter, true, true)]
    {
        let (store, request) = (faulty(), request("door"));
        store.at(Operation::Acquire, 1, fate);
        assert_eq!(may_have(store.acquire(&request).await), says_maybe, "{fate:?}");
        assert_eq!(is_held(&store, &request).await, applied, "{fate:?}");
        assert!(matches!(store.acquire(&request).await, Ok(AcquireReply::Granted(_))), "{fate:?}: one call only");
    }
}

#[tokio::test]
async fn every_kind_of_call_is_met_and_counted_on_its_own() {
    let (store, request) = (faulty(), request("door"));
    let lease = lease(&request);
    store.plan(|_, n| if n == 2 { Fate::FailsAfter } else { Fate::Works });
    for fails in [false, true, false] {
        assert_eq!(store.acquire(&request).await.is_err(), fails);
        assert_eq!(store.watch(&request).await.is_err(), fails);
        assert_eq!(store.inspect(None).await.is_err(), fails);
        assert_eq!(store.renew(&[lease.clone(), lease.clone()]).await.iter().map(Result::is_err).collect::<Vec<_>>(), [fails; 2]);
    }
    assert_eq!(store.release(&lease, Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    store.acquire(&request).await.unwrap();
    assert!(may_have(store.release(&lease, Duration::ZERO).await));
    assert!(!is_held(&store, &request).await);
    assert_eq!([Operation::Acquire, Operation::Release, Operation::Watch].map(|kind| store.calls(kind)), [4, 2, 3]);
}

#[tokio::test]
async fn a_chosen_call_is_counted_from_now_and_wins_over_the_plan() {
    let (store, request) = (faulty(), request("door"));
    store.acquire(&request).await.unwrap();
    store.plan(|_, _| Fate::FailsBefore);
    store.at(Operation::Acquire, 2, Fate::Works);
    assert!(store.acquire(&request).await.is_err());
    assert!(store.acquire(&request).await.is_ok());
    assert!(store.acquire(&request).await.is_err());
    store.heal();
    assert!(store.acquire(&request).await.is_ok());
}

#[tokio::test]
async fn a_call_hangs_until_heal_before_or_after_it_was_applied() {
    for (fate, applied) in [(Fate::HangsBefore, false), (Fate::HangsAfter, true)] {
        let (store, request) = (faulty(), request("door"));
        store.at(Operation::Acquire, 1, fate);
        let hanging = tokio::spawn({
            let (store, request) = (store.clone(), request.clone());
            async move { store.acquire(&request).await }
        });
        timeout(SOON, store.called(Operation::Acquire, 1)).await.unwrap();
        tokio::time::sleep(SILENCE).await;
        assert!(!hanging.is_finished());
        assert_eq!(is_held(&store, &request).await, applied, "{fate:?}");
        store.heal();
        assert!(matches!(timeout(SOON, hanging).await.unwrap().unwrap(), Ok(AcquireReply::Granted(_))));
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_is_delayed_before_or_after_it_was_applied() {
    for (fate, applied) in [(Fate::DelayedBefore(DELAY), false), (Fate::DelayedAfter(DELAY), true)] {
        let (store, request) = (faulty(), request("door"));
        store.at(Operation::Acquire, 1, fate);
        let start = tokio::time::Instant::now();
        let mut call = store.acquire(&request);
        assert!(timeout(SILENCE, &mut call).await.is_err());
        assert_eq!(is_held(&store, &request).await, applied, "{fate:?}");
        assert!(matches!(call.await, Ok(AcquireReply::Granted(_))));
        assert!(start.elapsed() >= DELAY);
    }
}

#[tokio::test]
async fn a_call_is_applied_late_although_it_failed() {
    let (store, request) = (faulty().features(|features| features.late_commands = true), request("door"));
    assert!(Store::features(&store).late_commands);
    store.at(Operation::Acquire, 1, Fate::Late(DELAY));
    assert!(may_have(store.acquire(&request).await));
    assert!(!is_held(&store, &request).await);
    let applied = async {
        while !is_held(&store, &request).await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, applied).await.unwrap();
}

#[tokio::test]
async fn without_faults_it_is_the_store_in_it() {
    let (store, request) = (faulty(), request("door"));
    assert_eq!(store.to_string(), store.inner().to_string());
    assert_eq!(Store::features(&store), store.inner().features());
    store.acquire(&request).await.unwrap();
    let answers = store.renew(&[lease(&request)]).await;
    assert!(matches!(answers[..], [Ok(RenewReply::Renewed)]));
}
