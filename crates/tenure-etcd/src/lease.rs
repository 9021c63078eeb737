//! Leases of etcd: each key has one, which ends with it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use tenure::Error;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};
use tonic::Code;

use crate::connection::Connection;
use crate::failure::{Failed, unexpected};
use crate::keys::span;
use crate::proto::{LEASE_KEEP_ALIVE, LEASE_REVOKE, LEASE_TIME_TO_LIVE, LeaseId, LeaseLeft, LeaseRevokeResponse};
use crate::seen::Id;

/// Leases of one stream of renewals. A follower asks the leader for one after another.
const AT_ONCE: usize = 8;
/// How long a clean-up may take that nobody waits for.
const CLEAN_UP: Duration = Duration::from_secs(2);
/// Owners that are kept in mind before those are looked for whose leases have ended.
const FEW: usize = 1_000;

/// Leases that a write without an answer may still use.
#[derive(Debug, Default)]
pub(crate) struct Unanswered(Mutex<HashMap<Id, Vec<(i64, Instant)>>>);

impl Unanswered {
    /// Keeps one in mind.
    pub(crate) fn note(&self, of: Id, id: i64, until: Instant) {
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
