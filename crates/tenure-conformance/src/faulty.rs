//! A store that fails where a test says so, around any other.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{pending, poll_fn};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tenure::store::{AcquireReply, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{Entry, Error, ErrorKind, Lease, Name};
use tokio::sync::watch;

/// The calls of a store that a fate may meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// [`Store::acquire`].
    Acquire,
    /// [`Store::renew`]; all leases of one call share its fate.
    Renew,
    /// [`Store::release`].
    Release,
    /// [`Store::watch`]; what the stream says later is never touched.
    Watch,
    /// [`Store::inspect`].
    Inspect,
}

/// Fate of one call. Every error is [`unreachable`](Error::unreachable), unless the fate names its kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// It works.
    #[default]
    Works,
    /// It fails and is not applied, and the error says so: no connection.
    FailsBefore,
    /// It fails with an error of this kind, which says that it is not applied.
    Fails(ErrorKind),
    /// It is not applied, and the error cannot know: the request was lost.
    Lost,
    /// It is applied, and the error says that it may have been: the reply was lost.
    FailsAfter,
    /// It fails as [`Lost`](Self::Lost), and is applied so much later all the same, in a task of its own. A store that may
    /// do this says so in [`Features::late_commands`]; see [`Faulty::features`].
    Late(Duration),
    /// It is not applied and not answered before [`Faulty::heal`]; then it works, if its caller still waits.
    HangsBefore,
    /// It is applied, and not answered before [`Faulty::heal`].
    HangsAfter,
    /// It is applied so much later.
    DelayedBefore(Duration),
    /// It is applied at once and answered so much later.
    DelayedAfter(Duration),
    /// It works, and gives way before it is applied and before it is answered: its caller may go away at either.
    Yields,
}

type Plan = dyn Fn(Operation, u64) -> Fate + Send + Sync;
type ByName = dyn Fn(&Name) -> Fate + Send + Sync;
type Change = dyn Fn(&mut Features) + Send + Sync;

/// A store whose calls meet the fates that a test plans; without any it is the store in it. Clones are one store.
#[derive(Clone)]
pub struct Faulty<S> {
    store: Arc<S>,
    change: Option<Arc<Change>>,
    faults: Arc<Faults>,
}

#[derive(Default)]
struct Faults {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    calls: BTreeMap<Operation, u64>,
    chosen: BTreeMap<(Operation, u64), Fate>,
    plan: Option<Arc<Plan>>,
    by_name: Option<Arc<ByName>>,
    heals: u64,
}

impl<S: Store> Faulty<S> {
    /// A store without faults so far.
    pub fn new(store: S) -> Self {
        Self { store: Arc::new(store), change: None, faults: Arc::default() }
    }

    /// Changes what the store says it can promise, as a shorter operation timeout.
    #[must_use]
    pub fn features(mut self, change: impl Fn(&mut Features) + Send + Sync + 'static) -> Self {
        self.change = Some(Arc::new(change));
        self
    }

    /// The `k`-th call of this kind from now (1 is the next) meets this fate, whatever the plan says.
    pub fn at(&self, operation: Operation, k: u64, fate: Fate) {
        assert!(k > 0, "calls are counted from 1");
        let mut state = self.faults.lock();
        let number = state.calls.get(&operation).copied().unwrap_or_default() + k;
        state.chosen.insert((operation, number), fate);
    }

    /// Every call from now on meets the fate that `plan` says; calls of each kind are numbered from 1 since the start.
    pub fn plan(&self, plan: impl Fn(Operation, u64) -> Fate + Send + Sync + 'static) {
        self.faults.lock().plan = Some(Arc::new(plan));
    }

    /// Every acquisition of one name from now on meets the fate that `plan` says, as where a shard is gone.
    pub fn plan_by_name(&self, plan: impl Fn(&Name) -> Fate + Send + Sync + 'static) {
        self.faults.lock().by_name = Some(Arc::new(plan));
    }

    /// Ends every fault: what hangs goes on, what was planned is forgotten.
    pub fn heal(&self) {
        let mut state = self.faults.lock();
        state.chosen.clear();
        (state.plan, state.by_name) = (None, None);
        state.heals += 1;
        drop(state);
        self.faults.changed.send_replace(());
    }

    /// How many calls of this kind were made.
    pub fn calls(&self, operation: Operation) -> u64 {
        self.faults.lock().calls.get(&operation).copied().unwrap_or_default()
    }

    /// Completes when `n` calls of this kind were made since the start, failing and hanging ones included.
    pub async fn called(&self, operation: Operation, n: u64) {
        let mut changed = self.faults.changed.subscribe();
        while self.calls(operation) < n && changed.changed().await.is_ok() {}
    }

