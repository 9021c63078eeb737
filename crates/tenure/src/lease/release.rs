//! Releases: now, or in the background after an unknown outcome.

use std::sync::Arc;
use std::time::Duration;

use super::session::Session;
use super::state::EndReason;
use super::table::PendingRelease;
use super::validity::HeldLease;
use crate::store::ReleaseReply;
use crate::{BootTime, Error};

/// Outcome of a release.
#[derive(Clone, Debug)]
pub enum ReleaseOutcome {
    /// The name was ours. It is free, or the next waiter's already, or it lingers; see
    /// [`linger`](crate::Acquire::linger).
    Released,
    /// This many other guards of the lease remain; see [`Guard::reenter`](crate::Guard::reenter).
    StillHeld(usize),
    /// The lease had ended before. Another client may have held the name meanwhile.
    WasLost,
    /// No answer. The release is repeated in the background.
    Unknown {
        /// The name is free by itself after this time at the latest.
        until: Duration,
        /// Error of the unanswered call.
        error: Error,
    },
}

impl Session {
    /// Releases a lease that has left the watchdog's table.
    ///
    /// # Cancel safety
    /// A dropped future leaves the release to the background, even if it was never polled. So does
    /// an outcome that stays unknown.
    pub(crate) fn release(&self, held: Arc<HeldLease>) -> impl Future<Output = Result<ReleaseOutcome, Error>> + Send {
        let releasing = Releasing { session: self, lease: held, settled: false };
        releasing.run()
    }

    /// Releases a lease in the background.
    pub(crate) fn release_later(&self, held: &HeldLease) {
        let (now, lease) = (self.clock.now(), held.snapshot());
        if !held.may_be_of_another(now, self.operation_timeout(lease.ttl)) {
            let (lingers_until, until) = (now + held.linger(now), self.forgotten_at(held));
            self.watchdog.release_later(PendingRelease { lease, lingers_until, until, late: held.late, once: !held.generated });
        }
    }

    /// Time at which the lease has ended at the store, even if a renewal that was just sent is
    /// executed last of all.
    fn forgotten_at(&self, held: &HeldLease) -> BootTime {
        held.store_until().max(self.clock.now() + held.snapshot().ttl)
    }
}

/// A release under way. Its drop leaves the release to the background, unless it is settled.
struct Releasing<'a> {
    session: &'a Session,
    lease: Arc<HeldLease>,
    settled: bool,
}

impl Releasing<'_> {
    async fn run(mut self) -> Result<ReleaseOutcome, Error> {
        let (session, held) = (self.session, &*self.lease);
        let lease = held.snapshot();
        let lost = matches!(held.end_reason(session.clock.now()), Some(reason) if reason != EndReason::Released);
        if held.may_be_of_another(session.clock.now(), session.operation_timeout(lease.ttl)) {
            self.settled = true;
            return Ok(ReleaseOutcome::WasLost);
        }
        // Another client may hold with a supplied token once this release has run unanswered, so it
        // is not repeated.
        self.settled = !held.generated;
        let linger = held.linger(session.clock.now());
        let answer = session.ask_release(&lease, linger).await;
        self.settled |= match &answer {
            // An acquire with this token may still run, and nobody would know.
            Ok(_) => !(held.late && session.store.features().late_commands),
            Err(error) => !error.is_transient(),
        };
        match answer {
            Ok(ReleaseReply::Released) if !lost => Ok(ReleaseOutcome::Released),
            Ok(_) => Ok(ReleaseOutcome::WasLost),
            Err(error) if error.is_transient() => {
                Ok(ReleaseOutcome::Unknown { until: session.forgotten_at(held).since(session.clock.now()), error })
            }
            Err(error) => Err(error),
        }
    }
}

impl Drop for Releasing<'_> {
    fn drop(&mut self) {
        if !self.settled {
            self.session.release_later(&self.lease);
        }
    }
}
