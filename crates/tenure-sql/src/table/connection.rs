//! The connection of a store, whatever the database. One at a time: statements run in the order in
//! which they were sent, so a release comes behind the acquisition that it takes back.
//!
//! A connection without an answer is dropped and replaced. It has nothing to clean up: each statement
//! is a transaction of its own. If it was a session of the server, its successor ends it first, so
//! that nothing of it runs late. Behind a pool nobody can do that, and
//! [`Connection::has_late_commands`] says so until it comes too late.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use tenure::{Error, ErrorKind};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use super::failure::{dropped, is_missing, no_answer, no_turn};
use super::link::{Call, Link, Session, lock};
use super::server::{Failed, Server, end_session, silent};

/// Limit of an attempt to connect for which nobody waits any more.
const CONTACT: Duration = Duration::from_secs(5);

/// For how long a new connection looks whether a predecessor's session has ended.
const LOOK: Duration = Duration::from_millis(100);

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

impl<S: Server> fmt::Display for Connection<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.server.shown())
    }
}
