//! What a wait has reached at the store.

use std::fmt;
use std::time::Duration;

use futures_util::stream::BoxStream;

use super::attempt::Attempt;
use crate::store::Notice;
use crate::{BootTime, Holder};

/// What a wait has reached at the store. Tasks that wait for the like of it pass it on.
pub(crate) struct WaitState {
    pub(super) attempt: Attempt,
    /// The name was busy, so that there is a reason to queue.
    pub(super) contended: bool,
    pub(super) notices: Option<BoxStream<'static, Notice>>,
    pub(super) heartbeat: Option<Heartbeat>,
    pub(super) poll_at: BootTime,
    pub(super) holder: Option<Holder>,
}

/// The last answered heartbeat of a place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heartbeat {
    pub(super) sent_at: BootTime,
    /// The grant counter when it was executed. A hand-over that came later has a larger one.
    pub(super) grant_seq: Option<u64>,
    /// For how long the name will be ours if it is handed over.
    pub(super) handoff_ttl: Duration,
}

impl WaitState {
    pub(super) fn new(attempt: Attempt, contended: bool, now: BootTime) -> Self {
        Self { attempt, contended, notices: None, heartbeat: None, poll_at: now, holder: None }
    }
}

impl fmt::Debug for WaitState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitState").field("attempt", &self.attempt).field("heartbeat", &self.heartbeat).finish_non_exhaustive()
    }
}
