//! The sessions of a store, each with the timeout that its leases need.
//!
//! Leases of one ttl share a session. A waiter has one with a short timeout, so that it costs little
//! if its process dies. When it is to hold for longer, its session gets the timeout that it was made with.

use std::io::ErrorKind;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tenure::Error;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::entry::SessionUse;
use crate::link::Undialled;
use crate::session::{How, Session};

/// Number of waiters that have a session each. Servers allow 60 connections of one address by default.
const WAITERS: usize = 8;

/// Number of sessions without a node that stay open for the next lease.
const UNUSED: usize = 4;

#[derive(Debug)]
pub(crate) struct Sessions {
    how: Arc<How>,
    shown: String,
    /// The runtime of the one who opened the store: that of a caller may end earlier.
    runtime: Mutex<Handle>,
    open: Mutex<Vec<Arc<Session>>>,
    /// Held while a session is made, so that nobody makes the same.
    opening: tokio::sync::Mutex<()>,
    limits: OnceLock<(Duration, Duration)>,
}

impl Sessions {
    /// Makes the first session.
    pub(crate) async fn open(how: How, shown: String, end: Instant) -> Result<Self, Error> {
        let sessions = Self {
            how: Arc::new(how),
            shown,
            runtime: Mutex::new(Handle::current()),
            open: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            limits: OnceLock::new(),
        };
        let first = sessions.make(Duration::MAX, Duration::from_millis(1), end).await?;
        let _ = sessions.limits.set((first.timeout(), first.made));
        let _ = sessions.how.shortest.set(first.timeout());
        Ok(sessions)
    }

    /// The shortest and the longest timeout that the ensemble gives.
    fn limits(&self) -> (Duration, Duration) {
        self.limits.get().copied().unwrap_or_default()
    }

    pub(crate) fn shortest(&self) -> Duration {
        self.limits().0
    }

    /// How far the leader may lag behind the server that answers: a tick, if the ensemble has the usual shortest timeout of two.
    pub(crate) fn slack(&self) -> Duration {
        self.limits().0 / 2
    }

    /// The longest ttl that a session can keep.
    pub(crate) fn longest_ttl(&self) -> Duration {
        self.limits().1.saturating_sub(self.slack())
    }

