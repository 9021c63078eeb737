//! State of a store that its notices need as well, and the write that makes a hold.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::try_join_all;
use tenure::store::Grant;
use tenure::{Error, Name, Owner, Share};
use tokio::time::Instant;

use crate::connection::Connection;
use crate::failure::unexpected;
use crate::keys::{Layout, State, Value, seconds, span};
use crate::lease::{FreshLease, Unanswered, left, revoke_later};
use crate::proto::{Compare, Header, KeyValue, Op, PutRequest, RANGE, RangeRequest, RangeResponse, TXN, TxnRequest, TxnResponse};
use crate::queue::{Queue, Slot, fence};
use crate::spare::{Spare, Spares};
use crate::watch::Waits;

/// Remembered keys. One that was forgotten costs a read.
const MOST_SEEN: usize = 20_000;

/// Reads of one transaction: etcd allows 128.
const READS: usize = 120;

/// A lease at this store.
pub(crate) type Id = (Name, Owner);

/// State that notices need as well, which outlive a call.
pub(crate) struct Shared {
    pub(crate) connection: Arc<Connection>,
    pub(crate) layout: Layout,
    seen_keys: Mutex<HashMap<Id, Seen>>,
    pub(crate) waits: Waits,
    pub(crate) unanswered: Unanswered,
    spares: Spares,
    /// The latest term of the members that an answer has named.
    term: AtomicU64,
    /// The shortest ttl that the server grants, in seconds, once a shorter one was asked for.
    shortest: AtomicI64,
}

/// A key as it was last seen.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) key: Vec<u8>,
    pub(crate) lease: i64,
    /// Granted ttl of the lease, in seconds.
    pub(crate) ttl: i64,
    pub(crate) modified: i64,
    /// The term of a lease that this process was granted, and with which it has written the key.
    pub(crate) own_term: Option<u64>,
}

impl From<&Slot> for Seen {
    fn from(slot: &Slot) -> Self {
        Self { key: slot.key.clone(), lease: slot.own_lease(), ttl: slot.value.ttl, modified: slot.modified, own_term: None }
    }
}

impl Shared {
    pub(crate) fn new(connection: Arc<Connection>, layout: Layout) -> Self {
        Self {
            connection,
            layout,
            seen_keys: Mutex::default(),
            waits: Waits::default(),
            unanswered: Unanswered::default(),
            spares: Spares::default(),
            term: AtomicU64::new(0),
            shortest: AtomicI64::new(0),
        }
    }

    /// Notes the term of an answer.
    pub(crate) fn saw(&self, header: Option<&Header>) {
        self.term.fetch_max(header.map_or(0, |header| header.raft_term), Ordering::Relaxed);
    }

    pub(crate) fn term(&self) -> u64 {
        self.term.load(Ordering::Relaxed)
    }

    /// Keeps a lease that has no key, or ends it.
    pub(crate) fn spare(&self, spare: Spare) {
        if !self.spares.put(spare) {
            revoke_later(&self.connection, spare.id);
        }
    }

    pub(crate) fn spare_of(&self, ttl: i64) -> Option<Spare> {
        self.spares.take(ttl.max(self.shortest.load(Ordering::Relaxed)))
    }

    /// Notes that the server has made a ttl longer.
    pub(crate) fn lengthened(&self, ttl: i64) {
        self.shortest.store(ttl, Ordering::Relaxed);
    }

    /// How long a lease may outlive its ttl: the server makes it longer, and ends it up to half a second late.
    pub(crate) fn late_end(&self) -> Duration {
        span(self.shortest.load(Ordering::Relaxed).max(1)) + Duration::from_millis(500)
    }

    /// A ttl in seconds, as the server would grant it.
    pub(crate) fn seconds(&self, ttl: Duration) -> i64 {
        seconds(ttl).max(self.shortest.load(Ordering::Relaxed))
    }

    pub(crate) async fn queue(&self, name: &Name, end: Instant) -> Result<Queue, Error> {
        let range = self.range(RangeRequest::in_order(self.layout.range(name)), end).await?;
        Ok(Queue::read(range, &self.layout, name))
    }

