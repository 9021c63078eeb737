//! The connection of a store, whatever the database. One at a time: statements run in the order in
//! which they were sent, so a release comes behind the acquisition that it takes back.
//!
//! A connection without an answer is dropped and replaced. It has nothing to clean up: each statement
//! is a transaction of its own. If it was a session of the server, its successor ends it first, so
//! that nothing of it runs late. Behind a pool nobody can do that, and
//! [`Connection::has_late_commands`] says so until it comes too late.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use tenure::{Error, ErrorKind};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use super::failure::{dropped, is_missing, no_answer, no_turn};

/// A connection that has answered anything this short a time ago is only slow.
const SILENCE: Duration = Duration::from_millis(100);

/// Limit of an attempt to connect for which nobody waits any more.
const CONTACT: Duration = Duration::from_secs(5);

/// For how long a new connection looks whether a predecessor's session has ended.
const LOOK: Duration = Duration::from_millis(100);

/// The pause between two looks whether a session has ended.
const PAUSE: Duration = Duration::from_millis(5);

/// A database as this module sees it.
#[async_trait]
pub(crate) trait Server: Send + Sync + 'static {
    /// One connection.
    type Client: Send + Sync + 'static;
    /// A statement with its arguments.
    type Call<'a>: Copy + Send + Sync;
    /// Its answer.
    type Answer: Send;

    /// Connects to the first server that can be used, for a call that has `limit` for it. With `create`, makes the table if it is
    /// missing.
    async fn open(&self, create: bool, limit: Duration) -> Result<Link<Self::Client>, Error>;

    /// Runs a statement. It is sent by `end`, or not at all if it has to wait for a connection.
    async fn run(&self, client: &Self::Client, call: Self::Call<'_>, end: Instant) -> Result<Self::Answer, Failed>;

    /// Tells the server to end a session. Returns whether it is over.
    async fn end_session(&self, client: &Self::Client, session: &Session) -> Result<bool, Failed>;

    /// Has notifications come on a connection.
    async fn listen(&self, client: &Self::Client) -> Result<(), Failed>;

    /// Address at which this store is notified. `None` if it does not listen.
    fn address(&self) -> Option<&str>;

    fn is_closed(&self, client: &Self::Client) -> bool;

    /// How long after its end a statement that may take `limit` can still run, if nobody can end it.
    fn lateness(&self, limit: Duration) -> Duration;

    /// There is a new connection, so notifications may have been lost.
    fn reconnected(&self);

    /// The error of a connection that had to wait too long for its login. `None` if it waits for another thing.
    fn no_login(&self) -> Option<Error>;

    /// The servers, without secrets.
    fn shown(&self) -> &str;
}

/// A failed statement.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) error: Error,
    /// The server answered so.
    pub(crate) answered: bool,
    /// The connection should not be used any more.
    pub(crate) is_over: bool,
}

/// A session of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) server: String,
    pub(crate) id: i64,
    /// When the server began it: its number may be another's by now.
    pub(crate) began: String,
}

/// A connection that can be used. When it is dropped, its driver first sends what is under way.
pub(crate) struct Link<C> {
    client: C,
    driver: AbortHandle,
    /// Session that its successor ends. `None` behind a pool.
    session: Option<Session>,
    listens: AtomicBool,
    heard: Mutex<Instant>,
    calls: Calls,
}

/// The calls of a link: whether all were answered. Answers come in the order of the calls.
#[derive(Default)]
struct Calls {
    last: AtomicU64,
    active: AtomicUsize,
    /// The largest number at the time when a call was dropped without its answer.
    dropped: AtomicU64,
    /// The largest number that was answered.
    answered: AtomicU64,
    /// When the last of them comes too late, behind a pool.
    latest: Mutex<Option<Instant>>,
}

/// A call under way on a link. If it is dropped, it counts as unanswered until a later one is answered.
struct Call<C> {
    link: Arc<Link<C>>,
    number: u64,
    answered: bool,
}

impl Calls {
    fn all_answered(&self) -> bool {
        let settled = self.dropped.load(Ordering::SeqCst) < self.answered.load(Ordering::SeqCst);
        self.active.load(Ordering::SeqCst) == 0 && (settled || self.dropped.load(Ordering::SeqCst) == 0)
    }
}

