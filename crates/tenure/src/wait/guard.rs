//! What a locker's tasks share, and the handle of a lease: where the lease goes when its last guard does.

use std::fmt;
use std::sync::Arc;

use super::queue::{AcquireKey, LocalQueues};
use super::state::WaitState;
use crate::BootTime;
use crate::lease::{EndReason, HeldLease, Id, Session};

/// What the clones of a [`Locker`](crate::Locker) share: the store, and those of this process who wait for its names.
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

/// Proof of a tenure, for as long as [`state`](Guard::state) does not say otherwise.
///
/// It renews itself until it is released, dropped or lost. Loss is told by this machine's boot-time clock before the lease ends
/// at the store, without waiting for anyone's answer.
///
/// Dropping it gives the name up in the background: it never blocks and never panics, inside or outside a runtime. Where the
/// runtime is gone as well nobody is left to send the release, and the name is free when its ttl has passed.
///
/// Where another task of this process waits for the like of it, it gets the lease at once, with the next fence and without the
/// store; that goes on for 10 ms or 1,023 hand-overs after the store's grant, and then those who wait at the store are served.
#[must_use = "a guard that is dropped at once gives the lock up at once"]
pub struct Guard {
    pub(crate) core: Arc<Core>,
    pub(crate) lease: Arc<HeldLease>,
    pub(crate) id: Id,
    /// How many others stood for the tenure when this one left.
    pub(crate) others: Option<usize>,
}

impl Guard {
    pub(crate) fn new(core: &Arc<Core>, held: HeldLease) -> Self {
        let held = Arc::new(held);
        let id = core.session.watchdog.insert(Arc::clone(&held));
        Self { core: Arc::clone(core), lease: held, id, others: None }
    }

    /// Whether it is lost in time to stop work as was asked for.
    pub(crate) fn leaves_margin(&self) -> bool {
        self.lease.leaves_margin()
    }

    /// Until when it may be given to the next task of this process.
    pub(crate) fn handoffs_until(&self) -> BootTime {
        self.lease.handoffs_until()
    }

    /// Stands for the tenure no longer; how many others do.
    pub(crate) fn leave(&mut self) -> usize {
        *self.others.get_or_insert_with(|| self.lease.leave())
    }

    /// Gives the lease to a task of this process that waits for the like of it.
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
        if self.leave() > 0 {
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
