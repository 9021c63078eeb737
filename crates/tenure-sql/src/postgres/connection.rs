//! The connection of a store. One at a time: statements run in the order in which they were sent, so
//! a release comes behind the acquisition that it takes back.
//!
//! A connection without an answer is dropped and replaced. It has nothing to clean up: each statement
//! is a transaction of its own. Where it was a session of the server, its successor ends it first, so
//! that nothing of it runs late.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use rustls::ClientConfig;
use tenure::Error;
use tenure::store::record::Listeners;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};
use tokio_postgres::{Client, Config, Row};

use super::dial;
use super::failure::{ends_session, no_answer, translate};
use super::statements::{CREATE, END_SESSION, FREE, HELLO, LIST, LISTEN, READ, RENEW, SWEEP, TABLE, TAKE, WRITE};

/// A connection that has answered anything this short a time ago is only slow.
const SILENCE: Duration = Duration::from_millis(100);

/// Limit of an attempt to connect for which nobody waits any more.
const CONTACT: Duration = Duration::from_secs(5);

/// How long a statement may be on its way to a pool, when its connection was closed. The kernel gives
/// up what it could not send in 10 s ([`dial`]), and a pool drops what a closed connection waits for.
const ON_THE_WAY: Duration = Duration::from_secs(15);

/// The statements, with the name of the table.
pub(super) struct Statements {
    pub(super) create: String,
    pub(super) hello: String,
    pub(super) end_session: String,
    pub(super) take: String,
    pub(super) free: String,
    pub(super) renew: String,
    pub(super) read: String,
    pub(super) list: String,
    pub(super) write: String,
    pub(super) sweep: String,
}

impl Statements {
    /// `table` is a name as SQL writes it.
    pub(super) fn on(table: &str) -> Self {
        let [create, hello, end_session, take, free, renew, read, list, write, sweep] =
            [CREATE, HELLO, END_SESSION, TAKE, FREE, RENEW, READ, LIST, WRITE, SWEEP].map(|text| text.replace(TABLE, table));
        Self { create, hello, end_session, take, free, renew, read, list, write, sweep }
    }
}

/// How a connection is made.
pub(super) struct How {
    pub(super) config: Config,
    /// `None` if there is to be none.
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) statements: Statements,
    /// The table as SQL writes it.
    pub(super) table: String,
    /// The channel of this store, if it is to listen.
    pub(super) channel: Option<String>,
    pub(super) listeners: Listeners,
    /// Without secrets.
    pub(super) shown: String,
}

/// A session that was left while something of it may still run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Predecessor {
    pub(super) server: String,
    pub(super) process: i32,
    /// When the server began it.
    pub(super) began: String,
}

/// A connection that can be used. When it is dropped, its driver first sends what is under way.
pub(super) struct Link {
    client: Client,
    driver: AbortHandle,
    /// What its successor ends. `None` behind a pool.
    session: Option<Predecessor>,
    /// It is a session of the server, so it may listen.
    own: bool,
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
}

/// A call under way. If it is dropped, it counts as unanswered until a later one is answered.
struct Call<'a> {
    calls: &'a Calls,
    number: u64,
    answered: bool,
}

