//! State of a wait at the store.

use std::fmt;
use std::time::Duration;

use futures_util::stream::BoxStream;

use super::attempt::Attempt;
use crate::store::Notice;
use crate::{BootTime, Holder};

/// State of a wait at the store. Waiters with equal settings pass it on.
pub(crate) struct WaitState {
    pub(super) attempt: Attempt,
    /// The name was busy, so there is a reason to queue.
    pub(super) contended: bool,
    pub(super) notices: Option<BoxStream<'static, Notice>>,
    pub(super) heartbeat: Option<Heartbeat>,
    pub(super) poll_at: BootTime,
    pub(super) holder: Option<Holder>,
}

/// The last answered heartbeat of a queue entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heartbeat {
    pub(super) sent_at: BootTime,
    /// Grant counter at its execution. A later handoff has a larger one.
    pub(super) grant_seq: Option<u64>,
    /// Ttl of the lease after a handoff.
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
