//! Releases: now, or in the background where nobody heard how one went.

use std::sync::Arc;
use std::time::Duration;

use super::session::Session;
use super::table::PendingRelease;
use super::validity::{EndReason, HeldLease};
use crate::store::ReleaseReply;
use crate::{BootTime, Error};

/// How a release went.
#[derive(Clone, Debug)]
pub enum ReleaseOutcome {
    /// The name was ours and is free, or another's already (or lingers, see [`linger`](crate::Acquire::linger)).
    Released,
    /// So many other guards stand for the same tenure; see [`Guard::reenter`].
    StillHeld(usize),
    /// The tenure had ended before: somebody else may have held the name meanwhile.
    WasLost,
    /// No answer. The release is repeated in the background.
    Unknown {
        /// The name is free by itself in this long at the latest.
        until: Duration,
        /// Why there was no answer.
        error: Error,
    },
}

impl Session {
    /// Releases a tenure that has left the watchdog's book.
    ///
    /// # Cancel safety
    /// A dropped future, also one that was never polled, and an outcome that stays unknown leave the release to the background.
    pub(crate) fn release(&self, held: Arc<HeldLease>) -> impl Future<Output = Result<ReleaseOutcome, Error>> + Send {
        let releasing = Releasing { session: self, lease: held, settled: false };
        releasing.run()
    }

    /// Has the watchdog release a tenure in the background.
    pub(crate) fn release_later(&self, held: &HeldLease) {
        let (now, lease) = (self.clock.now(), held.snapshot());
        if !held.may_be_of_another(now, self.operation_timeout(lease.ttl)) {
            let (lingers_until, until) = (now + held.linger(now), self.forgotten_at(held));
            self.watchdog.release_later(PendingRelease { lease, lingers_until, until, late: held.late, once: !held.generated });
        }
    }

    /// When the store has forgotten the lease even if a renewal sent just now is executed last of all.
    fn forgotten_at(&self, held: &HeldLease) -> BootTime {
        held.store_until().max(self.clock.now() + held.snapshot().ttl)
    }
}

/// A release on its way. Dropped before it is settled, it goes to the background.
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
        // A value that was given may be another's once this has run unheard: it is not sent again.
        self.settled = !held.generated;
        let linger = held.linger(session.clock.now());
        let answer = session.call(lease.ttl, session.store.release(&lease, linger)).await;
        self.settled |= match &answer {
            // An acquire of this token may still run, and nobody would know of it.
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
