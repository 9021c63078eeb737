//! The core over a store whose answers the test decides: what is asked, how often, and what is made of it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops where its set-up does")]

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use tenure::{
    Acquired, BootTime, Clock, Entry, Error, ErrorKind, Features, Lease, Locker, MemoryStore, Name, Notice, Owner, Release,
    Released, Renewal, Request, State, Store, Waiting,
};
use tokio::sync::Notify;
use tokio::time::timeout;

/// What becomes of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Works,
    /// Not executed, and told so.
    Fails,
    /// Executed, and the answer is lost.
    Unheard,
    /// Executed, and never answered.
    Hangs,
}

/// A store in memory that fails as it is told, and keeps count.
#[derive(Clone)]
struct Fickle(Arc<State_>);

struct State_ {
    inner: MemoryStore,
    fate: Mutex<Fate>,
    late_commands: bool,
    acquired: Mutex<Vec<Owner>>,
    released: Mutex<Vec<Owner>>,
    renewals: Mutex<Vec<usize>>,
    calls: AtomicUsize,
    called: Notify,
}

impl Fickle {
    fn new() -> Self {
        Self::with(false)
    }

    fn with(late_commands: bool) -> Self {
        Self(Arc::new(State_ {
            inner: MemoryStore::new(),
            fate: Mutex::new(Fate::Works),
            late_commands,
            acquired: Mutex::default(),
            released: Mutex::default(),
            renewals: Mutex::default(),
            calls: AtomicUsize::new(0),
            called: Notify::new(),
        }))
    }

    fn fated(&self, fate: Fate) {
        *self.0.fate.lock().unwrap() = fate;
    }

    fn released(&self) -> Vec<Owner> {
        self.0.released.lock().unwrap().clone()
    }

    async fn meets<T>(&self, call: impl Future<Output = Result<T, Error>> + Send) -> Result<T, Error> {
        self.0.calls.fetch_add(1, Ordering::SeqCst);
        self.0.called.notify_waiters();
        let fate = *self.0.fate.lock().unwrap();
        if fate == Fate::Fails {
            return Err(Error::unreachable("no connection"));
        }
        let answer = call.await;
        match fate {
            Fate::Unheard => Err(Error::unreachable("the reply was lost").maybe_applied()),
            Fate::Hangs => std::future::pending().await,
            _ => answer,
        }
    }
}

#[async_trait]
impl Store for Fickle {
    fn features(&self) -> Features {
        Features {
            late_commands: self.0.late_commands,
            operation_timeout: Some(Duration::from_millis(200)),
            ..self.0.inner.features()
        }
    }

    async fn acquire(&self, request: &Request) -> Result<Acquired, Error> {
        assert!(
            !request.repeatable || !self.released().contains(&request.owner),
            "a token was used again after its release was sent (U4)"
        );
        self.0.acquired.lock().unwrap().push(request.owner.clone());
        self.meets(self.0.inner.acquire(request)).await
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal, Error>> {
        self.0.renewals.lock().unwrap().push(leases.len());
        match self.meets(async { Ok(self.0.inner.renew(leases).await) }).await {
            Ok(answers) => answers,
            Err(error) => leases.iter().map(|_| Err(error.copy())).collect(),
        }
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<Released, Error> {
        self.0.released.lock().unwrap().push(lease.owner.clone());
        self.meets(self.0.inner.release(lease, linger)).await
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        self.0.inner.watch(request).await
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        self.meets(self.0.inner.inspect(name)).await
    }
}

impl fmt::Display for Fickle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("fickle:")
    }
}

impl fmt::Debug for Fickle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fickle")
    }
}

const LONG: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(5);

#[tokio::test]
async fn an_unheard_grant_is_found_again_under_the_same_token() {
    let store = Fickle::new();
    let locks = Locker::new(store.clone());
    let _ = locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    store.0.acquired.lock().unwrap().clear();
    store.fated(Fate::Unheard);
    let waiting = tokio::spawn(async move { locks.mutex("door").ttl(LONG).acquire().await });
    store.0.called.notified().await;
    store.fated(Fate::Works);
    let guard = timeout(SOON, waiting).await.unwrap().unwrap().unwrap();
    let asked: BTreeSet<Owner> = store.0.acquired.lock().unwrap().iter().cloned().collect();
    assert_eq!(asked, BTreeSet::from([guard.token()]));
}

#[tokio::test]
async fn a_try_that_is_unheard_says_so_and_is_cleared_up() {
    let store = Fickle::new();
    let locks = Locker::new(store.clone());
    for fate in [Fate::Unheard, Fate::Hangs] {
        store.fated(fate);
        let error = locks.mutex("door").ttl(LONG).try_acquire().await.unwrap_err();
        assert_eq!((error.kind(), error.may_have_been_applied()), (ErrorKind::Unreachable, true));
        store.fated(Fate::Works);
        timeout(SOON, locks.settled()).await.unwrap();
        assert_eq!(locks.list().await.unwrap(), [], "{fate:?}");
    }
}

