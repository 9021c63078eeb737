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
    /// Executed, and answered after [`SLOW`].
    Slow,
    /// The store's code fails, once.
    Panics,
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
    /// Ends the wait of a call that hangs.
    answer: Notify,
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
            answer: Notify::new(),
        }))
    }

    fn fated(&self, fate: Fate) {
        *self.0.fate.lock().unwrap() = fate;
    }

    /// Has the machine sleep, and then the call that hangs be answered.
    fn sleep_then_answer(&self, clock: &Slept, seconds: usize) {
        self.fated(Fate::Works);
        clock.0.fetch_add(seconds, Ordering::SeqCst);
        self.0.answer.notify_one();
    }

    fn released(&self) -> Vec<Owner> {
        self.0.released.lock().unwrap().clone()
    }

    async fn meets<T>(&self, call: impl Future<Output = Result<T, Error>> + Send) -> Result<T, Error> {
        self.0.calls.fetch_add(1, Ordering::SeqCst);
        self.0.called.notify_waiters();
        let fate = *self.0.fate.lock().unwrap();
        if fate == Fate::Panics {
            self.fated(Fate::Works);
            panic!("as the test wants it");
        }
        if fate == Fate::Fails {
            return Err(Error::unreachable("no connection"));
        }
        let answer = call.await;
        match fate {
            Fate::Unheard => Err(Error::unreachable("the reply was lost").maybe_applied()),
            Fate::Slow => {
                tokio::time::sleep(SLOW).await;
                answer
            }
            Fate::Hangs => {
                self.0.answer.notified().await;
                answer
            }
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

/// A store that needs half a millisecond for each lease it renews: a batch takes its time.
#[derive(Debug)]
struct SlowByLease(MemoryStore);

#[async_trait]
impl Store for SlowByLease {
    fn features(&self) -> Features {
        self.0.features()
    }

    async fn acquire(&self, request: &Request) -> Result<Acquired, Error> {
        self.0.acquire(request).await
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal, Error>> {
        tokio::time::sleep(Duration::from_micros(500) * u32::try_from(leases.len()).unwrap()).await;
        self.0.renew(leases).await
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<Released, Error> {
        self.0.release(lease, linger).await
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        self.0.watch(request).await
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        self.0.inspect(name).await
    }
}

impl fmt::Display for SlowByLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("slow:")
    }
}

const LONG: Duration = Duration::from_secs(60);
const SLOW: Duration = Duration::from_millis(150);
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
async fn belief_counts_from_the_send_and_not_from_the_answer() {
    let store = Fickle::new();
    let locks = Locker::new(store.clone());
    store.fated(Fate::Slow);
    let ttl = Duration::from_secs(3);
    let guard = locks.mutex("door").ttl(ttl).acquire().await.unwrap();
    assert!(
        guard.lease_remaining() <= ttl.saturating_sub(SLOW),
        "{:?} of a grant that was {SLOW:?} on its way",
        guard.lease_remaining()
    );
    guard.extend(ttl * 2).await.unwrap();
    assert!(guard.lease_remaining() <= (ttl * 2).saturating_sub(SLOW), "{:?} of a renewal", guard.lease_remaining());
    store.fated(Fate::Works);
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
    let ttl = Duration::from_secs(2);
    store.fated(Fate::Unheard);
    let started = std::time::Instant::now();
    let error = locks.mutex("door").ttl(ttl).try_acquire().await.unwrap_err();
    assert!(error.may_have_been_applied());
    store.fated(Fate::Works);
    timeout(SOON, locks.settled()).await.unwrap();
    assert!(started.elapsed() >= ttl, "settled after {:?}, when the acquire may still run", started.elapsed());
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
async fn a_shorter_extension_shortens_nothing() {
    let store = Fickle::new();
    let (ours, theirs) = (Locker::new(store.clone()), Locker::new(store.clone()));
    for unheard in [false, true] {
        let guard = ours.mutex("door").ttl(LONG).guard(Duration::from_millis(100)).fixed_lease().acquire().await.unwrap();
        store.fated(if unheard { Fate::Unheard } else { Fate::Works });
        assert_eq!(guard.extend(Duration::from_millis(900)).await.is_err(), unheard);
        store.fated(Fate::Works);
        // By its token anyone may ask for less, and gets no less for it.
        theirs.renew(&Lease { ttl: Duration::from_millis(100), ..lease_of(&guard) }).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(guard.state(), State::Held);
        assert!(theirs.mutex("door").ttl(LONG).try_acquire().await.unwrap().is_none(), "two hold");
        let _ = guard.release().await.unwrap();
    }
}

fn lease_of(guard: &tenure::Guard) -> Lease {
    Lease { name: guard.name(), owner: guard.token(), share: tenure::Share::MUTEX, ttl: LONG, fence: guard.fence() }
}

#[tokio::test]
async fn answered_tries_are_not_cleared_up_after_for_ever() {
    let store = Fickle::with(true);
    let locks = Locker::new(store.clone());
    let guard = locks.mutex("door").ttl(LONG).acquire().await.unwrap();
    for _ in 0..20 {
        assert!(locks.mutex("door").ttl(LONG).try_acquire().await.unwrap().is_none());
    }
    drop(guard);
    timeout(Duration::from_secs(1), locks.settled()).await.expect("an answered release is repeated");
    assert_eq!(store.released().len(), 1);
}

#[tokio::test]
async fn a_given_tokens_release_is_sent_once() {
    let store = Fickle::new();
    let (ours, theirs) = (Locker::new(store.clone()), Locker::new(store.clone()));
    let token = Owner::from_bytes(&b"fixed"[..]);
    let guard = ours.mutex("door").ttl(LONG).token(token.clone()).acquire().await.unwrap();
    store.fated(Fate::Unheard);
    assert!(matches!(guard.release().await.unwrap(), Release::Unknown { .. }));
    store.fated(Fate::Works);
    let next = theirs.mutex("door").ttl(LONG).token(token.clone()).acquire().await.unwrap();
    ours.settled().await;
    next.verify().await.expect("the first holder's release was repeated and freed the second's lock");
    let dropped = ours.mutex("gate").ttl(LONG).token(token).acquire().await.unwrap();
    store.fated(Fate::Unheard);
    drop(dropped);
    ours.settled().await;
    assert_eq!(store.released().len(), 2);
    assert_eq!(theirs.adopt(&lease_of(&next)).await.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn work_does_not_go_on_after_a_pause() {
    let locks = Locker::new(Fickle::new());
    let guard = locks.mutex("door").ttl(Duration::from_secs(1)).acquire().await.unwrap();
    let steps = AtomicUsize::new(0);
    let outcome = guard
        .run(async {
            // The whole process stands still, with it the task that renews.
            std::thread::sleep(guard.remaining());
            for _ in 0..10 {
                tokio::task::yield_now().await;
                steps.fetch_add(1, Ordering::SeqCst);
            }
        })
        .await;
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(steps.load(Ordering::SeqCst), 0, "work went on after the deadline");
}

/// The watchdog's task lives in one runtime; holders of other runtimes are told of a loss all the same, and can go on.
#[test]
fn every_runtime_is_told_of_its_losses() {
    let locks = Locker::new(Fickle::new());
    let brief = Duration::from_secs(1);
    // Undriven from its first call on, and then gone.
    for gone in [false, true] {
        let first = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let other = first.block_on(locks.mutex("other").ttl(LONG).acquire()).unwrap();
        let first = if gone { None } else { Some(first) };
        let second = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        second.block_on(async {
            let guard = locks.mutex("door").ttl(brief).fixed_lease().acquire().await.unwrap();
            let lost = timeout(SOON, guard.run(std::future::pending::<()>())).await.expect("the work runs on");
            assert_eq!(lost.unwrap_err().kind(), ErrorKind::Lost);
            assert_eq!(timeout(SOON, guard.lost()).await.unwrap(), tenure::Loss::Expired);
            drop(guard);
            // And the next guard is renewed here.
            let guard = locks.mutex("door").ttl(brief).acquire().await.unwrap();
            tokio::time::sleep(Duration::from_secs(3)).await;
            if guard.state() == State::Lost {
                // The other task's runtime was taken to be asleep only after its time; from now on this one renews.
                drop(guard);
                let guard = locks.mutex("door").ttl(brief).acquire().await.unwrap();
                tokio::time::sleep(brief * 2).await;
                assert_eq!(guard.state(), State::Held, "nobody renews");
            }
            drop(other);
            timeout(SOON, locks.settled()).await.expect("nobody clears up");
        });
        drop(first);
    }
}

/// A store that panics once costs a task, and no lock.
#[tokio::test]
async fn a_panic_in_a_store_costs_no_lock() {
    let store = Fickle::new();
    let locks = Locker::new(store.clone());
    let guard = locks.mutex("door").ttl(Duration::from_secs(2)).acquire().await.unwrap();
    store.fated(Fate::Panics);
    until(|| *store.0.fate.lock().unwrap() == Fate::Works).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(guard.state(), State::Held);
}

/// One short lock among long ones renews on its own terms.
#[tokio::test]
async fn a_short_lease_does_not_hurry_the_long_ones() {
    let locks = Locker::new(SlowByLease(MemoryStore::new()));
    let mut guards = Vec::new();
    for i in 0..200 {
        guards.push(locks.mutex(format!("door {i}")).ttl(Duration::from_secs(4)).acquire().await.unwrap());
    }
    let started = std::time::Instant::now();
    while started.elapsed() < Duration::from_secs(6) {
        if let Ok(short) = locks.mutex("short").ttl(Duration::from_millis(300)).acquire().await {
            tokio::time::sleep(Duration::from_millis(150)).await;
            drop(short);
        }
    }
    let held = guards.iter().filter(|guard| guard.state() != State::Lost).count();
    assert_eq!(held, guards.len());
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
    let (clock, store) = (Slept::default(), Fickle::new());
    let locks = Locker::builder(store.clone()).clock(clock.clone()).build().unwrap();
    store.fated(Fate::Hangs);
    let waiting = {
        let locks = locks.clone();
        tokio::spawn(async move { locks.mutex("door").ttl(LONG).acquire().await.unwrap() })
    };
    store.0.called.notified().await;
    // The machine sleeps longer than the lease between the grant and its answer.
    store.sleep_then_answer(&clock, 70);
    let guard = timeout(SOON, waiting).await.unwrap().unwrap();
    assert_eq!(guard.state(), State::Held);
    locks.settled().await;
    let asked = store.0.acquired.lock().unwrap().clone();
    assert!(asked.len() >= 2 && asked[0] != guard.token(), "the token of the late grant was used again");
    assert!(store.released().contains(&asked[0]), "what came too late was not given up");
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