    /// Reads a range. If the values of other programs make it too large, only those of locks are read.
    pub(crate) async fn range(&self, request: RangeRequest, end: Instant) -> Result<RangeResponse, Error> {
        let range: RangeResponse = match self.connection.call(RANGE, request.clone(), end).await {
            Err(failed) if failed.is_too_large() => self.locks(request, end).await?,
            answer => answer?,
        };
        self.saw(range.header.as_ref());
        Ok(range)
    }

    /// Reads the keys of a range, and the values of locks.
    pub(crate) async fn locks(&self, request: RangeRequest, end: Instant) -> Result<RangeResponse, Error> {
        let keys = RangeRequest { keys_only: true, ..request.clone() };
        let mut range: RangeResponse = self.connection.call_large(RANGE, keys, end).await?;
        self.saw(range.header.as_ref());
        let revision = range.header.map_or(0, |header| header.revision);
        if range.kvs.len() > READS && range.kvs.iter().all(|kv| self.layout.name_of(kv).is_some()) {
            return Ok(self.connection.call_large(RANGE, RangeRequest { revision, ..request }, end).await?);
        }
        let mut locks: Vec<&mut KeyValue> = range.kvs.iter_mut().filter(|kv| self.layout.name_of(kv).is_some()).collect();
        for locks in locks.chunks_mut(READS) {
            // As they were when the keys were read.
            let read = |kv: &&mut KeyValue| Op::Range(RangeRequest { revision, ..RangeRequest::of_one(&kv.key) }).into();
            let success = locks.iter().map(read).collect();
            let reads = TxnRequest { success, ..TxnRequest::default() };
            let answer: TxnResponse = self.connection.call_large(TXN, reads, end).await?;
            let mut found = answer.ranges();
            for kv in locks {
                let value = found.next().and_then(|range| range.kvs.into_iter().next());
                **kv = value.ok_or_else(|| unexpected("a key that was there is not"))?;
            }
        }
        Ok(range)
    }

    /// Writes keys that are not there yet. Returns the revision if it has, and what the names have now.
    pub(crate) async fn join(
        &self,
        puts: Vec<PutRequest>,
        names: &[&Name],
        end: Instant,
    ) -> Result<(Option<i64>, Vec<Queue>), Error> {
        let ranges = || names.iter().map(|name| Op::Range(RangeRequest::in_order(self.layout.range(name))).into());
        let transaction = TxnRequest {
            compare: puts.iter().map(|put| Compare::is_absent(&put.key)).collect(),
            success: puts.iter().cloned().map(|put| Op::Put(put).into()).chain(ranges()).collect(),
            failure: ranges().collect(),
        };
        let answer: TxnResponse = match self.connection.call(TXN, transaction, end).await {
            Err(failed) if failed.is_too_large() => {
                let queues = try_join_all(names.iter().map(|name| self.queue(name, end))).await.map_err(Error::maybe_applied)?;
                // Our leases are in the keys that we have written.
                let written = |slot: &&Slot| puts.iter().any(|put| put.lease == slot.lease && put.key == slot.key);
                let revision = queues.iter().flat_map(|queue| &queue.slots).find(written).map(|slot| slot.modified);
                return Ok((revision, queues));
            }
            answer => answer?,
        };
        self.saw(answer.header.as_ref());
        let revision = Some(answer.revision()).filter(|_| answer.succeeded);
        Ok((revision, self.queues(answer, names)?))
    }

    /// The queues of these names that a transaction has read.
    fn queues(&self, answer: TxnResponse, names: &[&Name]) -> Result<Vec<Queue>, Error> {
        // The ranges of a transaction have no header of their own.
        let header = answer.header.unwrap_or_default();
        let queue = |(name, range): (&&Name, RangeResponse)| {
            Queue::new(&header, range.kvs.into_iter().filter(|kv| self.layout.is_of(name, kv)))
        };
        let queues: Vec<_> = names.iter().zip(answer.ranges()).map(queue).collect();
        if queues.len() < names.len() { Err(unexpected("it has too few ranges")) } else { Ok(queues) }
    }

