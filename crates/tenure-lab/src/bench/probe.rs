//! A store that notes what is asked of it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tenure::store::{AcquireReply, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{BootTime, Entry, Error, Lease, Name};

use crate::bench::meter::Latencies;

/// Calls since the last [`take`](Probe::take).
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// One for each call.
    pub(super) calls: Latencies,
    /// One for each lease that was renewed: as long as the call that renewed it.
    pub(super) renewals: Latencies,
}

/// A store that notes what is asked of it. Clones are one store.
#[derive(Clone)]
pub(super) struct Probe {
    store: Arc<dyn Store>,
    noted: Arc<Mutex<Noted>>,
}

impl Probe {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, noted: Arc::default() }
    }

    /// Returns the calls since the last time, and forgets them.
    pub(super) fn take(&self) -> Noted {
        std::mem::take(&mut self.noted())
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn note<T>(&self, call: impl Future<Output = T> + Send) -> (T, Duration) {
        let began = BootTime::now();
        let answer = call.await;
        let took = BootTime::now().since(began);
        self.noted().calls.add(took);
        (answer, took)
    }
}

#[async_trait]
impl Store for Probe {
    fn features(&self) -> Features {
        self.store.features()
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        self.note(self.store.acquire(request)).await.0
    }

    async fn acquire_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        self.note(self.store.acquire_all(requests)).await.0
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        let (answers, took) = self.note(self.store.renew(leases)).await;
        let renewed = answers.iter().filter(|answer| matches!(answer, Ok(RenewReply::Renewed)));
        let mut noted = self.noted();
        renewed.for_each(|_| noted.renewals.add(took));
        drop(noted);
        answers
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        self.note(self.store.release(lease, linger)).await.0
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        self.note(self.store.watch(request)).await.0
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        self.note(self.store.inspect(name)).await.0
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Probe({:?})", self.store)
    }
}
