//! State that the tasks of a locker share, and the guard of a lease: where the lease goes when its
//! last guard does.

use std::fmt;
use std::sync::Arc;

use super::queue::{AcquireKey, LocalQueues};
use super::state::WaitState;
use crate::BootTime;
use crate::lease::{EndReason, HeldLease, Id, Session};

/// State that the clones of a [`Locker`](crate::Locker) share: the session with the store, and the
/// local queues.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) session: Arc<Session>,
    pub(crate) queues: LocalQueues<Guard, Box<WaitState>>,
}

impl Core {
    pub(crate) fn new(session: Session) -> Self {
        Self { session: Arc::new(session), queues: LocalQueues::default() }
    }
}

/// Proof that a name is held, until [`state`](Guard::state) says otherwise.
///
/// The lease renews itself until it is released, dropped or lost. The boot-time clock of this
/// machine ends it before it ends at the store, without waiting for a reply.
///
/// In the child of a `fork` a guard of the parent is lost: each call fails, and a drop does nothing.
///
/// A drop releases the name in the background. It never blocks and never panics, inside or outside
/// a runtime. If the runtime is gone as well, nobody is left to send the release: the name is free
/// after its ttl.
///
/// If another task of this process waits with equal settings, it gets the lease at once: with the
/// next fence, and without a request to the store. That goes on for 10 ms or 1,023 handoffs after
/// the store's grant. Then the waiters at the store are served.
#[must_use = "a guard that is dropped at once gives the lock up at once"]
pub struct Guard {
    pub(crate) core: Arc<Core>,
    pub(crate) lease: Arc<HeldLease>,
    pub(crate) id: Id,
    /// Number of other guards of the lease when this one left.
    pub(crate) others: Option<usize>,
}

impl Guard {
    pub(crate) fn new(core: &Arc<Core>, held: HeldLease) -> Self {
        let held = Arc::new(held);
        let id = core.session.watchdog.insert(Arc::clone(&held));
        Self { core: Arc::clone(core), lease: held, id, others: None }
    }

    /// Whether the lease ends in time for the safety margin.
    pub(crate) fn leaves_margin(&self) -> bool {
        self.lease.leaves_margin()
    }

    /// End of the time in which the lease may go to the next task of this process.
    pub(crate) fn handoffs_until(&self) -> BootTime {
        self.lease.handoffs_until()
    }

    /// Leaves the lease, once. Returns the number of other guards.
    pub(crate) fn leave(&mut self) -> usize {
        *self.others.get_or_insert_with(|| self.lease.leave())
    }

    /// Hands the lease to a task of this process that waits with equal settings.
    pub(crate) fn hand_on(&self) -> bool {
        let Core { session, queues } = &*self.core;
        if queues.are_empty() {
            return false;
        }
        let (share, terms, label) = (self.lease.current().share, &self.lease.terms, &self.lease.label);
        let matches = |key: &AcquireKey| key.share == share && key.terms == *terms && key.label == *label && key.token.is_none();
        let next = |asks_margin: bool| {
            if !session.store.features().cohort || (asks_margin && !self.lease.leaves_margin()) {
                return None;
            }
            let held = session.watchdog.hand_on(self.id)?;
            let handoffs_until = held.handoffs_until();
            Some((Self { core: Arc::clone(&self.core), lease: held, id: self.id, others: None }, handoffs_until))
        };
        queues.hand_on(&self.lease.name, matches, next)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // In the child of a fork the lease is still the parent's.
        if !self.core.session.is_ours() || self.leave() > 0 {
            return;
        }
        if self.lease.claim_release() && !self.hand_on() {
            self.core.session.watchdog.forget(self.id);
            self.core.session.release_later(&self.lease);
        }
        self.lease.end(EndReason::Released);
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", &self.lease.name)
            .field("fence", &self.lease.current().fence)
            .field("state", &self.lease.state(self.core.session.clock.now()))
            .finish_non_exhaustive()
    }
}
