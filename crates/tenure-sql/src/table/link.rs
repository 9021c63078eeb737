//! A connection that can be used, and the calls on it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;

/// A connection that has answered anything this short a time ago is only slow.
const SILENCE: Duration = Duration::from_millis(100);

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
    pub(super) client: C,
    pub(super) driver: AbortHandle,
    /// Session that its successor ends. `None` behind a pool.
    pub(super) session: Option<Session>,
    pub(super) listens: AtomicBool,
    heard: Mutex<Instant>,
    pub(super) calls: Calls,
}

/// The calls of a link: whether all were answered. Answers come in the order of the calls.
#[derive(Default)]
pub(super) struct Calls {
    last: AtomicU64,
    active: AtomicUsize,
    /// The largest number at the time when a call was dropped without its answer.
    dropped: AtomicU64,
    /// The largest number that was answered.
    answered: AtomicU64,
    /// When the last of them comes too late, behind a pool.
    pub(super) latest: Mutex<Option<Instant>>,
}

/// A call under way on a link. If it is dropped, it counts as unanswered until a later one is answered.
pub(super) struct Call<C> {
    pub(super) link: Arc<Link<C>>,
    number: u64,
    pub(super) answered: bool,
}

impl Calls {
    pub(super) fn all_answered(&self) -> bool {
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
    pub(super) fn begin(self: Arc<Self>, latest: Instant) -> Call<C> {
        let mut last = lock(&self.calls.latest);
        *last = last.max(Some(latest));
        drop(last);
        self.calls.active.fetch_add(1, Ordering::SeqCst);
        let number = self.calls.last.fetch_add(1, Ordering::SeqCst) + 1;
        Call { link: self, number, answered: false }
    }

    pub(super) fn hears(&self) {
        *lock(&self.heard) = Instant::now();
    }

    pub(super) fn has_heard_since(&self, then: Instant) -> bool {
        *lock(&self.heard) > then
    }

    pub(super) fn is_silent(&self) -> bool {
        lock(&self.heard).elapsed() > SILENCE
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
