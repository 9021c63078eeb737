//! One owner token on its way to the store.

use std::sync::Arc;
use std::time::Duration;

use super::queue::AcquireKey;
use crate::lease::{HeldLease, PendingRelease, Session, Terms};
use crate::store::{AcquireReply, Enqueue, Grant, Request};
use crate::{BootTime, Error, Fence, Name, Owner};

/// After this long nothing is left of a place, though it was served at its very end.
const LONGEST_ENTRY: Duration = Duration::from_secs(4);

/// One owner token on its way to the store. What it may have left there is cleared up when it is dropped unfinished.
#[derive(Debug)]
pub(crate) struct Attempt {
    session: Arc<Session>,
    pub(crate) request: Request,
    /// The token may be in place at the store, or have a place in its queue, or may still get there.
    dirty: bool,
    /// A try had no answer. Where the store has late commands, it may still run after all that is sent later.
    unanswered: bool,
}

impl Attempt {
    pub(crate) fn new(session: &Arc<Session>, request: Request) -> Self {
        Self { session: Arc::clone(session), request, dirty: false, unanswered: false }
    }

    /// A try that leaves no place.
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

    /// Sends all at once. None is granted unless all are.
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

    /// From here on the token may be anywhere, also where nobody waits for the answer any more. What was known before.
    fn sending(&mut self) -> (bool, bool) {
        (std::mem::replace(&mut self.dirty, true), std::mem::replace(&mut self.unanswered, true))
    }

    /// The answer says whether the token is there.
    fn answered(&mut self, (was_dirty, was_unanswered): (bool, bool), there: Result<bool, &Error>) {
        self.unanswered = was_unanswered || matches!(there, Err(error) if error.may_have_been_applied());
        self.dirty = match there {
            // That it is not is said of now: an unheard try may still come.
            Ok(there) => there || (self.unanswered && self.session.store.features().late_commands),
            Err(error) => was_dirty || error.may_have_been_applied(),
        };
    }

    /// The lease of a grant; `None` where it came too late to be believed.
    pub(crate) fn granted(&mut self, terms: Terms, label: &Arc<str>, sent_at: BootTime, grant: &Grant) -> Option<HeldLease> {
        let lease = self.request.lease().with_ttl(terms.ttl.min(grant.ttl)).with_fence(grant.fence);
        self.into_held(HeldLease::new(lease, terms, Arc::clone(label), sent_at, grant.ttl))
    }

    /// The lease of a name that was handed to this token for `claim`, after the store had executed what was sent at `heard`.
    pub(crate) fn handed_over(
        &mut self,
        terms: Terms,
        label: &Arc<str>,
        sent_at: BootTime,
        fence: Fence,
        handoff_ttl: Duration,
    ) -> Option<HeldLease> {
        let lease = self.request.lease().with_ttl(terms.ttl).with_fence(fence);
        self.into_held(HeldLease::handed_over(lease, terms, Arc::clone(label), sent_at, handoff_ttl, self.session.clock.now()))
    }

    fn into_held(&mut self, mut held: HeldLease) -> Option<HeldLease> {
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
        // A given value may be another's claim: only what carries our own random bits is ours to clear up.
        if self.dirty && self.request.generated {
            let now = self.session.clock.now();
            // A place that is made late may be served at its very end.
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
