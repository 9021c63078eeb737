//! A store in memory that fails as the test plans, and notes its calls and their times.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tenure::store::{AcquireReply, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{BootTime, Clock, Entry, Error, ErrorKind, Lease, MemoryStore, Name, Owner};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::LIMIT;

/// Delay of an answer with [`Fate::Slow`].
pub(crate) const SLOW: Duration = Duration::from_millis(150);
/// More calls than any test needs: a loop without a pause made them.
const TOO_MANY: usize = 3_000;

/// Outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Works,
    /// Not executed, with an error that says so.
    Fails,
    /// Not executed, for this reason.
    Says(ErrorKind),
    /// Executed, and the answer is lost.
    Unheard,
    /// Executed, and never answered.
    Hangs,
    /// Executed, and answered after [`SLOW`].
    Slow,
    /// Its caller gives way once before it is executed.
    Yields,
    /// An acquire that gets no answer. It is executed by [`ScriptedStore::run_late`].
    Late,
    /// A renewal is answered for none of its leases.
    Short,
    /// A renewal takes half a millisecond for each of its leases.
    SlowByLease,
    /// The store's code fails, once.
    Panics,
}

/// Result of [`Store::watch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hints {
    /// A notice for every release.
    Work,
    /// No notice, ever.
    Silent,
    /// A stream that ends at once.
    End,
    /// An error.
    Fail,
    /// No answer.
    Hang,
    /// Notices that the test [pushes](ScriptedStore::push), and nothing else.
    Pushed,
}

#[derive(Clone, Debug)]
pub(crate) enum Call {
    Acquire(Request),
    Renew(Vec<Lease>),
    Release(Lease, Duration),
    Watch,
    Inspect,
}

#[derive(Clone)]
pub(crate) struct ScriptedStore(Arc<State>);

struct State {
    inner: MemoryStore,
    clock: Arc<dyn Clock>,
    features: Features,
    fate: Mutex<Fate>,
    hints: Mutex<Hints>,
    answers: Mutex<VecDeque<AcquireReply>>,
    shown: Mutex<Option<Entry>>,
    watchers: Mutex<Vec<UnboundedSender<Notice>>>,
    late: Mutex<Option<Request>>,
    calls: Mutex<Vec<(BootTime, Call)>>,
    called: Notify,
    /// Wakes a call that hangs.
    answer: Notify,
}

impl ScriptedStore {
    pub(crate) fn with(clock: impl Clock + Clone, change: impl FnOnce(&mut Features)) -> Self {
        let inner = MemoryStore::with_clock(clock.clone());
        let mut features = inner.features().with_operation_timeout(LIMIT);
        change(&mut features);
        Self(Arc::new(State {
            inner,
            clock: Arc::new(clock),
            features,
            fate: Mutex::new(Fate::Works),
            hints: Mutex::new(Hints::Work),
            answers: Mutex::default(),
            shown: Mutex::default(),
            watchers: Mutex::default(),
            late: Mutex::default(),
            calls: Mutex::default(),
            called: Notify::new(),
            answer: Notify::new(),
        }))
    }

    pub(crate) fn fated(&self, fate: Fate) {
        *self.0.fate.lock().unwrap() = fate;
    }

    pub(crate) fn fate(&self) -> Fate {
        *self.0.fate.lock().unwrap()
    }

    pub(crate) fn hints(&self, hints: Hints) {
        *self.0.hints.lock().unwrap() = hints;
    }

    /// Sets the answers of the next acquires, one each, instead of the store's.
    pub(crate) fn answers(&self, answers: impl IntoIterator<Item = AcquireReply>) {
        self.0.answers.lock().unwrap().extend(answers);
    }

    /// Sets what is shown of its name from now on, instead of the truth.
    pub(crate) fn shows(&self, entry: Entry) {
        *self.0.shown.lock().unwrap() = Some(entry);
    }

    /// Sends `notice` to every armed watch.
    pub(crate) fn push(&self, notice: &Notice) {
        self.0.watchers.lock().unwrap().retain(|watcher| watcher.send(notice.clone()).is_ok());
    }

    /// Answers the call that hangs.
    pub(crate) fn answer(&self) {
        self.fated(Fate::Works);
        self.0.answer.notify_one();
    }

    /// Executes the acquire that got no answer.
    pub(crate) async fn run_late(&self) {
        let request = self.0.late.lock().unwrap().take().unwrap();
        self.0.inner.acquire(&request).await.unwrap();
    }

    /// Waits for the next call.
    pub(crate) async fn called(&self) {
        self.0.called.notified().await;
    }

    pub(crate) fn calls(&self) -> Vec<(BootTime, Call)> {
        self.0.calls.lock().unwrap().clone()
    }