#[tokio::test]
async fn nothing_is_cleared_up_where_nothing_can_be() {
    let store = Fickle::new();
    let locks = Locker::new(store.clone());
    let _guard = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
    assert!(locks.mutex("door").ttl(LONG).try_acquire().await.unwrap().is_none());
    store.fated(Fate::Fails);
    assert!(!locks.mutex("door").ttl(LONG).try_acquire().await.unwrap_err().may_have_been_applied());
    store.fated(Fate::Works);
    locks.settled().await;
    assert_eq!(store.released(), [], "a busy answer and a failed send leave nothing to release");
}

#[tokio::test]
async fn a_given_token_is_neither_retried_nor_cleared_up() {
    let store = Fickle::new();
    let locks = Locker::new(store.clone());
    let token = Owner::from_bytes(&b"fixed"[..]);
    store.fated(Fate::Unheard);
    let error = locks.mutex("door").ttl(LONG).token(token.clone()).acquire().await.unwrap_err();
    assert!(error.may_have_been_applied());
    store.fated(Fate::Works);
    locks.settled().await;
    assert_eq!((store.0.acquired.lock().unwrap().len(), store.released().len()), (1, 0));
    // What ends by its longest hold is certainly still ours at the store.
    let capped =
        locks.mutex("capped").ttl(LONG).max_hold(Duration::from_millis(50)).token(token.clone()).acquire().await.unwrap();
    timeout(SOON, capped.lost()).await.unwrap();
    assert!(matches!(capped.release().await.unwrap(), Release::WasLost));
    assert_eq!(store.released().len(), 1);
    store.0.released.lock().unwrap().clear();
    // What the store has let go is not released: the value may be another's by now.
    let guard = locks.mutex("gate").ttl(Duration::from_secs(1)).fixed_lease().token(token).acquire().await.unwrap();
    timeout(SOON, guard.lost()).await.unwrap();
    tokio::time::sleep(guard.lease_remaining()).await;
    assert!(matches!(guard.release().await.unwrap(), Release::WasLost));
    locks.settled().await;
    assert_eq!(store.released(), []);
}

#[tokio::test]
async fn late_commands_are_cleared_up_after_until_they_cannot_come() {
    let store = Fickle::with(true);
    let locks = Locker::new(store.clone());
    let ttl = Duration::from_millis(900);
    let guard = locks.mutex("door").ttl(ttl).acquire().await.unwrap();
    let started = std::time::Instant::now();
    drop(guard);
    timeout(SOON, locks.settled()).await.unwrap();
    assert!(started.elapsed() >= ttl * 8 / 9, "settled after {:?}", started.elapsed());
    assert!(store.released().len() > 1);
}