    /// Runs a transaction. `Err` has the answers to the ranges of one that was not to be done.
    pub(crate) async fn transact(
        &self,
        compare: Vec<Compare>,
        success: Vec<Op>,
        otherwise: &[&Name],
        end: Instant,
    ) -> Result<Result<i64, Vec<Queue>>, Error> {
        let failure = otherwise.iter().map(|name| Op::Range(RangeRequest::in_order(self.layout.range(name))).into()).collect();
        let success = success.into_iter().map(Into::into).collect();
        let answer: TxnResponse = match self.connection.call(TXN, TxnRequest { compare, success, failure }, end).await {
            // Only the ranges of one that was not done are as large.
            Err(failed) if failed.is_too_large() => {
                return Ok(Err(try_join_all(otherwise.iter().map(|name| self.queue(name, end))).await?));
            }
            answer => answer?,
        };
        self.saw(answer.header.as_ref());
        if answer.succeeded {
            return Ok(Ok(answer.revision()));
        }
        self.queues(answer, otherwise).map(Err)
    }

    pub(crate) fn seen(&self, id: &Id) -> Option<Seen> {
        self.seen_keys().get(id).cloned()
    }

    pub(crate) fn remember(&self, id: Id, seen: Seen) {
        let mut seen_keys = self.seen_keys();
        if seen_keys.len() >= MOST_SEEN {
            seen_keys.clear();
        }
        seen_keys.insert(id, seen);
    }

    pub(crate) fn forget(&self, id: &Id) {
        self.seen_keys().remove(id);
        self.waits.end(id);
    }

    fn seen_keys(&self) -> MutexGuard<'_, HashMap<Id, Seen>> {
        self.seen_keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a hold to a key that is as it was seen, with a lease of its own for `ttl` at least.
    ///
    /// `granted` is the revision of the fence that the holder has; `None` has it begin with this write. `Err` has the
    /// queue if the key has changed.
    pub(crate) async fn confirm(
        self: &Arc<Self>,
        name: &Name,
        slot: &Slot,
        (owner, share): (&Owner, Share),
        (ttl, granted): (Duration, Option<i64>),
        end: Instant,
    ) -> Result<Result<Grant, Queue>, Error> {
        let is_same = slot.owner() == owner && slot.value.state == State::Holds;
        let (mut ttl, mut slot) = (self.seconds(ttl), slot.clone());
        // A lease does not get shorter than what is left of it.
        if is_same && slot.value.ttl > ttl {
            ttl = left(&self.connection, slot.lease, end).await?.map_or(ttl, |left| seconds(left).max(ttl));
        }
        let mut lease = FreshLease::grant(self, (name.clone(), owner.clone()), ttl, end).await?;
        let mut is_written = false;
        loop {
            let value = Value { granted, ..lease.value(State::Holds, share, owner) };
            let put = PutRequest { key: slot.key.clone(), value: value.write(), lease: lease.id };
            let compare = vec![Compare::is_unchanged(&slot.key, slot.modified)];
            lease.sent();
            let answer = self.transact(compare, vec![Op::Put(put)], &[name], end).await;
            let revision = match answer.map_err(|error| if is_written { error.maybe_applied() } else { error })? {
                Ok(revision) => revision,
                Err(queues) => {
                    lease.unused();
                    return queues.into_iter().next().map(Err).ok_or_else(|| unexpected("it has no range"));
                }
            };
            // The key has left it.
            revoke_later(&self.connection, slot.own_lease());
            if slot.owner() != owner {
                self.forget(&(name.clone(), slot.owner().clone()));
            }
            if !lease.is_doubtful() {
                let seen = lease.seen(slot.key.clone(), revision);
                let grant = Grant::new(fence(revision), span(lease.ttl));
                lease.keep();
                self.waits.end(&(name.clone(), owner.clone()));
                self.remember((name.clone(), owner.clone()), seen);
                return Ok(Ok(grant));
            }
            // The key has its new value, with a lease that does not count.
            is_written = true;
            let fresh = FreshLease::new(self, (name.clone(), owner.clone()), ttl, end).await.map_err(Error::maybe_applied)?;
            slot = Slot { key: slot.key, value, lease: lease.id, modified: revision };
            std::mem::replace(&mut lease, fresh).keep();
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({:?})", self.connection)
    }
}
