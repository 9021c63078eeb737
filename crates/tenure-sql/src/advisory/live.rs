//! A session of the server that this process has.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::table::Session;

/// How long sessions are kept that are idle. Firewalls forget connections that nobody uses.
const LONGEST_IDLE: Duration = Duration::from_secs(60);

/// A session of the server. If it is dropped, the server ends it when it has done what it was sent.
pub(crate) struct Live<C> {
    pub(crate) client: C,
    pub(super) driver: AbortHandle,
    pub(crate) session: Session,
    /// Since when it is idle, or was the last time.
    pub(super) idle_since: Mutex<Option<Instant>>,
    /// Its last statement was not answered in time.
    pub(super) silent: AtomicBool,
    /// For one renewal after another: the server is to run them in the order of the ends that they ask for.
    pub(crate) renewing: tokio::sync::Mutex<()>,
    /// Seconds after which the server ends it when it is idle, where that stays set; 0 if it was not.
    pub(crate) idle_time: AtomicU64,
}

impl<C> Live<C> {
    /// Whether it was never idle since it was made.
    pub(crate) fn is_new(&self) -> bool {
        self.idle_since().is_none()
    }

    /// Whether it was idle for so long that the server may have ended it unnoticed.
    pub(super) fn is_stale(&self) -> bool {
        let left = match self.idle_time.load(Ordering::Relaxed) {
            0 => LONGEST_IDLE,
            seconds => LONGEST_IDLE.min(Duration::from_secs(seconds) / 2),
        };
        self.idle_since().is_some_and(|since| since.elapsed() > left)
    }

    pub(super) fn idle_since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.idle_since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
