//! Leases that have no key any more, kept for the next hold.
//!
//! A lease is granted and revoked by writes of all members; one that is kept costs neither. Only a lease whose
//! every write was answered is kept, and only after this process has deleted its key as it had written it:
//! another client that ends the lease has changed the key before.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::keys::span;

/// Leases that are kept at most.
const MOST: usize = 8;
/// A longer lease is not kept: the server would keep it as long when this process is gone.
const LONGEST: Duration = Duration::from_secs(60);

/// A lease without a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spare {
    pub(crate) id: i64,
    pub(crate) ttl: i64,
    pub(crate) term: u64,
}

/// The spare leases of a store, and until when each is worth a renewal.
#[derive(Debug, Default)]
pub(crate) struct Spares(Mutex<Vec<(Spare, Instant)>>);

impl Spares {
    /// Keeps a lease. `false` if it has to be ended instead.
    pub(crate) fn put(&self, spare: Spare) -> bool {
        let (mut all, now) = (self.0.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
        all.retain(|(_, until)| *until > now);
        let fits = all.len() < MOST && span(spare.ttl) <= LONGEST;
        if fits {
            all.push((spare, now + span(spare.ttl) / 2));
        }
        fits
    }

    pub(crate) fn take(&self, ttl: i64) -> Option<Spare> {
        let (mut all, now) = (self.0.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
        all.retain(|(_, until)| *until > now);
        let at = all.iter().position(|(spare, _)| spare.ttl == ttl)?;
        Some(all.swap_remove(at).0)
    }
}
