//! A lease that is to have a key.

use std::sync::Arc;
use std::time::Duration;

use tenure::{Error, Owner, Share};
use tokio::time::Instant;

use crate::failure::unexpected;
use crate::keys::{Phase, Value, span};
use crate::lease::{keep_alive, revoke_later};
use crate::proto::{LEASE_GRANT, LeaseGrantRequest, LeaseGrantResponse};
use crate::seen::{Id, Seen};
use crate::shared::Shared;
use crate::spare::Spare;

/// Time by which a lease may outlive its ttl.
const SLACK: Duration = Duration::from_secs(5);

/// A lease that is to have a key.
///
/// If the call goes away before it has used it, it is revoked in the background. If a write with it had
/// no answer, it is kept in mind: the write may still run. The release of the owner revokes the lease.
/// After that the write fails, so nothing of an owner runs later than its release.
#[derive(Debug)]
pub(crate) struct FreshLease {
    shared: Arc<Shared>,
    of: Id,
    pub(crate) id: i64,
    /// Ttl that the server has granted, in seconds.
    pub(crate) ttl: i64,
    /// Term of the members when it was granted, or an earlier one.
    term: u64,
    /// It was granted for an earlier hold.
    was_kept: bool,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No write uses it.
    Unused,
    /// A write that uses it may run.
    Sent,
    /// It has a key.
    Kept,
}

impl FreshLease {
    /// Asks for a lease of so many seconds. Its number is made here, so a drop before the answer can
    /// revoke it.
    pub(crate) async fn grant(shared: &Arc<Shared>, of: Id, ttl: i64, end: Instant) -> Result<Self, Error> {
        if let Some(Spare { id, ttl, term }) = shared.spare_of(ttl) {
            let (shared, of) = (Arc::clone(shared), of.clone());
            let lease = Self { shared, of, id, ttl, term, was_kept: true, stage: Stage::Unused };
            let shared = &lease.shared;
            let kept = keep_alive(&shared.connection, &[id], end).await?;
            // A former leader knows a lease of an earlier term.
            if kept.left == [ttl] && term >= kept.term {
                return Ok(lease);
            }
        }
        Self::new(shared, of, ttl, end).await
    }

    /// As [`grant`](Self::grant), and never one that was kept.
    pub(crate) async fn new(shared: &Arc<Shared>, of: Id, ttl: i64, end: Instant) -> Result<Self, Error> {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes)
            .map_err(|error| Error::unavailable(format!("the system gives no random numbers: {error}")))?;
        let id = (i64::from_be_bytes(bytes) & i64::MAX) | 1;
        // Known before the request leaves: the lease is not in the state of any earlier leader.
        let mut lease =
            Self { shared: Arc::clone(shared), of, id, ttl, term: shared.term(), was_kept: false, stage: Stage::Unused };
        let request = LeaseGrantRequest { ttl, id };
        let answer: LeaseGrantResponse = shared.connection.call(LEASE_GRANT, request, end).await?;
        if answer.id != id || answer.ttl < 1 {
            return Err(unexpected("it is about another lease"));
        }
        if answer.ttl > ttl {
            shared.lengthened(answer.ttl);
        }
        lease.ttl = answer.ttl;
        // A member that was cut off may have named a term that nobody else has reached.
        lease.term = lease.term.min(answer.header.map_or(0, |header| header.raft_term));
        Ok(lease)
    }

    /// Whether the leader of now may not know that it was renewed, once a write with it was answered. A leader that was
    /// deposed without noticing renews as well.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.was_kept && self.term < self.shared.term()
    }

    /// The value of a key with this lease.
    pub(crate) fn value(&self, phase: Phase, share: Share, owner: &Owner) -> Value {
        Value { phase, share, ttl: self.ttl, term: self.term, owner: owner.clone(), granted: None }
    }

    /// A key that was written with this lease.
    pub(crate) fn seen(&self, key: Vec<u8>, modified: i64) -> Seen {
        Seen { key, lease: self.id, ttl: self.ttl, modified, own_term: Some(self.term) }
    }

    /// A write that uses it begins.
    pub(crate) fn sent(&mut self) {
        self.stage = Stage::Sent;
    }

    /// The write was answered, and was not done.
    pub(crate) fn unused(&mut self) {
        self.stage = Stage::Unused;
    }

    /// No write uses it, nor will one: the next hold may have it.
    pub(crate) fn spare(mut self) {
        debug_assert_eq!(self.stage, Stage::Unused);
        self.stage = Stage::Kept;
        self.shared.spare(Spare { id: self.id, ttl: self.ttl, term: self.term });
    }

    pub(crate) fn keep(mut self) {
        self.stage = Stage::Kept;
    }
}

impl Drop for FreshLease {
    fn drop(&mut self) {
        match self.stage {
            Stage::Unused => revoke_later(&self.shared.connection, self.id),
            Stage::Sent => self.shared.unanswered.note(self.of.clone(), self.id, Instant::now() + span(self.ttl) + SLACK),
            Stage::Kept => {}
        }
    }
}
