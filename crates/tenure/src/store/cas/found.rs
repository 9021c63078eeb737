//! The state of a name, as it was read and as it is to be written.

use std::time::Duration;

use super::super::record::{Answer, Change, Held, Record, Served};
use super::super::{Enqueue, ReleaseReply, RenewReply, Request};
use crate::{Error, Lease, Name, Owner};

/// Returns the number of the next grant.
pub(super) type Next<'a> = &'a mut dyn FnMut() -> u64;

/// The state of a name.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Found<V> {
    /// Holders and waiters.
    pub record: Record,
    /// The server's clock, since an epoch of its own.
    pub now: Duration,
    /// Added to each span that begins now, because the server may count it from an earlier point.
    pub pad: Duration,
    /// The largest number that a grant has had, as far as the server keeps it.
    pub counter: u64,
    /// The smallest number of the next grant. `None` if the write itself gives the number: grants have 0
    /// until they are read.
    pub floor: Option<u64>,
    /// Whether clients may queue. They cannot behind a holder of another library.
    pub queues: bool,
    /// Why nobody can take the name. Nobody holds it then.
    pub refusal: Option<Error>,
    /// The version of this state, see [`Cas::Version`](super::Cas::Version).
    pub version: V,
}

impl<V> Found<V> {
    /// A state of which the last grant had number `counter`.
    pub fn new(record: Record, now: Duration, counter: u64, version: V) -> Self {
        let floor = Some(counter.saturating_add(1));
        Self { record, now, pad: Duration::ZERO, counter, floor, queues: true, refusal: None, version }
    }

    /// The request, for as long as the server has to keep it.
    fn padded(&self, request: &Request) -> Request {
        let lasting = |span: Duration| span.saturating_add(self.pad);
        let enqueue = match request.enqueue {
            Enqueue::Join { entry_ttl, handoff_ttl } if self.queues => {
                Enqueue::Join { entry_ttl: lasting(entry_ttl), handoff_ttl: lasting(handoff_ttl) }
            }
            Enqueue::Heartbeat if self.queues => Enqueue::Heartbeat,
            _ => Enqueue::No,
        };
        request.clone().with_enqueue(enqueue).with_ttl(lasting(request.ttl))
    }

    pub(super) fn acquire(&mut self, request: &Request, wake: &str, next: Next<'_>) -> Result<Change<Answer>, Error> {
        self.refusal.clone().map_or(Ok(()), Err)?;
        let mut change = self.record.acquire(&self.padded(request), wake, self.now, next)?;
        if let Answer::Granted(grant) = &mut change.answer {
            // It may last longer at the server.
            grant.ttl = grant.ttl.min(request.ttl);
        }
        Ok(change)
    }

    pub(super) fn renew(&mut self, leases: &[&Lease]) -> Change<Vec<RenewReply>> {
        let renew = |lease: &&Lease| self.record.renew(&lease.owner, lease.ttl.saturating_add(self.pad), self.now);
        Change { answer: leases.iter().map(renew).collect(), served: Vec::new(), freed: false, taken: false }
    }

    pub(super) fn release(&mut self, lease: &Lease, linger: Duration, next: Next<'_>) -> Change<ReleaseReply> {
        let linger = if linger.is_zero() { linger } else { linger.saturating_add(self.pad) };
        self.record.release(&lease.owner, linger, self.now, next)
    }

    pub(super) fn held(&self, owner: &Owner) -> Option<&Held> {
        self.record.holders().find(|held| held.owner == *owner)
    }

    /// How long a holder still holds.
    pub(super) fn rest(&self, held: &Held) -> Duration {
        held.until.saturating_sub(self.now)
    }
}

/// A new state of a name.
#[derive(Debug)]
#[non_exhaustive]
pub struct Write<'a, V> {
    /// The name.
    pub name: &'a Name,
    /// As it was read, but with the new record.
    pub found: &'a Found<V>,
    /// The largest number that a grant has now.
    pub counter: u64,
    /// Somebody was granted. Where the write gives the number, it is needed for that.
    pub granted: bool,
    /// Waiters that hold now. They can be notified, once the record is written.
    pub served: &'a [Served],
}

/// Outcome of a write.
#[derive(Debug)]
#[non_exhaustive]
pub struct Wrote<V> {
    /// Whether all was written. If not, nothing was.
    pub all: bool,
    /// It was sent before, without an answer, and nobody knows whether it was written then.
    pub unheard: bool,
    /// How the one name is now, if the answer says so.
    pub found: Option<Found<V>>,
}

impl<V> Wrote<V> {
    /// All was written.
    pub fn all() -> Self {
        Self { all: true, unheard: false, found: None }
    }

    /// Another client was faster.
    pub fn nothing() -> Self {
        Self { all: false, unheard: false, found: None }
    }

    /// The same, with how the name is now.
    #[must_use]
    pub fn with_found(self, found: impl Into<Option<Found<V>>>) -> Self {
        Self { found: found.into(), ..self }
    }

    /// The same after a first one of which nobody knows what became.
    #[must_use]
    pub fn with_unheard(self, unheard: bool) -> Self {
        Self { unheard, ..self }
    }
}