    /// The store in it, which has no faults.
    pub fn inner(&self) -> &S {
        &self.store
    }

    /// Makes `call` as its fate will have it.
    async fn meet<T, C>(&self, operation: Operation, call: C) -> Result<T, Error>
    where
        T: Send + 'static,
        C: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let (fate, heals) = self.faults.next(operation);
        self.meets(fate, heals, call).await
    }

    async fn meets<T, C>(&self, fate: Fate, heals: u64, call: C) -> Result<T, Error>
    where
        T: Send + 'static,
        C: Future<Output = Result<T, Error>> + Send + 'static,
    {
        match (fate, heals) {
            (Fate::Works, _) => call.await,
            (Fate::FailsBefore, _) => Err(Error::unreachable("no connection, as the test wants it")),
            (Fate::Fails(kind), _) => Err(Error::new(kind, "as the test wants it")),
            (Fate::Lost, _) => Err(unanswered()),
            (Fate::FailsAfter, _) => {
                drop(call.await);
                Err(unanswered())
            }
            (Fate::Late(time), _) => {
                tokio::spawn(async move {
                    tokio::time::sleep(time).await;
                    drop(call.await);
                });
                Err(unanswered())
            }
            (Fate::HangsBefore, heals) => {
                self.faults.healed(heals).await;
                call.await
            }
            (Fate::HangsAfter, heals) => {
                let answer = call.await;
                self.faults.healed(heals).await;
                answer
            }
            (Fate::DelayedBefore(time), _) => {
                tokio::time::sleep(time).await;
                call.await
            }
            (Fate::DelayedAfter(time), _) => {
                let answer = call.await;
                tokio::time::sleep(time).await;
                answer
            }
            (Fate::Yields, _) => {
                gives_way().await;
                let answer = call.await;
                gives_way().await;
                answer
            }
        }
    }
}

/// Gives way once, to be polled again at once. The runtime's own way would be put off until other tasks have run.
async fn gives_way() {
    let mut gave_way = false;
    poll_fn(|context| {
        if std::mem::replace(&mut gave_way, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn unanswered() -> Error {
    Error::unreachable("no answer, as the test wants it").maybe_applied()
}

impl Faults {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call; its fate, and how often was healed before.
    fn next(&self, operation: Operation) -> (Fate, u64) {
        let mut state = self.lock();
        let number = state.calls.entry(operation).or_default();
        *number += 1;
        let number = *number;
        let (chosen, plan, heals) = (state.chosen.remove(&(operation, number)), state.plan.clone(), state.heals);
        // The test's own code may call us.
        drop(state);
        self.changed.send_replace(());
        (chosen.unwrap_or_else(|| plan.map_or(Fate::Works, |plan| plan(operation, number))), heals)
    }

    /// Completes at the first heal after the first `heals`.
    async fn healed(&self, heals: u64) {
        let mut changed = self.changed.subscribe();
        while self.lock().heals == heals {
            if changed.changed().await.is_err() {
                pending::<()>().await;
            }
        }
    }
}

#[async_trait]
impl<S: Store> Store for Faulty<S> {
    fn features(&self) -> Features {
        // Its faults take as long as they take.
        let mut features = self.store.features().with_timed_calls(false);
        if let Some(change) = &self.change {
            change(&mut features);
        }
        features
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        let (store, request) = (Arc::clone(&self.store), request.clone());
        let by_name = self.faults.lock().by_name.clone();
        let (fate, heals) = self.faults.next(Operation::Acquire);
        let fate = by_name.map_or(fate, |plan| plan(&request.name));
        self.meets(fate, heals, async move { store.acquire(&request).await }).await
    }

    async fn acquire_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        let (store, requests) = (Arc::clone(&self.store), requests.to_vec());
        self.meet(Operation::Acquire, async move { store.acquire_all(&requests).await }).await
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        let (store, theirs) = (Arc::clone(&self.store), leases.to_vec());
        match self.meet(Operation::Renew, async move { Ok(store.renew(&theirs).await) }).await {
            Ok(answers) => answers,
            Err(error) => leases.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        let (store, lease) = (Arc::clone(&self.store), lease.clone());
        self.meet(Operation::Release, async move { store.release(&lease, linger).await }).await
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        let (store, request) = (Arc::clone(&self.store), request.clone());
        self.meet(Operation::Watch, async move { store.watch(&request).await }).await
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        let (store, name) = (Arc::clone(&self.store), name.cloned());
        self.meet(Operation::Inspect, async move { store.inspect(name.as_ref()).await }).await
    }
}

impl<S: Store> fmt::Display for Faulty<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

impl<S: Store> fmt::Debug for Faulty<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Faulty({:?})", self.store)
    }
}

#[cfg(test)]
mod tests;
