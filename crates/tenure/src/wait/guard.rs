//! What a locker's tasks share, and the handle of a lease: where the lease goes when its last guard does.

use std::fmt;
use std::sync::Arc;

use super::queue::{Rooms, Shape};
use super::state::Standing;
use crate::BootTime;
use crate::lease::{EndReason, Id, Session, Tenure};

/// What the clones of a [`Locker`](crate::Locker) share: the store, and those of this process who wait for its names.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) session: Arc<Session>,
    pub(crate) rooms: Rooms<Guard, Box<Standing>>,
}

impl Core {
    pub(crate) fn new(session: Session) -> Self {
        Self { session: Arc::new(session), rooms: Rooms::default() }
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
    pub(crate) tenure: Arc<Tenure>,
    pub(crate) id: Id,
    /// How many others stood for the tenure when this one left.
    pub(crate) others: Option<usize>,
}

impl Guard {
    pub(crate) fn new(core: &Arc<Core>, tenure: Tenure) -> Self {
        let tenure = Arc::new(tenure);
        let id = core.session.watchdog.hold(Arc::clone(&tenure));
        Self { core: Arc::clone(core), tenure, id, others: None }
    }

    /// Whether it is lost in time to stop work as was asked for.
    pub(crate) fn leaves_time(&self) -> bool {
        self.tenure.leaves_time()
    }

    /// Until when it may be given to the next task of this process.
    pub(crate) fn turn_ends(&self) -> BootTime {
        self.tenure.turn_ends()
    }

    /// Stands for the tenure no longer; how many others do.
    pub(crate) fn leave(&mut self) -> usize {
        *self.others.get_or_insert_with(|| self.tenure.leave())
    }

    /// Gives the lease to a task of this process that waits for the like of it.
    pub(crate) fn hand_on(&self) -> bool {
        let Core { session, rooms } = &*self.core;
        if rooms.are_empty() {
            return false;
        }
        let (share, terms, label) = (self.tenure.kept().share, &self.tenure.terms, &self.tenure.label);
        let like =
            |shape: &Shape| shape.share == share && shape.terms == *terms && shape.label == *label && shape.token.is_none();
        let next = |asks_time: bool| {
            if !session.store.features().cohort || (asks_time && !self.tenure.leaves_time()) {
                return None;
            }
            let tenure = session.watchdog.pass_on(self.id)?;
            let turn = tenure.turn_ends();
            Some((Self { core: Arc::clone(&self.core), tenure, id: self.id, others: None }, turn))
        };
        rooms.pass(&self.tenure.name, like, next)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.leave() > 0 {
            return;
        }
        if self.tenure.give_up() && !self.hand_on() {
            self.core.session.watchdog.forget(self.id);
            self.core.session.clear(&self.tenure);
        }
        self.tenure.end(EndReason::Released);
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", &self.tenure.name)
            .field("fence", &self.tenure.kept().fence)
            .field("state", &self.tenure.state(self.core.session.clock.now()))
            .finish_non_exhaustive()
    }
}