    /// Starts a new page of notes.
    pub(crate) fn forget_calls(&self) {
        self.0.calls.lock().unwrap().clear();
    }

    /// Times and owners of all requests for a name.
    pub(crate) fn acquires(&self) -> Vec<(BootTime, Owner)> {
        let owner = |(at, call)| if let Call::Acquire(request) = call { Some((at, request.owner)) } else { None };
        self.calls().into_iter().filter_map(owner).collect()
    }

    pub(crate) fn renewals(&self) -> Vec<(BootTime, Vec<Lease>)> {
        let leases = |(at, call)| if let Call::Renew(leases) = call { Some((at, leases)) } else { None };
        self.calls().into_iter().filter_map(leases).collect()
    }

    pub(crate) fn releases(&self) -> Vec<(BootTime, Lease, Duration)> {
        let lease = |(at, call)| if let Call::Release(lease, linger) = call { Some((at, lease, linger)) } else { None };
        self.calls().into_iter().filter_map(lease).collect()
    }

    pub(crate) fn released(&self) -> Vec<Owner> {
        self.releases().into_iter().map(|(_, lease, _)| lease.owner).collect()
    }

    /// Number of handles on this store.
    pub(crate) fn handles(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    fn note(&self, call: Call) {
        let mut calls = self.0.calls.lock().unwrap();
        calls.push((self.0.clock.now(), call));
        assert!(calls.len() < TOO_MANY, "the store is asked without a pause");
    }

    async fn meets<T>(&self, call: impl Future<Output = Result<T, Error>> + Send) -> Result<T, Error> {
        self.0.called.notify_waiters();
        let fate = self.fate();
        match fate {
            Fate::Panics => {
                self.fated(Fate::Works);
                panic!("as the test wants it");
            }
            Fate::Fails => return Err(Error::unreachable("no connection")),
            Fate::Says(kind) => return Err(Error::new(kind, "as the test wants it")),
            Fate::Yields => yields().await,
            _ => {}
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

/// Gives way once, and asks to be polled again at once.
async fn yields() {
    let mut polled = false;
    poll_fn(|context| {
        if std::mem::replace(&mut polled, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[async_trait]
impl Store for ScriptedStore {
    fn features(&self) -> Features {
        self.0.features.clone()
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        assert!(
            !request.generated || !self.released().contains(&request.owner),
            "a token was used again after its release was sent"
        );
        self.note(Call::Acquire(request.clone()));
        let answer = self.0.answers.lock().unwrap().pop_front();
        match answer {
            Some(answer) => Ok(answer),
            None if self.fate() == Fate::Late => {
                *self.0.late.lock().unwrap() = Some(request.clone());
                self.0.called.notify_waiters();
                Err(Error::unreachable("no answer").maybe_applied())
            }
            None => self.meets(self.0.inner.acquire(request)).await,
        }
    }

    async fn acquire_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        for request in requests {
            self.note(Call::Acquire(request.clone()));
        }
        self.meets(self.0.inner.acquire_all(requests)).await
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        self.note(Call::Renew(leases.to_vec()));
        match self.fate() {
            Fate::Short => return Vec::new(),
            Fate::SlowByLease => tokio::time::sleep(Duration::from_micros(500) * u32::try_from(leases.len()).unwrap()).await,
            _ => {}
        }
        match self.meets(async { Ok(self.0.inner.renew(leases).await) }).await {
            Ok(answers) => answers,
            Err(error) => leases.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        self.note(Call::Release(lease.clone(), linger));
        self.meets(self.0.inner.release(lease, linger)).await
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        self.note(Call::Watch);
        let hints = *self.0.hints.lock().unwrap();
        match hints {
            Hints::Work => self.0.inner.watch(request).await,
            Hints::Silent => Ok(stream::pending().boxed()),
            Hints::End => Ok(stream::empty().boxed()),
            Hints::Hang => std::future::pending().await,
            Hints::Fail => Err(Error::unavailable("no hints")),
            Hints::Pushed => {
                let (watcher, notices) = unbounded_channel();
                self.0.watchers.lock().unwrap().push(watcher);
                let next = |mut notices: UnboundedReceiver<Notice>| async { Some((notices.recv().await?, notices)) };
                Ok(stream::unfold(notices, next).boxed())
            }
        }
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        self.note(Call::Inspect);
        let shown = self.0.shown.lock().unwrap().clone();
        if let Some(entry) = shown {
            return Ok(vec![entry]);
        }
        self.meets(self.0.inner.inspect(name)).await
    }
}

impl fmt::Display for ScriptedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("fickle:")
    }
}

impl fmt::Debug for ScriptedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScriptedStore")
    }
}