    /// The timeout of a session for leases of `ttl`.
    pub(crate) fn needed(&self, ttl: Duration) -> Duration {
        let (shortest, longest) = self.limits();
        let millis = ttl.saturating_add(self.slack()).as_nanos().div_ceil(1_000_000);
        Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)).clamp(shortest, longest)
    }

    /// Whether a session keeps a lease for `ttl`.
    pub(crate) fn keeps(&self, session: &Session, ttl: Duration) -> bool {
        ttl <= session.timeout().saturating_sub(self.slack())
    }

    fn opened(&self) -> MutexGuard<'_, Vec<Arc<Session>>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|session| !session.is_over());
        open
    }

    /// Any session, for reads.
    pub(crate) async fn any(&self, end: Instant) -> Result<Arc<Session>, Error> {
        let found = || {
            let open = self.opened();
            open.iter().filter(|session| session.is_connected()).max_by_key(|session| session.timeout()).cloned()
        };
        if let Some(session) = found() {
            return Ok(session);
        }
        let _turn = self.turn(end).await?;
        if let Some(session) = found() {
            return Ok(session);
        }
        self.make(self.shortest(), self.shortest(), end).await
    }

    /// A place in a session for a lease of `ttl`.
    pub(crate) async fn for_lease(&self, ttl: Duration, end: Instant) -> Result<SessionUse, Error> {
        let needed = self.needed(ttl);
        if let Some(used) = self.found_for_lease(needed) {
            return Ok(used);
        }
        let _turn = self.turn(end).await?;
        match self.found_for_lease(needed) {
            Some(used) => Ok(used),
            None => Ok(SessionUse::new(self.make(needed, needed, end).await?, false)),
        }
    }

    fn found_for_lease(&self, needed: Duration) -> Option<SessionUse> {
        let open = self.opened();
        let fits = |session: &&Arc<Session>| {
            session.timeout() == needed && session.made == needed && session.waiters.load(Ordering::Acquire) == 0
        };
        // Servers may have lost it, and a new one is at once to be had.
        open.iter().filter(|session| session.is_connected()).find(fits).map(|session| SessionUse::new(session.clone(), false))
    }

    /// A place in a session for a waiter that is to hold for `ttl`.
    pub(crate) async fn for_waiter(
        &self,
        ttl: Duration,
        entry_ttl: Duration,
        handoff_ttl: Duration,
        end: Instant,
    ) -> Result<SessionUse, Error> {
        let (shortest, longest) = self.limits();
        let made = self.needed(ttl);
        let needed = self.needed(handoff_ttl).max(entry_ttl).clamp(shortest, longest).min(made);
        let _turn = self.turn(end).await?;
        let Some((used, is_alone)) = self.found_for_waiter(made, needed) else {
            return Ok(SessionUse::new(self.make(made, needed, end).await?, true));
        };
        let timeout = used.session.timeout();
        if timeout < needed || (is_alone && timeout > needed) {
            self.within(end, used.session.retime(needed, is_alone)).await?;
        }
        Ok(used)
    }

    /// And whether nothing else is in it. No lease can come to it meanwhile: it would end with the shorter session.
    fn found_for_waiter(&self, made: Duration, needed: Duration) -> Option<(SessionUse, bool)> {
        let open = self.opened();
        let open: Vec<_> = open.iter().filter(|session| session.is_connected()).collect();
        let waiting = |session: &Arc<Session>| session.waiters.load(Ordering::Acquire);
        let users = |session: &Arc<Session>| session.users.load(Ordering::Acquire);
        let is_unused = |session: &&&Arc<Session>| users(session) == 0 && session.made == made;
        let unused = open.iter().filter(is_unused).min_by_key(|session| session.timeout().abs_diff(needed));
        let shared = || {
            let busy: Vec<_> = open.iter().filter(|session| waiting(session) > 0 && session.made >= made).collect();
            busy.iter().min_by_key(|session| waiting(session)).filter(|_| busy.len() >= WAITERS).copied()
        };
        let used = unused.or_else(shared).map(|session| SessionUse::new(Arc::clone(session), true))?;
        let is_alone = users(&used.session) == 1;
        Some((used, is_alone))
    }

    async fn turn(&self, end: Instant) -> Result<tokio::sync::MutexGuard<'_, ()>, Error> {
        self.within(end, self.opening.lock()).await
    }

    async fn within<T>(&self, end: Instant, what: impl Future<Output = T>) -> Result<T, Error> {
        let late = || Error::unreachable(format!("no server of {} answers", self.shown));
        let answer = tokio::time::timeout_at(end, what).await;
        answer.map_err(|_| self.how.credentials.unanswered().unwrap_or_else(late))
    }

    async fn make(&self, made: Duration, timeout: Duration, end: Instant) -> Result<Arc<Session>, Error> {
        loop {
            let runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let made = Session::open(self.how.clone(), made, timeout, end, &runtime).await;
            let session = made.map_err(|failed| match failed {
                Undialled::Expired => Error::unavailable("ZooKeeper ended a session as soon as it was made"),
                Undialled::Refused(error) => error,
                Undialled::Failed(error) => self.unreachable(error),
            })?;
            if session.is_over() && runtime.id() != Handle::current().id() {
                // That runtime has ended.
                *self.runtime.lock().unwrap_or_else(PoisonError::into_inner) = Handle::current();
                continue;
            }
            let session = Arc::new(session);
            let mut open = self.opened();
            close_unused(&mut open);
            // The first one only learned the limits.
            let longest = self.limits().1;
            open.retain(|first| first.made != longest || first.timeout() == longest || first.users.load(Ordering::Acquire) > 0);
            open.push(session.clone());
            return Ok(session);
        }
    }

    /// Lets nothing more into a session. It is closed when the last that is there has ended.
    pub(crate) fn retire(&self, session: &Arc<Session>) {
        self.opened().retain(|other| !Arc::ptr_eq(other, session));
    }

    fn unreachable(&self, error: std::io::Error) -> Error {
        let is_closed = matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset);
        if let Some(unanswered) = self.how.credentials.unanswered() {
            return unanswered;
        }
        let unreachable = Error::unreachable(format!("no server of {} answers", self.shown)).with_source(error);
        if !is_closed {
            return unreachable;
        }
        unreachable.with_hint("if it refuses more connections of this host, raise its maxClientCnxns, which is 60 by default")
    }

    pub(crate) fn runtime(&self) -> Handle {
        self.runtime.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Lets the oldest of too many unused sessions go. A session is closed when its last call has ended.
fn close_unused(open: &mut Vec<Arc<Session>>) {
    // Uses are counted under the lock of the list, so none begins meanwhile.
    let is_unused = |session: &Arc<Session>| session.users.load(Ordering::Acquire) == 0;
    let mut too_many = open.iter().filter(|session| is_unused(session)).count().saturating_sub(UNUSED);
    open.retain(|session| {
        let goes = too_many > 0 && is_unused(session);
        too_many -= usize::from(goes);
        !goes
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    use tenure_testkit::ZooKeeperServer;

    use super::*;
    use crate::Options;

    /// It would end earlier than the lease.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_session_that_a_lease_has_is_not_shortened_for_a_waiter() {
        let store = Options::parse(&ZooKeeperServer::shared().url("app")).unwrap().open().await.unwrap();
        let (sessions, ttl) = (&store.0.sessions, Duration::from_secs(2));
        let (made, end) = (sessions.needed(ttl), Instant::now() + Duration::from_secs(20));
        drop(sessions.for_lease(ttl, end).await.unwrap());
        let (both, over) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let Some(used) = sessions.found_for_lease(made) else { continue };
                    both.fetch_add(used.session.waiters.load(Ordering::Acquire), Ordering::Relaxed);
                }
            });
            for _ in 0..100_000 {
                if let Some((_used, is_alone)) = sessions.found_for_waiter(made, sessions.shortest()) {
                    both.fetch_add(usize::from(!is_alone), Ordering::Relaxed);
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(both.into_inner(), 0, "a lease is in a session of a waiter");
    }
}
