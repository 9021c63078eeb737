//! Leases of etcd: each key has one, which ends with it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tenure::Error;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use crate::connection::Connection;
use crate::failure::{Failed, unexpected};
use crate::proto::{
    LEASE_GRANT, LEASE_KEEP_ALIVE, LEASE_REVOKE, LEASE_TIME_TO_LIVE, LeaseGrantRequest, LeaseGrantResponse, LeaseId,
    LeaseLeft, LeaseRevokeResponse,
};

/// How long a clean-up may take that nobody waits for.
const CLEAN_UP: Duration = Duration::from_secs(2);

/// A lease without a key. It is revoked when this is dropped: also if the call goes away that wanted it,
/// and before a late write could use it.
#[derive(Debug)]
pub(crate) struct FreshLease {
    connection: Arc<Connection>,
    pub(crate) id: i64,
    /// Ttl that the server has granted, in seconds.
    pub(crate) ttl: i64,
    /// It has a key, and is no longer ours to revoke.
    used: bool,
}

impl FreshLease {
    /// Asks for a lease of so many seconds. Its number is made here, so a drop before the answer can
    /// revoke it.
    pub(crate) async fn grant(connection: &Arc<Connection>, ttl: i64, end: Instant) -> Result<Self, Error> {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(|error| Error::unavailable(format!("the system gives no random numbers: {error}")))?;
        let id = (i64::from_be_bytes(bytes) & i64::MAX) | 1;
        let mut lease = Self { connection: Arc::clone(connection), id, ttl, used: false };
        let request = LeaseGrantRequest { ttl, id };
        let answer: LeaseGrantResponse = connection.call(LEASE_GRANT, request, end).await?;
        if answer.id != id || answer.ttl < 1 {
            return Err(unexpected("it is about another lease"));
        }
        lease.ttl = answer.ttl;
        Ok(lease)
    }

    pub(crate) fn keep(mut self) {
        self.used = true;
    }
}

impl Drop for FreshLease {
    fn drop(&mut self) {
        if !self.used {
            revoke_later(&self.connection, self.id);
        }
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

/// Renews leases to their granted ttl. The answers are the new ttls, in the order of the leases; 0 for
/// one that has ended.
pub(crate) async fn keep_alive(connection: &Connection, ids: &[i64], end: Instant) -> Result<Vec<i64>, Error> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let requests = ids.iter().map(|id| LeaseId { id: *id }).collect();
    let mut answers = connection.stream::<LeaseId, LeaseLeft>(LEASE_KEEP_ALIVE, requests, false, end).await?;
    let mut left = Vec::with_capacity(ids.len());
    let silent = |_| Error::unreachable("etcd did not renew in time").maybe_applied();
    while left.len() < ids.len() {
        match timeout_at(end, answers.next()).await.map_err(silent)? {
            Some(Ok(answer)) if answer.id == ids[left.len()] => left.push(answer.ttl),
            Some(Ok(_)) => return Err(unexpected("it renews another lease")),
            Some(Err(status)) => return Err(Failed::of(&status, &connection.to_string()).into()),
            None => return Err(Error::unreachable("etcd did not renew to the end").maybe_applied()),
        }
    }
    Ok(left)
}

/// What is left of a lease, at most. `None` if it has ended.
pub(crate) async fn left(connection: &Connection, id: i64, end: Instant) -> Result<Option<Duration>, Error> {
    let answer: LeaseLeft = connection.call(LEASE_TIME_TO_LIVE, LeaseId { id }, end).await?;
    let LeaseLeft { ttl, granted_ttl, .. } = answer;
    // Whole seconds, rounded down.
    Ok(u64::try_from(ttl).ok().map(|_| crate::keys::span((ttl + 1).min(granted_ttl.max(1)))))
}
