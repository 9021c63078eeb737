//! Leases of etcd: each key has one, which ends with it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use tenure::{Error, Owner, Share};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};
use tonic::Code;

use crate::connection::Connection;
use crate::failure::{Failed, unexpected};
use crate::keys::{State, Value, span};
use crate::proto::{
    LEASE_GRANT, LEASE_KEEP_ALIVE, LEASE_REVOKE, LEASE_TIME_TO_LIVE, LeaseGrantRequest, LeaseGrantResponse, LeaseId, LeaseLeft,
    LeaseRevokeResponse,
};
use crate::shared::{Id, Seen, Shared};
use crate::spare::Spare;

/// Leases of one stream of renewals. A follower asks the leader for one after another.
const AT_ONCE: usize = 8;
/// How long a clean-up may take that nobody waits for.
const CLEAN_UP: Duration = Duration::from_secs(2);
/// Time by which a lease may outlive its ttl.
const SLACK: Duration = Duration::from_secs(5);
/// Owners that are kept in mind before those are looked for whose leases have ended.
const FEW: usize = 1_000;

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
    pub(crate) fn value(&self, state: State, share: Share, owner: &Owner) -> Value {
        Value { state, share, ttl: self.ttl, term: self.term, owner: owner.clone(), granted: None }
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

/// Leases that a write without an answer may still use.
#[derive(Debug, Default)]
pub(crate) struct Unanswered(Mutex<HashMap<Id, Vec<(i64, Instant)>>>);

impl Unanswered {
    fn note(&self, of: Id, id: i64, until: Instant) {
        let (mut all, now) = (self.all(), Instant::now());
        if all.len() >= FEW {
            all.retain(|_, leases| {
                leases.retain(|(_, until)| *until > now);
                !leases.is_empty()
            });
        }
        all.entry(of).or_default().push((id, until));
    }

    /// Whether there are any.
    pub(crate) fn has_any(&self) -> bool {
        let (all, now) = (self.all(), Instant::now());
        all.values().flatten().any(|(_, until)| *until > now)
    }

    fn of(&self, id: &Id) -> Vec<i64> {
        let now = Instant::now();
        let all = self.all();
        all.get(id).into_iter().flatten().filter(|(_, until)| *until > now).map(|(lease, _)| *lease).collect()
    }

    /// Makes sure that no write of an owner runs from now on.
    pub(crate) async fn end(&self, connection: &Connection, id: &Id, end: Instant) -> Result<(), Error> {
        for lease in self.of(id) {
            let revoked: Result<LeaseRevokeResponse, Failed> = connection.call(LEASE_REVOKE, LeaseId { id: lease }, end).await;
            match revoked {
                // It has ended.
                Err(failed) if failed.code == Code::NotFound => {}
                Err(failed) => return Err(failed.into()),
                Ok(_) => {}
            }
            if let Some(leases) = self.all().get_mut(id) {
                leases.retain(|(other, _)| *other != lease);
            }
        }
        self.all().retain(|other, leases| other != id || !leases.is_empty());
        Ok(())
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Id, Vec<(i64, Instant)>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a lease in the background. It has no key any more, so this only saves the server some memory.
pub(crate) fn revoke_later(connection: &Arc<Connection>, id: i64) {
    let connection = Arc::clone(connection);
    if id != 0
        && let Ok(runtime) = Handle::try_current()
    {
        runtime.spawn(async move {
            let end = Instant::now() + CLEAN_UP;
            // It ends by itself as well.
            let _: Result<LeaseRevokeResponse, Failed> = connection.call(LEASE_REVOKE, LeaseId { id }, end).await;
        });
    }
}

/// Answer to a renewal.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// The new ttls, in the order of the leases; 0 for one that has ended.
    pub(crate) left: Vec<i64>,
    /// Term of the member before it had them renewed.
    pub(crate) term: u64,
}

impl Kept {
    /// Whether the one lease has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.left == [0]
    }
}

/// Renews leases to their granted ttl.
///
/// It binds the leader that renews, and those after it. A leader of an earlier term knows nothing of it, and
/// may yet end a lease that was granted in its time.
pub(crate) async fn keep_alive(connection: &Connection, ids: &[i64], end: Instant) -> Result<Kept, Error> {
    let mut kept = Kept::default();
    keep_some(connection, ids, &mut kept, end).await.map(|()| kept)
}

/// Renews many leases by several streams. Returns the new ttl of each, 0 of one that has ended.
pub(crate) async fn keep_many(connection: &Connection, ids: &[i64], end: Instant) -> Vec<Result<i64, Error>> {
    let streams = ids.chunks(AT_ONCE).map(|ids| async move {
        let mut kept = Kept::default();
        let ended = keep_some(connection, ids, &mut kept, end).await;
        let mut left: Vec<_> = kept.left.into_iter().map(Ok).collect();
        // Those that were answered before it ended are renewed.
        if let Err(error) = ended {
            left.resize(ids.len(), Err(error));
        }
        left
    });
    join_all(streams).await.into_iter().flatten().collect()
}

async fn keep_some(connection: &Connection, ids: &[i64], kept: &mut Kept, end: Instant) -> Result<(), Error> {
    let requests = ids.iter().map(|id| LeaseId { id: *id }).collect();
    let mut answers = connection.stream::<LeaseId, LeaseLeft>(LEASE_KEEP_ALIVE, requests, false, end).await?;
    let silent = |_| Error::unreachable("etcd did not answer in time").maybe_applied();
    while kept.left.len() < ids.len() {
        match timeout_at(end, answers.next()).await.map_err(silent)? {
            Some(Ok(answer)) if answer.id == ids[kept.left.len()] => {
                connection.recognise(answer.header.as_ref())?;
                kept.left.push(answer.ttl);
                kept.term = kept.term.max(answer.header.map_or(0, |header| header.raft_term));
            }
            Some(Ok(_)) => return Err(unexpected("it renews another lease")),
            Some(Err(status)) => return Err(Failed::of(&status, &connection.to_string()).into()),
            None => return Err(Error::unreachable("etcd did not renew to the end").maybe_applied()),
        }
    }
    Ok(())
}

/// Returns the time that a lease has left, at most. `None` if it has ended.
pub(crate) async fn left(connection: &Connection, id: i64, end: Instant) -> Result<Option<Duration>, Error> {
    let answer = ask(connection, id, end).await?;
    // Whole seconds, rounded down.
    Ok(u64::try_from(answer.ttl).ok().map(|_| span((answer.ttl + 1).min(answer.granted_ttl.max(1)))))
}

/// Returns the seconds that a lease has left, at least. `None` if it has ended.
pub(crate) async fn left_at_least(connection: &Connection, id: i64, end: Instant) -> Result<Option<i64>, Error> {
    Ok(Some(ask(connection, id, end).await?.ttl).filter(|ttl| *ttl >= 0))
}

async fn ask(connection: &Connection, id: i64, end: Instant) -> Result<LeaseLeft, Error> {
    connection.call(LEASE_TIME_TO_LIVE, LeaseId { id }, end).await.map_err(Into::into)
}
