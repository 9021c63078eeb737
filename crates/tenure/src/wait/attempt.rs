//! One attempt with one owner token.

use std::sync::Arc;
use std::time::Duration;

use super::queue::AcquireKey;
use crate::lease::{HeldLease, PendingRelease, Session, Terms};
use crate::store::{AcquireReply, Enqueue, Grant, Request};
use crate::{BootTime, Error, Fence, Name, Owner};

/// Time after which nothing is left of a queue entry, even if it was served at its very end.
const LONGEST_ENTRY: Duration = Duration::from_secs(4);

/// One owner token on its way to the store. A drop releases in the background what it may have left
/// there.
#[derive(Debug)]
pub(crate) struct Attempt {
    session: Arc<Session>,
    pub(crate) request: Request,
    /// The token may hold the name, or have a queue entry, or may still get either.
    dirty: bool,
    /// A request had no answer. At a store with late commands it may still run after everything
    /// that is sent later.
    unanswered: bool,
}

impl Attempt {
    pub(crate) fn new(session: &Arc<Session>, request: Request) -> Self {
        Self { session: Arc::clone(session), request, dirty: false, unanswered: false }
    }

    /// Starts an attempt that joins no queue.
    pub(super) fn first(session: &Arc<Session>, name: Name, owner: Owner, key: &AcquireKey) -> Self {
        // The first lease covers the shortest hold even if the holder crashes at once.
        let ttl = key.terms.ttl.max(key.terms.min_hold);
        let request = Request::new(name, owner, key.share, ttl).with_generated(key.token.is_none());
        Self::new(session, request)
    }

    pub(crate) async fn send(&mut self) -> Result<AcquireReply, Error> {
        let before = self.sending();
        let answer = self.session.attempt(&self.request).await;
        let there = answer.as_ref().map(|answer| match answer {
            AcquireReply::Granted(_) => true,
            AcquireReply::Busy(busy) => busy.position.is_some(),
            AcquireReply::Refused { .. } => false,
        });
        self.answered(before, there);
        answer
    }

    /// Sends all attempts at once. The store grants all or none.
    pub(crate) async fn send_all(attempts: &mut [Self]) -> Result<Option<Vec<Grant>>, Error> {
        let Some(first) = attempts.first() else { return Ok(Some(Vec::new())) };
        let (session, requests) =
            (Arc::clone(&first.session), attempts.iter().map(|one| one.request.clone()).collect::<Vec<_>>());
        let before: Vec<_> = attempts.iter_mut().map(Self::sending).collect();
        let answer = session.attempt_all(&requests).await;
        for (attempt, before) in attempts.iter_mut().zip(before) {
            attempt.answered(before, answer.as_ref().map(Option::is_some));
        }
        answer
    }

    pub(super) const fn is_unanswered(&self) -> bool {
        self.unanswered
    }

    /// Marks that the token may be anywhere from now on, also if the future is dropped. Returns
    /// what was known before.
    fn sending(&mut self) -> (bool, bool) {
        (std::mem::replace(&mut self.dirty, true), std::mem::replace(&mut self.unanswered, true))
    }

    /// Notes whether the token is at the store, as the answer says.
    fn answered(&mut self, (was_dirty, was_unanswered): (bool, bool), there: Result<bool, &Error>) {
        self.unanswered = was_unanswered || matches!(there, Err(error) if error.may_have_been_applied());
        self.dirty = match there {
            // The answer is of now: an unanswered request may still run.
            Ok(there) => there || (self.unanswered && self.session.store.features().late_commands),
            Err(error) => was_dirty || error.may_have_been_applied(),
        };
    }

    /// Returns the lease of a grant; `None` if it came too late to be valid.
    pub(crate) fn granted(&mut self, terms: Terms, label: &Arc<str>, sent_at: BootTime, grant: &Grant) -> Option<HeldLease> {
        let lease = self.request.lease().with_ttl(terms.ttl.min(grant.ttl)).with_fence(grant.fence);
        let mut held = HeldLease::new(lease, terms, Arc::clone(label), sent_at, grant.ttl);
        held.durability = grant.durability;
        self.hand_out(held)
    }

    /// Returns the lease of a handoff. The store made it after it had executed the heartbeat of
    /// `sent_at`.
    pub(crate) fn handed_over(
        &mut self,
        terms: Terms,
        label: &Arc<str>,
        sent_at: BootTime,
        fence: Fence,
        handoff_ttl: Duration,
    ) -> Option<HeldLease> {
        let lease = self.request.lease().with_ttl(terms.ttl).with_fence(fence);
        self.hand_out(HeldLease::handed_over(lease, terms, Arc::clone(label), sent_at, handoff_ttl, self.session.clock.now()))
    }

    fn hand_out(&mut self, mut held: HeldLease) -> Option<HeldLease> {
        (held.generated, held.late) = (self.request.generated, self.unanswered);
        if held.end_reason(self.session.clock.now()).is_some() {
            return None;
        }
        self.dirty = false;
        Some(held)
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        // A supplied token may be another client's. Only a generated one is ours to release.
        if self.dirty && self.request.generated {
            let now = self.session.clock.now();
            // An entry that is made late may be served at its very end.
            let entry = if self.request.enqueue == Enqueue::No { Duration::ZERO } else { LONGEST_ENTRY };
            let until = now + self.request.ttl.max(entry);
            let lease = self.request.lease();
            self.session.watchdog.release_later(PendingRelease {
                lease,
                lingers_until: now,
                until,
                late: self.unanswered,
                once: false,
            });
        }
    }
}
