//! The waiters of a store, and who is in front of each.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::Owner;
use tokio::sync::watch;

use crate::queue::Queue;
use crate::seen::Id;

/// Waiters that are kept in mind although nobody reads their notices.
const FEW: usize = 256;
/// For a heartbeat whose entry another process made.
const HANDOFF_TTL: Duration = Duration::from_millis(1_500);

/// The entries in front of a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Before {
    /// Revision of the answer that says so.
    pub(crate) revision: i64,
    /// The last key in front of it.
    pub(crate) last: Vec<u8>,
    /// There is no other.
    pub(crate) alone: bool,
    /// It has to wait until all in front of it have gone.
    pub(crate) exclusive: bool,
    pub(crate) handoff_ttl: Duration,
    /// Number of the connection of that answer. A watch on an earlier one may be dead.
    pub(crate) connection: u64,
}

impl Before {
    /// `None` if the owner does not wait there.
    pub(crate) fn new(queue: &Queue, owner: &Owner, handoff_ttl: Duration, connection: u64) -> Option<Self> {
        let at = queue.position(owner)?;
        let last = queue.slots.get(at.checked_sub(1)?)?.key.clone();
        let exclusive = queue.slots.get(at)?.value.share.is_exclusive();
        Some(Self { revision: queue.revision, last, alone: at == 1, exclusive, handoff_ttl, connection })
    }
}

/// The waiters of this store.
#[derive(Default)]
pub(crate) struct Waits(Mutex<HashMap<Id, watch::Sender<Option<Before>>>>);

impl Waits {
    /// Notes the answer to a waiter, for its notices.
    pub(crate) fn note(&self, id: &Id, before: Before) {
        let mut all = self.all();
        if all.len() > FEW && !all.contains_key(id) {
            all.retain(|_, wait| wait.receiver_count() > 0);
        }
        all.entry(id.clone()).or_insert_with(|| watch::Sender::new(None)).send_replace(Some(before));
    }

    pub(crate) fn handoff_ttl(&self, id: &Id) -> Duration {
        let known = self.all().get(id).and_then(|wait| wait.borrow().as_ref().map(|before| before.handoff_ttl));
        known.unwrap_or(HANDOFF_TTL)
    }

    pub(crate) fn end(&self, id: &Id) {
        self.all().remove(id);
    }

    pub(crate) fn subscribe(&self, id: &Id) -> watch::Receiver<Option<Before>> {
        self.all().entry(id.clone()).or_insert_with(|| watch::Sender::new(None)).subscribe()
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Id, watch::Sender<Option<Before>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