impl Calls {
    fn begin(&self) -> Call<'_> {
        self.active.fetch_add(1, Ordering::SeqCst);
        Call { calls: self, number: self.last.fetch_add(1, Ordering::SeqCst) + 1, answered: false }
    }

    fn all_answered(&self) -> bool {
        let settled = self.dropped.load(Ordering::SeqCst) < self.answered.load(Ordering::SeqCst);
        self.active.load(Ordering::SeqCst) == 0 && (settled || self.dropped.load(Ordering::SeqCst) == 0)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if self.answered {
            self.calls.answered.fetch_max(self.number, Ordering::SeqCst);
        } else {
            self.calls.dropped.fetch_max(self.calls.last.load(Ordering::SeqCst), Ordering::SeqCst);
        }
        self.calls.active.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Link {
    pub(super) fn new(client: Client, driver: AbortHandle, session: Option<Predecessor>, own: bool) -> Self {
        let heard = Mutex::new(Instant::now());
        Self { client, driver, session, own, listens: AtomicBool::new(false), heard, calls: Calls::default() }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn session(&self) -> Option<&Predecessor> {
        self.session.as_ref()
    }

    fn hears(&self) {
        *lock(&self.heard) = Instant::now();
    }

    fn is_silent(&self) -> bool {
        lock(&self.heard).elapsed() > SILENCE
    }

    /// Listens at the channel, if this is a session.
    async fn listen(&self, channel: &str) -> Result<(), tokio_postgres::Error> {
        if self.own && !self.listens.load(Ordering::Acquire) {
            self.client.batch_execute(&format!("{LISTEN}{channel}")).await?;
            self.listens.store(true, Ordering::Release);
        }
        Ok(())
    }
}

/// An attempt to connect. It goes on when those who wait for it are dropped.
#[derive(Clone)]
struct Attempt {
    began: Instant,
    task: AbortHandle,
    outcome: Shared<BoxFuture<'static, Result<Arc<Link>, Error>>>,
}

#[derive(Default)]
struct State {
    link: Option<Arc<Link>>,
    attempt: Option<Attempt>,
    /// Sessions that may still run something.
    predecessors: Vec<Predecessor>,
    /// A connection that was no session was left with something under way. Nobody can end that, and
    /// it may run until then.
    late_until: Option<Instant>,
}

struct Inner {
    how: How,
    /// Somebody waits, so each new connection listens.
    listen: AtomicBool,
    state: Mutex<State>,
}

/// The connection of a store.
pub(super) struct Connection(Arc<Inner>);

impl Connection {
    /// Makes the first contact. With `create` it makes the table if that is missing.
    pub(super) async fn open(how: How, create: bool) -> Result<Self, Error> {
        let connected = tokio::time::timeout(CONTACT, dial::open(&how, create)).await;
        let link = connected.unwrap_or_else(|_| Err(no_answer(CONTACT))).map_err(|error| error.context(&how.shown))?;
        let state = Mutex::new(State { link: Some(Arc::new(link)), ..State::default() });
        Ok(Self(Arc::new(Inner { how, listen: AtomicBool::new(false), state })))
    }

    pub(super) fn statements(&self) -> &Statements {
        &self.0.how.statements
    }

    pub(super) fn has_late_commands(&self) -> bool {
        let state = lock(&self.0.state);
        state.late_until.is_some_and(|until| Instant::now() < until) || !state.predecessors.is_empty()
    }

    /// Whether notifications could come: there is a session to listen in.
    pub(super) fn may_listen(&self) -> bool {
        let state = lock(&self.0.state);
        self.0.how.channel.is_some() && state.link.as_ref().is_none_or(|link| link.own)
    }

    /// The channel at which this process listens now.
    pub(super) fn address(&self) -> Option<String> {
        let state = lock(&self.0.state);
        let listens = state.link.as_ref().is_some_and(|link| link.listens.load(Ordering::Acquire) && !link.client.is_closed());
        self.0.how.channel.clone().filter(|_| listens)
    }

    /// Runs a statement once.
    pub(super) async fn run(&self, sql: &str, arguments: &[super::Argument<'_>], end: Instant) -> Result<Vec<Row>, Error> {
        let link = self.link(end).await?;
        self.on(&link, end, link.client.query_typed(sql, arguments)).await
    }

    /// Runs a statement that may run twice. If a silent connection has not answered it in half of
    /// the time, it is sent again on another.
    pub(super) async fn run_freely(&self, sql: &str, arguments: &[super::Argument<'_>], end: Instant) -> Result<Vec<Row>, Error> {
        let began = Instant::now();
        let half = began + end.saturating_duration_since(began) / 2;
        let link = self.link(end).await?;
        let mut answer = std::pin::pin!(self.on(&link, end, link.client.query_typed(sql, arguments)));
        match timeout_at(half, &mut answer).await {
            Ok(Err(error)) if error.kind() == tenure::ErrorKind::Unreachable && Instant::now() < half => {}
            Ok(answer) => return answer,
            Err(_) if link.is_silent() => self.leave(&link, false),
            Err(_) => return answer.await,
        }
        self.run(sql, arguments, end).await.map_err(Error::maybe_applied)
    }

    /// Has notifications come, if this is a session of the server.
    pub(super) async fn listen(&self, end: Instant) -> Result<(), Error> {
        let Some(channel) = &self.0.how.channel else { return Ok(()) };
        self.0.listen.store(true, Ordering::Release);
        let link = self.link(end).await?;
        self.on(&link, end, link.listen(channel)).await
    }

    /// Waits for the answer to a call on a link, and leaves the link if it is not to be used again.
    async fn on<T>(
        &self,
        link: &Arc<Link>,
        end: Instant,
        call: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Error> {
        let began = Instant::now();
        let mut under_way = link.calls.begin();
        let Ok(answer) = timeout_at(end, call).await else {
            drop(under_way);
            if link.is_silent() {
                self.leave(link, false);
            }
            return Err(no_answer(end.saturating_duration_since(began)).maybe_applied());
        };
        link.hears();
        let from_server = answer.as_ref().err().is_none_or(|error| error.as_db_error().is_some());
        under_way.answered = from_server;
        drop(under_way);
        answer.map_err(|error| {
            if ends_session(&error) {
                self.leave(link, from_server);
            }
            translate(&error, &self.0.how.table)
        })
    }

    /// Stops using a link. `over`: the server has ended it.
    fn leave(&self, link: &Arc<Link>, over: bool) {
        let mut state = lock(&self.0.state);
        if state.link.as_ref().is_some_and(|present| Arc::ptr_eq(present, link)) {
            state.link = None;
            state.bury(link, over);
        }
        drop(state);
        link.driver.abort();
    }

    /// The link, or a new one if there is none.
    async fn link(&self, end: Instant) -> Result<Arc<Link>, Error> {
        let began = Instant::now();
        loop {
            let (attempt, joined) = match self.present_or_attempt(began, end) {
                Ok(link) => return Ok(link),
                Err(attempt) => attempt,
            };
            match timeout_at(end, attempt.outcome).await {
                Err(_) => return Err(no_answer(end.saturating_duration_since(began))),
                // It began before this call, so its failure may be old news.
                Ok(Err(_)) if joined => {}
                Ok(connected) => return connected,
            }
        }
    }

    /// The link, or an attempt to make one, and whether that had begun before.
    fn present_or_attempt(&self, now: Instant, end: Instant) -> Result<Arc<Link>, (Attempt, bool)> {
        let mut state = lock(&self.0.state);
        match state.link.take() {
            Some(link) if !link.client.is_closed() && !link.driver.is_finished() => {
                return Ok(state.link.insert(link).clone());
            }
            Some(link) => state.bury(&link, false),
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
                Err((state.attempt.insert(self.begin()).clone(), false))
            }
        }
    }

    fn begin(&self) -> Attempt {
        let inner = Arc::downgrade(&self.0);
        let task = tokio::spawn(async move {
            let connected = tokio::time::timeout(CONTACT, Inner::connect(&inner)).await;
            connected.unwrap_or_else(|_| Err(no_answer(CONTACT)))
        });
        let handle = task.abort_handle();
        let ended = |_| Err(Error::unreachable("the runtime in which a connection was being made has ended"));
        let outcome = task.map(move |joined| joined.unwrap_or_else(ended)).boxed().shared();
        Attempt { began: Instant::now(), task: handle, outcome }
    }
}

impl Inner {
    async fn connect(inner: &Weak<Self>) -> Result<Arc<Link>, Error> {
        let gone = || Error::unreachable("the store was dropped");
        let this = inner.upgrade().ok_or_else(gone)?;
        let link = dial::open(&this.how, false).await?;
        let predecessors = lock(&this.state).predecessors.clone();
        let ended = dial::end_sessions(&this.how, &link, predecessors).await;
        if let Some(channel) = this.how.channel.as_ref().filter(|_| this.listen.load(Ordering::Acquire)) {
            link.listen(channel).await.map_err(|error| translate(&error, &this.how.table))?;
        }
        let link = {
            let mut state = lock(&this.state);
            state.predecessors.retain(|predecessor| !ended.contains(predecessor));
            state.link.get_or_insert_with(|| Arc::new(link)).clone()
        };
        // What was notified meanwhile is lost.
        this.how.listeners.poll_all();
        Ok(link)
    }
}

impl State {
    fn bury(&mut self, link: &Link, over: bool) {
        if over || link.calls.all_answered() {
            return;
        }
        match &link.session {
            Some(session) => self.predecessors.push(session.clone()),
            None => self.late_until = Some(Instant::now() + ON_THE_WAY),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.how.shown)
    }
}