#[tokio::test]
async fn a_store_that_never_answered_is_given_up_and_one_that_did_is_waited_for() {
    let store = Fickle::new();
    let locks = Locker::new(store.clone());
    store.fated(Fate::Fails);
    let error = timeout(Duration::from_secs(8), locks.mutex("door").acquire()).await.expect("it waits for ever").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    store.fated(Fate::Works);
    let _ = locks.mutex("door").acquire().await.unwrap().release().await.unwrap();
    store.fated(Fate::Fails);
    let told = Arc::new(Mutex::new(Vec::new()));
    let observer = {
        let told = told.clone();
        move |what: Waiting<'_>| told.lock().unwrap().push(format!("{what:?}").split(['(', ' ']).next().unwrap().to_owned())
    };
    let waiting = tokio::spawn(async move { locks.mutex("door").on_wait(observer).acquire().await });
    for _ in 0..3 {
        store.0.called.notified().await;
    }
    assert!(!waiting.is_finished());
    store.fated(Fate::Works);
    let _guard = timeout(SOON, waiting).await.unwrap().unwrap().unwrap();
    assert_eq!(*told.lock().unwrap(), ["Outage", "Recovered"], "one line for each outage");
}

#[tokio::test]
async fn a_wait_that_ends_in_an_outage_says_so() {
    let store = Fickle::new();
    let locks = Locker::new(store.clone());
    let guard = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
    store.fated(Fate::Fails);
    let error = locks.mutex("door").ttl(LONG).wait(Duration::from_millis(400)).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    drop(guard);
}

#[tokio::test]
async fn renewals_share_batches_and_fixed_leases_stay_out() {
    let store = Fickle::new();
    let locks = Locker::new(store.clone());
    let mut guards = Vec::new();
    for i in 0..500 {
        let acquire = locks.mutex(format!("door {i}")).ttl(Duration::from_secs(3));
        guards.push(if i % 5 == 0 { acquire.fixed_lease().acquire().await } else { acquire.acquire().await }.unwrap());
    }
    let renewed = async {
        while store.0.renewals.lock().unwrap().iter().sum::<usize>() < 400 {
            store.0.called.notified().await;
        }
    };
    timeout(SOON, renewed).await.unwrap();
    let batches = store.0.renewals.lock().unwrap().clone();
    assert!(batches.len() <= 20, "{batches:?}");
    assert!(guards.iter().all(|guard| guard.state() == State::Held));
}

#[tokio::test]
async fn an_outage_is_jeopardy_until_it_is_over_or_the_lease_is() {
    let store = Fickle::new();
    let locks = Locker::new(store.clone());
    let ttl = Duration::from_secs(3);
    let guard = locks.mutex("door").ttl(ttl).acquire().await.unwrap();
    for fate in [Fate::Fails, Fate::Unheard, Fate::Hangs] {
        store.fated(fate);
        until(|| guard.state() == State::Jeopardy).await;
        store.fated(Fate::Works);
        until(|| guard.state() == State::Held).await;
    }
    store.fated(Fate::Hangs);
    assert_eq!(timeout(SOON, guard.lost()).await.unwrap(), tenure::Loss::Expired);
    assert!(guard.lease_remaining() > Duration::ZERO, "told only when the lease had ended at the store");
}

#[tokio::test]
async fn an_extension_that_could_be_undone_by_a_late_renewal_is_refused() {
    let store = Fickle::with(true);
    let locks = Locker::new(store.clone());
    let guard = locks.mutex("door").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    store.fated(Fate::Unheard);
    until(|| guard.state() == State::Jeopardy).await;
    store.fated(Fate::Works);
    let error = guard.extend(LONG).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    guard.extend(Duration::from_secs(2)).await.unwrap();
}

#[tokio::test]
async fn a_release_without_an_answer_is_unknown_and_goes_on() {
    let store = Fickle::new();
    let locks = Locker::new(store.clone());
    let guard = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
    store.fated(Fate::Fails);
    match guard.release().await.unwrap() {
        Release::Unknown { until, error } => assert!(until <= LONG + SOON && error.is_transient(), "{until:?} {error}"),
        other => panic!("{other:?}"),
    }
    store.fated(Fate::Works);
    timeout(SOON, locks.settled()).await.unwrap();
    assert_eq!(locks.list().await.unwrap(), []);
}

#[tokio::test]
async fn a_release_that_is_dropped_half_way_goes_on() {
    let store = Fickle::new();
    let locks = Locker::new(store.clone());
    let guard = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
    store.fated(Fate::Hangs);
    assert!(timeout(Duration::from_millis(50), guard.release()).await.is_err());
    store.fated(Fate::Works);
    timeout(SOON, locks.settled()).await.unwrap();
    assert_eq!(locks.list().await.unwrap(), []);
}

#[tokio::test]
async fn a_grant_that_came_too_late_is_not_believed() {
    // Nothing of this lease is left to believe when its operation timeout has passed, so settings refuse it.
    let locks = Locker::new(Fickle::new());
    let error = locks.mutex("door").ttl(Duration::from_millis(220)).fixed_lease().acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

/// The boot-time clock of a machine that slept: it jumps, and no timer of the runtime notices (U12).
#[derive(Clone, Debug, Default)]
struct Slept(Arc<AtomicUsize>);

impl Clock for Slept {
    fn now(&self) -> BootTime {
        BootTime::now() + Duration::from_secs(self.0.load(Ordering::SeqCst) as u64)
    }

    fn sleep_until(&self, at: BootTime) -> BoxFuture<'static, ()> {
        let clock = self.clone();
        Box::pin(async move {
            while clock.now() < at {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
    }
}

#[tokio::test]
async fn a_machine_that_slept_finds_its_locks_lost() {
    let (clock, store) = (Slept::default(), Fickle::new());
    let locks = Locker::builder(store.clone()).clock(clock.clone()).build().unwrap();
    let guard = locks.mutex("door").ttl(Duration::from_secs(30)).acquire().await.unwrap();
    let lost = guard.lost();
    assert_eq!(guard.state(), State::Held);
    clock.0.store(28, Ordering::SeqCst);
    assert_eq!((guard.state(), guard.remaining()), (State::Lost, Duration::ZERO), "the first look tells it");
    assert_eq!(timeout(SOON, lost).await.unwrap(), tenure::Loss::Expired);
    assert_eq!(guard.run(async {}).await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn extreme_settings_neither_panic_nor_spin() {
    let locks = Locker::new(Fickle::new());
    let _guard = locks.mutex("door").ttl(LONG).max_hold(Duration::MAX).guard(Duration::from_secs(1)).acquire().await.unwrap();
    let endless = locks.mutex("door").ttl(LONG).wait(Duration::MAX).recheck(Duration::MAX).acquire();
    assert!(timeout(Duration::from_millis(50), endless).await.is_err());
    let spinning = locks.mutex("door").ttl(LONG).recheck(Duration::ZERO).acquire();
    assert!(timeout(Duration::from_millis(50), spinning).await.is_err());
    assert!(locks.mutex("door").guard(Duration::MAX).acquire().await.is_err());
}

async fn until(condition: impl Fn() -> bool + Send + Sync) {
    let met = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, met).await.expect("the condition is never met");
}