impl<C> Drop for Call<C> {
    fn drop(&mut self) {
        let calls = &self.link.calls;
        if self.answered {
            calls.answered.fetch_max(self.number, Ordering::SeqCst);
        } else {
            calls.dropped.fetch_max(calls.last.load(Ordering::SeqCst), Ordering::SeqCst);
        }
        calls.active.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<C> Link<C> {
    pub(crate) fn new(client: C, driver: AbortHandle, session: Option<Session>) -> Self {
        let heard = Mutex::new(Instant::now());
        Self { client, driver, session, listens: AtomicBool::new(false), heard, calls: Calls::default() }
    }

    /// The connection, its driver and its session.
    pub(crate) fn into_parts(self) -> (C, AbortHandle, Option<Session>) {
        (self.client, self.driver, self.session)
    }

    /// Begins a call, which may still run until `latest`.
    fn begin(self: Arc<Self>, latest: Instant) -> Call<C> {
        let mut last = lock(&self.calls.latest);
        *last = last.max(Some(latest));
        drop(last);
        self.calls.active.fetch_add(1, Ordering::SeqCst);
        let number = self.calls.last.fetch_add(1, Ordering::SeqCst) + 1;
        Call { link: self, number, answered: false }
    }

    fn hears(&self) {
        *lock(&self.heard) = Instant::now();
    }

    fn has_heard_since(&self, then: Instant) -> bool {
        *lock(&self.heard) > then
    }

    fn is_silent(&self) -> bool {
        lock(&self.heard).elapsed() > SILENCE
    }
}

/// An attempt to connect. It goes on when its callers are dropped.
struct Attempt<C> {
    began: Instant,
    task: AbortHandle,
    outcome: Shared<BoxFuture<'static, Result<Arc<Link<C>>, Error>>>,
}

/// An attempt to wait for, and whether it had begun before the call.
type Wait<C> = (Attempt<C>, bool);

impl<C> Clone for Attempt<C> {
    fn clone(&self) -> Self {
        Self { began: self.began, task: self.task.clone(), outcome: self.outcome.clone() }
    }
}

struct State<C> {
    link: Option<Arc<Link<C>>>,
    attempt: Option<Attempt<C>>,
    /// Sessions that may still run something.
    predecessors: Vec<Session>,
    /// A connection that was no session was left with something under way. Nobody can end that, and
    /// it may run until then.
    late_until: Option<Instant>,
}

struct Inner<S: Server> {
    server: S,
    /// Each new connection makes the table if that is missing.
    create: bool,
    /// Somebody waits, so each new connection listens.
    listen: AtomicBool,
    state: Mutex<State<S::Client>>,
}

/// The connection of a store.
pub(crate) struct Connection<S: Server>(Arc<Inner<S>>);

impl<S: Server> Connection<S> {
    /// Makes the first contact. With `create` it makes the table if that is missing, now or later.
    pub(crate) async fn open(server: S, create: bool) -> Result<Self, Error> {
        let connected = tokio::time::timeout(CONTACT, server.open(create, CONTACT)).await;
        let link = connected.unwrap_or_else(|_| Err(silent(&server, CONTACT))).map_err(|error| error.context(server.shown()))?;
        let state = State { link: Some(Arc::new(link)), attempt: None, predecessors: Vec::new(), late_until: None };
        Ok(Self(Arc::new(Inner { server, create, listen: AtomicBool::new(false), state: Mutex::new(state) })))
    }

    pub(crate) fn server(&self) -> &S {
        &self.0.server
    }

    pub(crate) fn has_late_commands(&self) -> bool {
        let state = lock(&self.0.state);
        state.late_until.is_some_and(|until| Instant::now() < until) || !state.predecessors.is_empty()
    }

    /// Whether notifications could come.
    pub(crate) fn may_listen(&self) -> bool {
        self.0.server.address().is_some()
    }

    /// The address at which this process listens now.
    pub(crate) fn address(&self) -> Option<String> {
        let state = lock(&self.0.state);
        let listens = |link: &Arc<Link<_>>| link.listens.load(Ordering::Acquire) && !self.0.server.is_closed(&link.client);
        let listens = state.link.as_ref().is_some_and(listens);
        self.0.server.address().filter(|_| listens).map(str::to_owned)
    }

    /// Runs a statement once.
    pub(crate) async fn run(&self, call: S::Call<'_>, end: Instant) -> Result<S::Answer, Error> {
        let under_way = self.begin(end).await?;
        let link = Arc::clone(&under_way.link);
        self.on(under_way, end, self.0.server.run(&link.client, call, end)).await
    }

    /// Runs a statement that may run twice. If a silent connection has not answered it in half of
    /// the time, it is sent again on another.
    pub(crate) async fn run_freely(&self, call: S::Call<'_>, end: Instant) -> Result<S::Answer, Error> {
        Ok(self.run_again(call, end).await?.0)
    }

    /// As [`run_freely`](Self::run_freely), for a statement that must not run late. If it was sent twice, and nobody could end the
    /// first, its caller has to know.
    pub(crate) async fn run_settled(&self, call: S::Call<'_>, end: Instant) -> Result<S::Answer, Error> {
        match self.run_again(call, end).await? {
            (_, true) if self.has_late_commands() => {
                Err(Error::unreachable("no answer, and what was sent may still run").maybe_applied())
            }
            (answer, _) => Ok(answer),
        }
    }

    /// Returns whether it was sent twice, too.
    async fn run_again(&self, call: S::Call<'_>, end: Instant) -> Result<(S::Answer, bool), Error> {
        let began = Instant::now();
        let half = began + end.saturating_duration_since(began) / 2;
        let under_way = self.begin(end).await?;
        let link = Arc::clone(&under_way.link);
        let mut answer = std::pin::pin!(self.on(under_way, end, self.0.server.run(&link.client, call, half)));
        let is_lost = match timeout_at(half, &mut answer).await {
            Ok(Err(error)) if error.kind() == ErrorKind::Unreachable && Instant::now() < half => false,
            Ok(answer) => return answer.map(|answer| (answer, false)),
            Err(_) if link.is_silent() && !link.has_heard_since(began) => {
                self.leave(&link);
                true
            }
            Err(_) => return answer.await.map(|answer| (answer, false)),
        };
        let again = self.run(call, end).await;
        again
            .map(|answer| (answer, true))
            .map_err(|error| match error.kind() {
                // That no other connection was to be had says less than that the first was silent.
                ErrorKind::Unavailable | ErrorKind::Overloaded if is_lost => {
                    no_answer(end.saturating_duration_since(began)).with_source(error)
                }
                _ => error,
            })
            .map_err(Error::maybe_applied)
    }

    /// Has notifications come, if they may.
    pub(crate) async fn listen(&self, end: Instant) -> Result<(), Error> {
        if !self.may_listen() {
            return Ok(());
        }
        self.0.listen.store(true, Ordering::Release);
        let under_way = self.begin(end).await?;
        let link = Arc::clone(&under_way.link);
        self.on(under_way, end, self.0.listen_on(&link)).await
    }

    /// Waits for the answer to a call, and leaves its link if that is not to be used again.
    async fn on<T>(
        &self,
        mut under_way: Call<S::Client>,
        end: Instant,
        call: impl Future<Output = Result<T, Failed>>,
    ) -> Result<T, Error> {
        let (began, link) = (Instant::now(), Arc::clone(&under_way.link));
        let Ok(answer) = timeout_at(end, call).await else {
            drop(under_way);
            let limit = end.saturating_duration_since(began);
            // A statement that waits for a row somebody keeps locked has its answer in less than half of a call.
            if link.has_heard_since(began.max(end.checked_sub(limit / 2).unwrap_or(began))) {
                return Err(no_turn(limit).maybe_applied());
            }
            if link.is_silent() {
                self.leave(&link);
            }
            return Err(no_answer(limit).maybe_applied());
        };
        link.hears();
        let answered = answer.as_ref().err().is_none_or(|failed| failed.answered);
        under_way.answered = answered;
        drop(under_way);
        answer.map_err(|failed| {
            let was_dropped = self.0.create && is_missing(&failed.error);
            if failed.is_over || was_dropped {
                self.leave(&link);
            }
            if was_dropped { dropped() } else { failed.error }
        })
    }

    /// Stops using a link. Even if an error says that its session is over, calls behind the failed one
    /// may still run there.
    fn leave(&self, link: &Arc<Link<S::Client>>) {
        let mut state = lock(&self.0.state);
        if state.link.as_ref().is_some_and(|present| Arc::ptr_eq(present, link)) {
            state.link = None;
            state.bury(link);
        }
        drop(state);
        link.driver.abort();
    }

    /// Begins a call on the link, or on a new one if there is none.
    async fn begin(&self, end: Instant) -> Result<Call<S::Client>, Error> {
        let began = Instant::now();
        loop {
            let (attempt, joined) = match self.begin_or_attempt(began, end) {
                Ok(call) => return Ok(call),
                Err(attempt) => attempt,
            };
            match timeout_at(end, attempt.outcome).await {
                Err(_) => return Err(silent(self.server(), end.saturating_duration_since(began))),
                // It began before this call, so its failure may be old news.
                Ok(Err(_)) if joined => {}
                Ok(connected) => {
                    connected?;
                    // It may be gone again.
                    if Instant::now() >= end {
                        return Err(no_answer(end.saturating_duration_since(began)));
                    }
                }
            }
        }
    }

    /// A call on the link, or an attempt to make one, and whether that had begun before. A task that leaves the link later finds
    /// the call under way.
    fn begin_or_attempt(&self, now: Instant, end: Instant) -> Result<Call<S::Client>, Wait<S::Client>> {
        let mut state = lock(&self.0.state);
        match state.link.take() {
            Some(link) if !self.0.server.is_closed(&link.client) && !link.driver.is_finished() => {
                let latest = end + self.0.server.lateness(end.saturating_duration_since(Instant::now()));
                return Ok(state.link.insert(link).clone().begin(latest));
            }
            Some(link) => state.bury(&link),
            None => {}
        }
        let limit = end.saturating_duration_since(now);
        match state.attempt.take() {
            Some(attempt) if attempt.began.elapsed() < limit && !attempt.task.is_finished() => {
                let joined = attempt.began < now;
                Err((state.attempt.insert(attempt).clone(), joined))
            }
            // An older one has lost its packets. It has sent nothing that matters.
            older => {
                older.inspect(|older| older.task.abort());
                Err((state.attempt.insert(self.attempt(limit)).clone(), false))
            }
        }
    }

    fn attempt(&self, limit: Duration) -> Attempt<S::Client> {
        let inner = Arc::downgrade(&self.0);
        let task = tokio::spawn(async move {
            let connected = tokio::time::timeout(CONTACT, Inner::connect(&inner, limit.min(CONTACT))).await;
            connected.unwrap_or_else(|_| Err(no_answer(CONTACT)))
        });
        let handle = task.abort_handle();
        let ended = |_| Err(Error::unreachable("the runtime in which a connection was being made has ended"));
        let outcome = task.map(move |joined| joined.unwrap_or_else(ended)).boxed().shared();
        Attempt { began: Instant::now(), task: handle, outcome }
    }
}

impl<S: Server> Inner<S> {
    async fn connect(inner: &Weak<Self>, limit: Duration) -> Result<Arc<Link<S::Client>>, Error> {
        let gone = || Error::unreachable("the store was dropped");
        let this = inner.upgrade().ok_or_else(gone)?;
        let link = this.server.open(this.create, limit).await?;
        let ended = this.end_predecessors(&link).await;
        if this.listen.load(Ordering::Acquire) {
            this.listen_on(&link).await.map_err(|failed| failed.error)?;
        }
        let link = {
            let mut state = lock(&this.state);
            state.predecessors.retain(|predecessor| !ended.contains(predecessor));
            state.link.get_or_insert_with(|| Arc::new(link)).clone()
        };
        this.server.reconnected();
        Ok(link)
    }

    async fn listen_on(&self, link: &Link<S::Client>) -> Result<(), Failed> {
        if self.server.address().is_some() && !link.listens.load(Ordering::Acquire) {
            self.server.listen(&link.client).await?;
            link.listens.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Ends the sessions of predecessors, and returns those that are over.
    async fn end_predecessors(&self, link: &Link<S::Client>) -> Vec<Session> {
        let predecessors = lock(&self.state).predecessors.clone();
        let mut ended = Vec::new();
        for predecessor in predecessors {
            let same_server = link.session.as_ref().is_some_and(|session| session.server == predecessor.server);
            let until = Instant::now() + LOOK;
            if same_server && matches!(end_session(&self.server, &link.client, &predecessor, until).await, Ok(Some(_))) {
                ended.push(predecessor);
            }
        }
        ended
    }
}

/// Ends a session, and looks until it is over. Returns whether it was still there, or nothing if it stays until then.
pub(crate) async fn end_session<S: Server>(
    server: &S,
    client: &S::Client,
    session: &Session,
    until: Instant,
) -> Result<Option<bool>, Failed> {
    let mut was_there = false;
    while !server.end_session(client, session).await? {
        was_there = true;
        if until.saturating_duration_since(Instant::now()) <= PAUSE {
            return Ok(None);
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(Some(was_there))
}

/// The error of a connection that was not made within the limit.
pub(crate) fn silent(server: &impl Server, limit: Duration) -> Error {
    server.no_login().unwrap_or_else(|| no_answer(limit))
}

/// The end of a statement that has no limit of its own: its caller waits for less.
pub(crate) fn no_end() -> Instant {
    Instant::now() + Duration::from_secs(3_600)
}

impl<C> State<C> {
    fn bury(&mut self, link: &Link<C>) {
        if link.calls.all_answered() {
            return;
        }
        match &link.session {
            Some(session) => self.predecessors.push(session.clone()),
            None => self.late_until = self.late_until.max(*lock(&link.calls.latest)),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: Server> fmt::Display for Connection<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.server.shown())
    }
}
