//! State of a store that its notices need as well.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::try_join_all;
use tenure::{Error, Name};
use tokio::time::Instant;

use crate::connection::Connection;
use crate::failure::unexpected;
use crate::keys::{Layout, seconds, span};
use crate::lease::{Unanswered, revoke_later};
use crate::proto::{Compare, Header, KeyValue, Op, PutRequest, RANGE, RangeRequest, RangeResponse, TXN, TxnRequest, TxnResponse};
use crate::queue::{Queue, Slot};
use crate::seen::{Id, Seen};
use crate::spare::{Spare, Spares};
use crate::waits::Waits;

/// Remembered keys. One that was forgotten costs a read.
const MOST_SEEN: usize = 20_000;

/// Reads of one transaction: etcd allows 128.
const READS: usize = 120;

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
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({:?})", self.connection)
    }
}
