//! The sessions of a store: some hold a lock, a few are idle, and some are given up and have to be
//! ended.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::Error;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::live::Live;
use super::locks::{LiveOf, Locks};
use crate::table::failure::no_answer;
use crate::table::{Failed, Server, Session, end_session, silent};

/// Limit of an attempt to connect for which nobody waits any more.
const CONTACT: Duration = Duration::from_secs(5);

/// Sessions that are kept though they have held nothing yet.
const MOST_IDLE: usize = 4;

pub(crate) struct Sessions<L: Locks>(Arc<Inner<L>>);

struct Inner<L: Locks> {
    locks: L,
    state: Mutex<State<L>>,
}

struct State<L: Locks> {
    idle: Vec<Arc<LiveOf<L>>>,
    /// Given up, and perhaps still there.
    buried: Vec<Session>,
}

impl<L: Locks> Sessions<L> {
    pub(crate) async fn open(locks: L) -> Result<Self, Error> {
        let sessions = Self(Arc::new(Inner { locks, state: Mutex::new(State { idle: Vec::new(), buried: Vec::new() }) }));
        let opened = tokio::time::timeout(CONTACT, sessions.0.open(CONTACT)).await;
        let late = |_| Err(silent(sessions.locks().server(), CONTACT));
        let live = opened.unwrap_or_else(late).map_err(|error| error.context(sessions.shown()))?;
        sessions.give_back(Arc::new(live));
        Ok(sessions)
    }

    pub(crate) fn locks(&self) -> &L {
        &self.0.locks
    }

    fn shown(&self) -> &str {
        self.0.locks.server().shown()
    }

    fn state(&self) -> MutexGuard<'_, State<L>> {
        self.0.state()
    }

    pub(crate) fn is_over(&self, live: &LiveOf<L>) -> bool {
        self.0.is_over(live)
    }

    /// A session that has never held anything. Those that were given up are ended first: one of them may hold
    /// what is asked for next.
    pub(crate) async fn get(&self, end: Instant) -> Result<Arc<LiveOf<L>>, Error> {
        let live = self.any(end).await?;
        let buried = self.state().buried.clone();
        // The rest is for what is asked for.
        let until = Instant::now() + end.saturating_duration_since(Instant::now()) / 2;
        for session in buried.iter().filter(|session| session.server == live.session.server) {
            // If it stays, what is asked for next is busy.
            let _ = self.end_on(&live, session, until, end).await;
        }
        Ok(live)
    }

    /// Whether a session was given up and has not been seen to end.
    pub(crate) fn is_buried(&self, session: &Session) -> bool {
        self.state().buried.contains(session)
    }

    async fn any(&self, end: Instant) -> Result<Arc<LiveOf<L>>, Error> {
        while let Some(live) = self.pop() {
            if !self.is_over(&live) && !live.is_stale() {
                return Ok(live);
            }
            live.driver.abort();
        }
        let began = Instant::now();
        let limit = end.saturating_duration_since(began);
        let (send, opened) = oneshot::channel();
        let inner = Arc::clone(&self.0);
        // It goes on if this call is dropped: the next one needs it as well.
        tokio::spawn(async move {
            let opened = tokio::time::timeout(CONTACT, inner.open(limit.min(CONTACT))).await;
            let opened = opened.unwrap_or_else(|_| Err(no_answer(CONTACT)));
            if let Err(Ok(live)) = send.send(opened.map(Arc::new)) {
                inner.give_back(live);
            }
        });
        let gone = |_| Err(Error::unreachable("the runtime in which a connection was being made has ended"));
        let late = |_| Err(silent(self.locks().server(), limit));
        timeout_at(end, opened).await.map_or_else(late, |opened| opened.unwrap_or_else(gone))
    }

    fn pop(&self) -> Option<Arc<LiveOf<L>>> {
        self.state().idle.pop()
    }

    /// Keeps a session that has never held anything, for the next call.
    pub(crate) fn give_back(&self, live: Arc<LiveOf<L>>) {
        self.0.give_back(live);
    }

    /// Runs a statement on a session.
    pub(crate) async fn on<T>(
        &self,
        live: &LiveOf<L>,
        end: Instant,
        call: impl Future<Output = Result<T, Failed>>,
    ) -> Result<T, Failed> {
        let began = Instant::now();
        let answer = timeout_at(end, call).await;
        live.silent.store(answer.is_err(), Ordering::Relaxed);
        answer.unwrap_or_else(|_| {
            let is_over = self.is_over(live);
            let error = no_answer(end.saturating_duration_since(began)).maybe_applied();
            Err(Failed { error, answered: false, is_over })
        })
    }

    /// Gives a session up. `over`: the server has ended it.
    pub(crate) fn bury(&self, live: &LiveOf<L>, over: bool) {
        live.driver.abort();
        let mut state = self.state();
        if !over && !state.buried.contains(&live.session) {
            state.buried.push(live.session.clone());
        }
    }

    /// Ends a session, and returns whether it was still there.
    pub(crate) async fn end_session(&self, session: &Session, end: Instant) -> Result<bool, Error> {
        let live = self.any(end).await?;
        let was_there = self.end_on(&live, session, end, end).await;
        self.give_back(live);
        was_there
    }

    /// Ends a session. Looks until then whether it is over.
    async fn end_on(&self, live: &LiveOf<L>, session: &Session, until: Instant, end: Instant) -> Result<bool, Error> {
        if live.session.server != session.server {
            let what = format!("the server {} does not answer, and a session there may hold the lock", session.server);
            return Err(Error::unreachable(what).maybe_applied());
        }
        let ended = self.on(live, end, end_session(self.locks().server(), &live.client, session, until)).await;
        if let Some(was_there) = ended.map_err(|failed| failed.error)? {
            self.state().buried.retain(|buried| buried != session);
            return Ok(was_there);
        }
        let what = format!("session {} has not ended, though it was asked to", session.id);
        Err(Error::unavailable(what).maybe_applied())
    }
}

impl<L: Locks> Inner<L> {
    fn state(&self) -> MutexGuard<'_, State<L>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self, live: &LiveOf<L>) -> bool {
        self.locks.server().is_closed(&live.client) || live.driver.is_finished()
    }

    async fn open(&self, limit: Duration) -> Result<LiveOf<L>, Error> {
        let (client, driver, session) = self.locks.server().open(false, limit).await?.into_parts();
        let Some(session) = session else {
            driver.abort();
            let what =
                "a pool or proxy stands between this client and the server, and its sessions are those of other clients too";
            return Err(Error::refused(what).with_hint("name the server itself in the store URL, or leave scheme=advisory out"));
        };
        let live = Live {
            client,
            driver,
            session,
            idle_since: Mutex::default(),
            silent: AtomicBool::new(false),
            renewing: tokio::sync::Mutex::default(),
            idle_time: AtomicU64::new(0),
        };
        self.locks.check(&live).await.map_err(|failed| failed.error)?;
        Ok(live)
    }

    fn give_back(&self, live: Arc<LiveOf<L>>) {
        *live.idle_since() = Some(Instant::now());
        if self.is_over(&live) || live.silent.load(Ordering::Relaxed) {
            live.driver.abort();
            return;
        }
        let mut state = self.state();
        // Another call that still has it may give it up.
        if state.idle.len() < MOST_IDLE && Arc::strong_count(&live) == 1 {
            state.idle.push(live);
        }
    }
}
