//! The times of the cases, and the steps that many of them take.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use tenure::store::{AcquireReply, Enqueue, Grant, ReleaseReply, RenewReply, Request, Store};
use tenure::{Error, ErrorKind, Fence, Lease, Locker, Name, Owner, ReleaseOutcome, Share};
use tokio::task::JoinError;

use crate::{NotApplicable, Subject};

/// Long enough that a busy machine keeps it alive, short enough to wait for.
pub(crate) const TTL: Duration = Duration::from_millis(1_500);
/// For leases that must not end during the test.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// For the `handoff_ttl` of waiters that come: only a hang lasts as long.
pub(crate) const HANDOFF_TTL: Duration = Duration::from_secs(10);
/// For waits whose end is an event: only a hang lasts as long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// For the releases in the background. Where a call had no answer, they go on for as long as it may still be on its way; a lease
/// that nobody releases lives longer.
pub(crate) const CLEAN_UP: Duration = Duration::from_secs(45);

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(crate) fn owner() -> Owner {
    Owner::generate("conformance").unwrap()
}

pub(crate) fn request(text: &str, ttl: Duration) -> Request {
    Request::new(name(text), owner(), Share::MUTEX, ttl)
}

/// The same with a place in the queue, for as long as the test may last.
pub(crate) fn joining(request: &Request) -> Request {
    request.clone().with_enqueue(Enqueue::Join { entry_ttl: LONG, handoff_ttl: HANDOFF_TTL })
}

/// The heartbeat of a place.
pub(crate) fn keeping(request: &Request) -> Request {
    request.clone().with_enqueue(Enqueue::Heartbeat)
}

pub(crate) fn lease(request: &Request) -> Lease {
    request.lease()
}

/// The grant of a request that must be granted.
pub(crate) async fn granted(store: &dyn Store, request: &Request) -> Grant {
    match store.acquire(request).await.unwrap() {
        AcquireReply::Granted(grant) => grant,
        other => panic!("{:?} was to be granted: {other:?}", request.name),
    }
}

/// The answer to the renewal of one lease.
pub(crate) async fn renew(store: &dyn Store, lease: &Lease) -> RenewReply {
    let mut answers = store.renew(std::slice::from_ref(lease)).await;
    assert_eq!(answers.len(), 1, "{answers:?}");
    answers.remove(0).unwrap()
}

/// The error of a wait that came to its end. Any other is shown in its own words.
pub(crate) fn timed_out<T: Debug>(waited: Result<T, Error>) -> Error {
    let error = waited.unwrap_err();
    assert!(error.kind() == ErrorKind::TimedOut, "it is held: {error:?}");
    error
}

/// The outcome of a release that was answered.
pub(crate) fn outcome_of(released: Result<ReleaseOutcome, Error>) -> ReleaseOutcome {
    let answered = match released.unwrap() {
        ReleaseOutcome::Unknown { error, .. } => Err(error),
        outcome => Ok(outcome),
    };
    answered.unwrap()
}

/// The result of a task. Its panic goes on here, and is not printed again.
pub(crate) fn joined<T>(task: Result<T, JoinError>) -> T {
    task.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// Whether a later grant has the larger number; where the store does not count, it has none.
pub(crate) fn rises(store: &dyn Store, later: Option<Fence>, earlier: Option<Fence>) -> bool {
    if store.features().fence { later > earlier } else { later.is_none() }
}

/// For how long the store keeps a lease of this ttl: some know no shorter ones than they have.
pub(crate) async fn kept(store: &dyn Store, ttl: Duration) -> Duration {
    let probe = request("probe", ttl);
    let kept = granted(store, &probe).await.ttl;
    assert_eq!(store.release(&lease(&probe), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
    kept
}

pub(crate) async fn is_busy(store: &dyn Store, request: &Request) -> bool {
    match store.acquire(request).await.unwrap() {
        AcquireReply::Granted(_) => false,
        AcquireReply::Busy(_) => true,
        AcquireReply::Refused { why, .. } => panic!("refused: {why}"),
    }
}

/// Asks again until the request is granted.
pub(crate) async fn granted_at_last(store: &dyn Store, request: &Request) -> Grant {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        match store.acquire(request).await.unwrap() {
            AcquireReply::Granted(grant) => return grant,
            AcquireReply::Busy(_) => {}
            AcquireReply::Refused { why, .. } => panic!("refused: {why}"),
        }
        assert!(tokio::time::Instant::now() < deadline, "{:?} is not free after {PATIENCE:?}", request.name);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The time from `since` until the request that asks again and again is granted.
pub(crate) async fn granted_after(store: &dyn Store, request: &Request, since: tenure::BootTime) -> Duration {
    granted_at_last(store, request).await;
    tenure::BootTime::now().since(since)
}

pub(crate) async fn locker(subject: &dyn Subject) -> Locker {
    Locker::builder(subject.store().await).label("conformance").ttl(TTL).build().unwrap()
}

/// A handle on a store whose leases may pass from one process to another, or to nobody.
pub(crate) async fn of_any_process(subject: &dyn Subject) -> Result<Arc<dyn Store>, NotApplicable> {
    let store = subject.store().await;
    if store.features().process_bound { Err(NotApplicable("its leases are bound to their process")) } else { Ok(store) }
}

/// A handle on a store that lists its names.
pub(crate) async fn listing(subject: &dyn Subject) -> Result<Arc<dyn Store>, NotApplicable> {
    let store = subject.store().await;
    match store.inspect(None).await {
        Err(error) if error.kind() == ErrorKind::Unsupported => Err(NotApplicable("it does not list its names")),
        listed => {
            listed.unwrap();
            Ok(store)
        }
    }
}

/// The name is free and nothing of ours is left at it.
pub(crate) async fn assert_free(subject: &dyn Subject, text: &str) {
    let left = subject.store().await.inspect(Some(&name(text))).await.unwrap();
    assert!(left.is_empty(), "something was left behind: {left:?}");
}
