//! A lease or a waiter of this process, as all of it see it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::store::{AcquireReply, Enqueue, ReleaseReply, Request};
use tenure::{Error, Fence, Name, Owner, Share};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::nodes::Data;
use crate::session::{Pending, Session};
use crate::wire::Frame;

/// A session, for as long as a node of ours may be in it.
#[derive(Debug)]
pub(crate) struct SessionUse {
    pub(crate) session: Arc<Session>,
    waits: bool,
}

impl SessionUse {
    pub(crate) fn new(session: Arc<Session>, waits: bool) -> Self {
        let counts = |count: &AtomicUsize| count.fetch_add(1, Ordering::AcqRel);
        counts(&session.users);
        if waits {
            counts(&session.waiters);
        }
        Self { session, waits }
    }
}

impl Drop for SessionUse {
    fn drop(&mut self) {
        self.session.users.fetch_sub(1, Ordering::AcqRel);
        if self.waits {
            self.session.waiters.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// The ttl that a new node shows: for a waiter, the time for which it would be served.
pub(crate) fn shown_ttl(request: &Request) -> Duration {
    match request.enqueue {
        Enqueue::Join { handoff_ttl, .. } => handoff_ttl,
        Enqueue::No | Enqueue::Heartbeat => request.ttl,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No answer has said yet where it stands.
    Asked,
    Waiting,
    /// It holds, and has not come for it.
    Served,
    Held,
    Ended,
}

/// A request to the task of an entry.
pub(crate) enum Command {
    Acquire(Request, Instant, oneshot::Sender<Result<AcquireReply, Error>>),
    Release(oneshot::Sender<Result<ReleaseReply, Error>>),
}

/// An entry as the table has it. Its task ends with it.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) entry: Arc<Entry>,
    pub(crate) commands: mpsc::UnboundedSender<Command>,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: Name,
    /// The path of the name.
    pub(crate) parent: String,
    pub(crate) guid: String,
    pub(crate) used: SessionUse,
    state: Mutex<State>,
}

#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) owner: Owner,
    pub(crate) share: Share,
    pub(crate) phase: Phase,
    /// Its release was asked for: no renewal finds it any more.
    pub(crate) released: bool,
    /// Its node, once that is known.
    pub(crate) node: Option<String>,
    pub(crate) fence: Option<Fence>,
    /// When this process ends it, unless somebody renews it.
    pub(crate) until: Instant,
    pub(crate) since: Instant,
    pub(crate) ttl: Duration,
    /// The ttl that its node is known to show to others. It may show a longer one.
    pub(crate) written: Duration,
    /// The ttl of the last write that was sent.
    pub(crate) sent: Duration,
    /// For how long a waiter is kept, and for how long it is served.
    pub(crate) entry_ttl: Duration,
    pub(crate) handoff_ttl: Duration,
}

impl State {
    /// Writes the data of its node. Writes are sent in the order of the lock of this state.
    pub(crate) fn write(&mut self, session: &Session, path: &str, data: &Data) -> Pending {
        // Nobody knows yet whether it arrives.
        (self.sent, self.written) = (data.ttl, self.written.min(data.ttl));
        let [pending] = session.ask_all([Frame::set_data(path, &data.write())]);
        pending
    }

    /// Notes that a write is answered. A later one may have shown less.
    pub(crate) fn shows(&mut self, ttl: Duration) {
        self.written = self.sent.min(ttl);
    }
}

impl Entry {
    pub(crate) fn new(request: &Request, parent: String, guid: String, used: SessionUse) -> Self {
        let now = Instant::now();
        let state = State {
            owner: request.owner.clone(),
            share: request.share,
            phase: Phase::Asked,
            released: false,
            written: shown_ttl(request),
            sent: shown_ttl(request),
            node: None,
            fence: None,
            until: now + request.ttl,
            since: now,
            ttl: request.ttl,
            entry_ttl: Duration::ZERO,
            handoff_ttl: Duration::ZERO,
        };
        Self { name: request.name.clone(), parent, guid, used, state: Mutex::new(state) }
    }

    pub(crate) fn session(&self) -> &Session {
        &self.used.session
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn path_of(&self, child: &str) -> String {
        format!("{}/{child}", self.parent)
    }

    /// Its node, if it holds.
    pub(crate) fn held_node(&self) -> Option<String> {
        let state = self.state();
        let holds = matches!(state.phase, Phase::Served | Phase::Held) && !state.released;
        state.node.as_ref().filter(|_| holds).map(|node| self.path_of(node))
    }

    /// Keeps it for `ttl` from now, or longer.
    pub(crate) fn extend(&self, ttl: Duration) {
        let mut state = self.state();
        state.until = state.until.max(Instant::now() + ttl);
    }

    /// Notes that the server has just said that it holds. Returns whether it had not ended here before.
    pub(crate) fn confirm(&self, ttl: Duration) -> bool {
        let mut state = self.state();
        if state.phase == Phase::Ended || state.released {
            return false;
        }
        if state.phase != Phase::Held {
            (state.phase, state.since) = (Phase::Held, Instant::now());
        }
        state.until = state.until.max(Instant::now() + ttl);
        true
    }

    pub(crate) fn end(&self) {
        self.state().phase = Phase::Ended;
    }
}
