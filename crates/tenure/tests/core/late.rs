//! At a store with late commands: what an abandoned command did is released until it cannot run any
//! more.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tenure::store::{AcquireReply, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{BootTime, Clock, Entry, Error, ErrorKind, Guard, Lease, Locker, MemoryStore, Name};

use crate::test_clock::TestClock;

/// Holds the first acquire back until the test runs it, or until a release runs within a set time.
#[derive(Clone, Debug)]
struct Late {
    clock: TestClock,
    inner: MemoryStore,
    asked: Arc<Mutex<bool>>,
    held: Arc<Mutex<Option<Request>>>,
    run_within: Arc<Mutex<Option<(BootTime, BootTime)>>>,
    answer_after: Duration,
}

impl Late {
    fn new(answer_after: Duration) -> Self {
        let (asked, held, run_within) = <_>::default();
        let clock = TestClock::new();
        Self { inner: MemoryStore::with_clock(clock.clone()), clock, asked, held, run_within, answer_after }
    }

    async fn run_late(&self) {
        let request = self.held.lock().unwrap().take();
        if let Some(request) = request {
            let _ = self.inner.acquire(&request).await;
        }
    }
}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("late:")
    }
}

#[async_trait]
impl Store for Late {
    fn features(&self) -> Features {
        self.inner.features().with_late_commands(true)
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        if !std::mem::replace(&mut *self.asked.lock().unwrap(), true) {
            *self.held.lock().unwrap() = Some(request.clone());
            return Err(Error::new(ErrorKind::Unreachable, "no answer").maybe_applied());
        }
        self.inner.acquire(request).await
    }

    async fn acquire_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        self.inner.acquire_all(requests).await
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        self.inner.renew(leases).await
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        let answer = self.inner.release(lease, linger).await;
        let now = self.clock.now();
        let is_due = self.run_within.lock().unwrap().is_some_and(|(from, until)| from <= now && now < until);
        if is_due {
            self.run_late().await;
        }
        tokio::time::sleep(self.answer_after).await;
        answer
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        self.inner.watch(request).await
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        self.inner.inspect(name).await
    }
}

fn locks(store: &Late, ttl: Duration) -> Locker {
    Locker::builder(store.clone()).clock(store.clock.clone()).ttl(ttl).build().unwrap()
}

/// A guard whose first acquire had no answer, and has not run yet.
async fn held_once_unheard(store: &Late, ttl: Duration) -> Guard {
    locks(store, ttl).mutex("x").wait(Duration::from_secs(5)).acquire().await.unwrap()
}

async fn is_free_within(store: &Late, limit: Duration) -> bool {
    let (name, end) = (Name::new("x").unwrap(), store.clock.now() + limit);
    while store.clock.now() < end {
        if store.inspect(Some(&name)).await.unwrap().is_empty() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    false
}

#[tokio::test(start_paused = true)]
async fn a_late_acquire_after_the_release_is_cleared_up() {
    for dropped in [false, true] {
        let store = Late::new(Duration::ZERO);
        let guard = held_once_unheard(&store, Duration::from_secs(3)).await;
        if dropped {
            drop(guard);
        } else {
            let _ = guard.release().await.unwrap();
        }
        assert!(is_free_within(&store, Duration::from_secs(1)).await, "dropped {dropped}: it was not released");
        store.run_late().await;
        assert!(is_free_within(&store, Duration::from_secs(1)).await, "dropped {dropped}: the name is taken for nobody");
    }
}

/// The acquire runs just before it cannot any more, in a release that is answered only after that.
#[tokio::test(start_paused = true)]
async fn the_last_clean_up_is_sent_after_the_ttl_has_passed() {
    let (ttl, answer) = (Duration::from_secs(1), Duration::from_millis(120));
    let mut tried = 0;
    // Releases are sent with jitter, so not every run has one at that moment.
    for _ in 0..50 {
        let store = Late::new(answer);
        let guard = held_once_unheard(&store, ttl).await;
        let end = store.clock.now() + ttl;
        *store.run_within.lock().unwrap() = Some((end - answer, end));
        drop(guard);
        tokio::time::sleep_until(tokio::time::Instant::now() + ttl + answer).await;
        if store.held.lock().unwrap().is_none() {
            tried += 1;
            assert!(is_free_within(&store, Duration::from_millis(400)).await, "the name is taken for nobody after its clean-up");
        }
    }
    assert!(tried > 5, "only {tried} times was there a clean-up at that moment");
}

/// Also where the guard was passed on in between.
#[tokio::test(start_paused = true)]
async fn a_late_acquire_is_cleared_up_after_the_last_who_had_the_lease() {
    let store = Late::new(Duration::ZERO);
    let locks = locks(&store, Duration::from_secs(3));
    let guard = locks.mutex("x").wait(Duration::from_secs(5)).acquire().await.unwrap();
    let waiting = tokio::spawn(locks.mutex("x").acquire());
    crate::settle().await;
    let fence = guard.fence().unwrap();
    drop(guard);
    let next = waiting.await.unwrap().unwrap();
    assert_eq!(next.fence(), fence.next(), "it was not passed on");
    drop(next);
    assert!(is_free_within(&store, Duration::from_secs(1)).await);
    store.run_late().await;
    assert!(is_free_within(&store, Duration::from_secs(1)).await, "the name is taken for nobody");
}
