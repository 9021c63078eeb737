//! Steps at which a worker ends, stops or changes its mind: a store that passes everything on and looks at its orders on the way.

use std::fmt;
use std::future::pending;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use serde::{Deserialize, Serialize};
use tenure::store::{AcquireReply, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{BootTime, Entry, Error, Lease, Name};
use tokio::sync::watch;

/// Order to a worker to do something to itself at one step.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Probe {
    /// In calls of this kind.
    pub call: Call,
    /// In the how manieth from now; 1 is the next.
    pub number: u32,
    /// When in the call.
    pub moment: Moment,
    /// The deed itself.
    pub deed: Deed,
}

/// A kind of call to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// [`Store::acquire`].
    Acquire,
    /// [`Store::renew`].
    Renew,
    /// [`Store::release`].
    Release,
}

/// A moment of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Moment {
    /// Nothing was sent.
    Before,
    /// This long after it began, unless it ends before.
    During(Duration),
    /// The store has answered, and nobody has looked at it.
    After,
}

/// Deed of a worker to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Deed {
    /// kill -9.
    Die,
    /// Freezes until the lab lets it go on.
    Stop,
    /// Drops every acquisition that is under way.
    Cancel,
}

/// The orders of the probes of one store, and what they tell.
#[derive(Clone, Debug)]
pub(super) struct Probes(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    armed: Mutex<Option<Probe>>,
    /// When the latest call that grants or renews was begun.
    asked: Mutex<Option<BootTime>>,
    /// For how long the latest grant was.
    granted: Mutex<Duration>,
    cancelled: watch::Sender<()>,
    renewed: watch::Sender<()>,
}

impl Probes {
    pub(super) fn arm(&self, probe: Probe) {
        *self.0.armed.lock().unwrap_or_else(PoisonError::into_inner) = Some(probe);
    }

    /// Changes when acquisitions are to be dropped.
    pub(super) fn cancelled(&self) -> watch::Receiver<()> {
        self.0.cancelled.subscribe()
    }

    /// How long ago the latest call was begun that can have granted or renewed anything.
    pub(super) fn since_asked(&self) -> Duration {
        let asked = *self.0.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.map_or(Duration::ZERO, |asked| BootTime::now().since(asked))
    }

    /// For how long the store keeps what it granted last: one that counts in seconds keeps it for longer than was asked.
    pub(super) fn granted(&self) -> Duration {
        *self.0.granted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asks(&self) {
        *self.0.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(BootTime::now());
    }

    /// Changes with every answer to a renewal.
    pub(super) fn renewed(&self) -> watch::Receiver<()> {
        self.0.renewed.subscribe()
    }

    /// Returns the order for this call, if there is one.
    fn due(&self, call: Call) -> Option<Probe> {
        let mut armed = self.0.armed.lock().unwrap_or_else(PoisonError::into_inner);
        let probe = armed.as_mut().filter(|probe| probe.call == call)?;
        probe.number = probe.number.saturating_sub(1);
        if probe.number == 0 { armed.take() } else { None }
    }

    async fn pass<T>(&self, call: Call, inner: impl Future<Output = T> + Send) -> T {
        let Some(probe) = self.due(call) else { return inner.await };
        match probe.moment {
            Moment::Before => {
                self.act(probe.deed).await;
                inner.await
            }
            Moment::After => {
                let answer = inner.await;
                self.act(probe.deed).await;
                answer
            }
            Moment::During(after) => {
                tokio::pin!(inner);
                if let Ok(answer) = tokio::time::timeout(after, &mut inner).await {
                    self.act(probe.deed).await;
                    return answer;
                }
                self.act(probe.deed).await;
                inner.await
            }
        }
    }

    async fn act(&self, deed: Deed) {
        let signal = match deed {
            Deed::Die => rustix::process::Signal::KILL,
            Deed::Stop => rustix::process::Signal::STOP,
            Deed::Cancel => {
                self.0.cancelled.send_replace(());
                return pending().await;
            }
        };
        rustix::process::kill_process(rustix::process::getpid(), signal).expect("a process may signal itself");
    }
}

/// A store with probes on the way to it.
#[derive(Debug)]
pub(super) struct Probed {
    store: Arc<dyn Store>,
    probes: Probes,
}

impl Probed {
    pub(super) fn new(store: impl Store) -> (Self, Probes) {
        let shared = Shared {
            armed: Mutex::default(),
            asked: Mutex::default(),
            granted: Mutex::default(),
            cancelled: watch::Sender::new(()),
            renewed: watch::Sender::new(()),
        };
        let probes = Probes(Arc::new(shared));
        (Self { store: Arc::new(store), probes: probes.clone() }, probes)
    }
}

#[async_trait]
impl Store for Probed {
    fn features(&self) -> Features {
        // A probe may stop a call.
        self.store.features().with_timed_calls(false)
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        self.probes.asks();
        let answer = self.probes.pass(Call::Acquire, self.store.acquire(request)).await;
        if let Ok(AcquireReply::Granted(grant)) = &answer {
            *self.probes.0.granted.lock().unwrap_or_else(PoisonError::into_inner) = grant.ttl;
        }
        answer
    }

    async fn acquire_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        self.probes.asks();
        self.probes.pass(Call::Acquire, self.store.acquire_all(requests)).await
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        self.probes.asks();
        let answers = self.probes.pass(Call::Renew, self.store.renew(leases)).await;
        // Tasks of the same thread receive it, so only after the watchdog has taken the answer in.
        self.probes.0.renewed.send_replace(());
        answers
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        self.probes.pass(Call::Release, self.store.release(lease, linger)).await
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        self.store.watch(request).await
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        self.store.inspect(name).await
    }
}

impl fmt::Display for Probed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}
