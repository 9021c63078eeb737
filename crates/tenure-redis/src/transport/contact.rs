//! When something was last sent on a connection, and when something last came.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tenure::BootTime;
use tokio::time::Instant;

/// Times of the last contact, ms since boot.
#[derive(Default)]
pub(crate) struct Contact {
    /// When the first command was sent since something came.
    asked_at: AtomicU64,
    heard_at: AtomicU64,
    /// Nothing more can be sent.
    ended: AtomicBool,
}

impl Contact {
    pub(crate) fn asked(&self, at: u64) {
        if self.asked_at.load(Ordering::Relaxed) <= self.heard_at.load(Ordering::Relaxed) {
            self.asked_at.store(at, Ordering::Relaxed);
        }
    }

    /// Notes that a part of an answer has come.
    pub(crate) fn heard(&self) {
        self.heard_at.store(now_ms(), Ordering::Relaxed);
    }

    /// Whether it is known that nothing more can be sent.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Time at `now` for which nothing came of what was sent at `asked_at` and has no answer.
    pub(crate) fn quiet(&self, asked_at: u64, now: u64) -> Duration {
        Duration::from_millis(now.saturating_sub(asked_at.max(self.heard_at.load(Ordering::Relaxed))))
    }

    /// As [`quiet`](Contact::quiet), for what other callers have sent as well.
    pub(crate) fn silence(&self, asked_at: u64, now: u64) -> Duration {
        let (first, heard) = (self.asked_at.load(Ordering::Relaxed), self.heard_at.load(Ordering::Relaxed));
        self.quiet(if first > heard { first.min(asked_at) } else { asked_at }, now)
    }
}

/// A moment on both clocks: leases are counted on the boot-time clock, timers run by the other.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
    /// Ms since boot.
    pub(crate) ms: u64,
    pub(crate) instant: Instant,
}

impl Moment {
    pub(crate) fn now() -> Self {
        Self { ms: now_ms(), instant: Instant::now() }
    }
}

/// Milliseconds since boot.
pub(crate) fn now_ms() -> u64 {
    u64::try_from(BootTime::now().since_boot().as_millis()).unwrap_or(u64::MAX)
}
