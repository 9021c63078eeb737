//! The store: how keys are made, confirmed and deleted.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{join_all, try_join, try_join_all};
use futures_util::stream::BoxStream;
use tenure::store::{AcquireReply, Busy, Enqueue, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{Entry, Error, Holder, Lease, Name, Owner, Share};
use tokio::time::Instant;

use crate::connection::{Connection, FIRST_CONTACT};
use crate::failure::unexpected;
use crate::keys::{Layout, State, Value, seconds, span};
use crate::lease::{FreshLease, Unanswered, keep_alive, left, revoke_later};
use crate::proto::{
    Compare, DeleteRangeRequest, KeyValue, Op, PutRequest, RANGE, RangeRequest, RangeResponse, TXN, TxnRequest, TxnResponse,
};
use crate::queue::{Queue, Slot, fence};
use crate::watch::{Before, Waits};

/// Ttl of a queue entry's lease, at most. One heartbeat may be lost in that time.
const ENTRY: Duration = Duration::from_secs(3);
/// Names that one transaction takes, at most: etcd allows 128 comparisons.
const AT_ONCE: usize = 60;
/// Keys that a list reads at a time.
const PAGE: i64 = 2_000;
/// Remembered keys. One that was forgotten costs a read.
const MOST_SPOTS: usize = 20_000;

/// Locks in etcd. [`Options`](crate::Options) opens it.
pub struct EtcdStore {
    pub(crate) shared: Arc<Shared>,
    timeout: Option<Duration>,
    poll_interval: Duration,
}

/// A lease at this store.
pub(crate) type Id = (Name, Owner);

/// State that notices need as well, which outlive a call.
pub(crate) struct Shared {
    pub(crate) connection: Arc<Connection>,
    pub(crate) layout: Layout,
    spots: Mutex<HashMap<Id, Spot>>,
    pub(crate) waits: Waits,
    pub(crate) unanswered: Unanswered,
}

/// A key as it was last seen.
#[derive(Clone, Debug)]
pub(crate) struct Spot {
    pub(crate) key: Vec<u8>,
    pub(crate) lease: i64,
    pub(crate) modified: i64,
}

impl From<&Slot> for Spot {
    fn from(slot: &Slot) -> Self {
        Self { key: slot.key.clone(), lease: slot.lease, modified: slot.modified }
    }
}

/// How a request is written.
enum Plan {
    /// As a new key, if no other was made since a revision.
    New { after: i64 },
    /// At the key that it has.
    Own(Slot),
}

impl Shared {
    pub(crate) async fn queue(&self, name: &Name, end: Instant) -> Result<Queue, Error> {
        let request = RangeRequest::in_order(self.layout.range(name));
        let range = self.connection.call(RANGE, request, end).await?;
        Ok(Queue::read(range, &self.layout, name))
    }

    /// Runs a transaction. `Err` has the answers to the ranges of one that was not to be done.
    async fn transact(
        &self,
        compare: Vec<Compare>,
        success: Vec<Op>,
        otherwise: &[&Name],
        end: Instant,
    ) -> Result<Result<i64, Vec<Queue>>, Error> {
        let failure = otherwise.iter().map(|name| Op::Range(RangeRequest::in_order(self.layout.range(name))).into()).collect();
        let success = success.into_iter().map(Into::into).collect();
        let answer: TxnResponse = self.connection.call(TXN, TxnRequest { compare, success, failure }, end).await?;
        if answer.succeeded {
            return Ok(Ok(answer.revision()));
        }
        let revision = answer.revision();
        // The ranges of a transaction have no header of their own.
        let queue = |(name, range): (&&Name, RangeResponse)| {
            let kvs = range.kvs.into_iter().filter(|kv| self.layout.is_of(name, &kv.key));
            Queue::new(revision, kvs)
        };
        let queues: Vec<_> = otherwise.iter().zip(answer.ranges()).map(queue).collect();
        if queues.len() < otherwise.len() { Err(unexpected("it has too few ranges")) } else { Ok(Err(queues)) }
    }

    pub(crate) fn spot(&self, id: &Id) -> Option<Spot> {
        self.spots().get(id).cloned()
    }

    pub(crate) fn remember(&self, id: Id, spot: Spot) {
        let mut spots = self.spots();
        if spots.len() >= MOST_SPOTS {
            spots.clear();
        }
        spots.insert(id, spot);
    }

    pub(crate) fn forget(&self, id: &Id) {
        self.spots().remove(id);
        self.waits.end(id);
    }

    fn spots(&self) -> MutexGuard<'_, HashMap<Id, Spot>> {
        self.spots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a hold to a key that is as it was seen, with a lease of its own for `ttl` at least.
    ///
    /// `Err` has the queue if the key has changed.
    pub(crate) async fn confirm(
        self: &Arc<Self>,
        name: &Name,
        slot: &Slot,
        (owner, share): (&Owner, Share),
        ttl: Duration,
        end: Instant,
    ) -> Result<Result<Grant, Queue>, Error> {
        let is_same = slot.owner() == owner && slot.value.state == State::Holds;
        // A lease does not get shorter.
        let ttl = seconds(ttl).max(if is_same { slot.value.ttl } else { 0 });
        let mut lease = FreshLease::grant(self, (name.clone(), owner.clone()), ttl, end).await?;
        let value = Value { state: State::Holds, share, ttl: lease.ttl, owner: owner.clone() };
        let put = PutRequest { key: slot.key.clone(), value: value.write(), lease: lease.id };
        let compare = vec![Compare::is_unchanged(&slot.key, slot.modified)];
        lease.sent();
        match self.transact(compare, vec![Op::Put(put)], &[name], end).await? {
            Ok(revision) => {
                let spot = Spot { key: slot.key.clone(), lease: lease.id, modified: revision };
                let grant = Grant::new(fence(revision), span(lease.ttl));
                lease.keep();
                // The key has left it.
                revoke_later(&self.connection, slot.lease);
                if slot.owner() != owner {
                    self.forget(&(name.clone(), slot.owner().clone()));
                }
                self.waits.end(&(name.clone(), owner.clone()));
                self.remember((name.clone(), owner.clone()), spot);
                Ok(Ok(grant))
            }
            Err(queues) => {
                lease.unused();
                queues.into_iter().next().map(Err).ok_or_else(|| unexpected("it has no range"))
            }
        }
    }
}

impl EtcdStore {
    pub(crate) async fn open(
        connection: Arc<Connection>,
        layout: Layout,
        timeout: Option<Duration>,
        poll_interval: Duration,
    ) -> Result<Self, Error> {
        let shared =
            Shared { connection, layout, spots: Mutex::default(), waits: Waits::default(), unanswered: Unanswered::default() };
        // Whether a member answers, and takes the login. The range has no key.
        let probe = RangeRequest { limit: 1, ..RangeRequest::of_one(shared.layout.key_of_nobody().as_bytes()) };
        let answer: Result<RangeResponse, Error> =
            shared.connection.call(RANGE, probe, Instant::now() + FIRST_CONTACT).await.map_err(Into::into);
        match answer {
            // Nothing was asked to be changed.
            Err(error) if error.may_have_been_applied() => return Err(Error::new(error.kind(), error.to_string())),
            answer => answer?,
        };
        Ok(Self { shared: Arc::new(shared), timeout, poll_interval })
    }

    pub(crate) fn end(&self, ttl: Duration) -> Instant {
        Instant::now() + self.features().limit(ttl)
    }

    /// Asks for all or nothing, without a queue entry. `Err` has the queues of a request that is busy.
    async fn take(&self, requests: &[&Request], end: Instant) -> Result<Result<Vec<Grant>, Vec<Queue>>, Error> {
        let (shared, layout) = (&self.shared, &self.shared.layout);
        let id = |request: &Request| (request.name.clone(), request.owner.clone());
        let fresh = |request: &&Request| FreshLease::grant(shared, id(request), seconds(request.ttl), end);
        let mut leases = try_join_all(requests.iter().map(fresh)).await?;
        let names: Vec<&Name> = requests.iter().map(|request| &request.name).collect();
        let mut plans: Vec<Plan> = requests.iter().map(|_| Plan::New { after: 0 }).collect();
        loop {
            let (mut compare, mut puts, mut keys) = (Vec::new(), Vec::new(), Vec::new());
            for ((request, plan), lease) in requests.iter().zip(&plans).zip(&leases) {
                let key = match plan {
                    Plan::New { after } => {
                        let key = layout.key(&request.name, &request.owner);
                        compare.push(Compare::is_absent(&key));
                        compare.push(Compare::nothing_after(layout.range(&request.name), *after));
                        key
                    }
                    Plan::Own(slot) => {
                        compare.push(Compare::is_unchanged(&slot.key, slot.modified));
                        slot.key.clone()
                    }
                };
                let (share, owner) = (request.share, request.owner.clone());
                let value = Value { state: State::Holds, share, ttl: lease.ttl, owner };
                puts.push(Op::Put(PutRequest { key: key.clone(), value: value.write(), lease: lease.id }));
                keys.push(key);
            }
            leases.iter_mut().for_each(FreshLease::sent);
            let queues = match shared.transact(compare, puts, &names, end).await? {
                Ok(revision) => {
                    let revisions = self.counted(requests, &leases, &keys, revision, end).await.map_err(Error::maybe_applied)?;
                    return Ok(Ok(self.taken(requests, plans, leases, keys, &revisions)));
                }
                Err(queues) => queues,
            };
            leases.iter_mut().for_each(FreshLease::unused);
            for (request, queue) in requests.iter().zip(&queues) {
                queue.check(request)?;
            }
            for (at, (request, queue)) in requests.iter().zip(&queues).enumerate() {
                let own = queue.held_by(&request.owner).filter(|_| request.generated);
                plans[at] = match own {
                    Some(slot) => Plan::Own(slot.clone()),
                    None if queue.has_room_for(request.share) && queue.slots.iter().all(|slot| slot.key != keys[at]) => {
                        Plan::New { after: queue.revision }
                    }
                    None => return Ok(Err(queues)),
                };
                // A lease does not get shorter.
                if let Some(slot) = own
                    && slot.value.ttl > leases[at].ttl
                {
                    leases[at] = FreshLease::grant(shared, id(request), slot.value.ttl, end).await?;
                }
            }
            if Instant::now() >= end {
                return Err(Error::unavailable("the name changes too often to be taken in time"));
            }
        }
    }

    /// Gives each of several grants a revision of its own, by another write.
    async fn counted(
        &self,
        requests: &[&Request],
        leases: &[FreshLease],
        keys: &[Vec<u8>],
        revision: i64,
        end: Instant,
    ) -> Result<Vec<i64>, Error> {
        let each = requests.iter().zip(leases).zip(keys).enumerate().map(async |(at, ((request, lease), key))| {
            if at == 0 {
                return Ok(revision);
            }
            let value = Value { state: State::Holds, share: request.share, ttl: lease.ttl, owner: request.owner.clone() };
            let put = PutRequest { key: key.clone(), value: value.write(), lease: lease.id };
            let compare = vec![Compare::is_unchanged(key, revision)];
            let lost = |_| Error::unavailable("a name was taken away as soon as it was had");
            self.shared.transact(compare, vec![Op::Put(put)], &[], end).await?.map_err(lost)
        });
        let mut revisions = Vec::with_capacity(requests.len());
        for one in each {
            revisions.push(one);
        }
        try_join_all(revisions).await
    }

    fn taken(
        &self,
        requests: &[&Request],
        plans: Vec<Plan>,
        leases: Vec<FreshLease>,
        keys: Vec<Vec<u8>>,
        revisions: &[i64],
    ) -> Vec<Grant> {
        let each = requests.iter().zip(plans).zip(leases).zip(keys).zip(revisions);
        each.map(|((((request, plan), lease), key), &revision)| {
            if let Plan::Own(slot) = plan {
                revoke_later(&self.shared.connection, slot.lease);
            }
            let grant = Grant::new(fence(revision), span(lease.ttl));
            let spot = Spot { key, lease: lease.id, modified: revision };
            lease.keep();
            self.shared.remember((request.name.clone(), request.owner.clone()), spot);
            grant
        })
        .collect()
    }

    /// Joins the queue, if the owner is not in it.
    async fn join(
        &self,
        request: &Request,
        (entry_ttl, handoff_ttl): (Duration, Duration),
        end: Instant,
    ) -> Result<AcquireReply, Error> {
        let Shared { connection, layout, .. } = &*self.shared;
        let (name, owner) = (&request.name, &request.owner);
        let ttl = seconds(entry_ttl.min(handoff_ttl.max(ENTRY)));
        let mut lease = FreshLease::grant(&self.shared, (name.clone(), owner.clone()), ttl, end).await?;
        let key = layout.key(name, owner);
        let value = Value { state: State::Joined, share: request.share, ttl: lease.ttl, owner: owner.clone() };
        let put = PutRequest { key: key.clone(), value: value.write(), lease: lease.id };
        let range = || Op::Range(RangeRequest::in_order(layout.range(name)));
        let transaction = TxnRequest {
            compare: vec![Compare::is_absent(&key)],
            success: vec![Op::Put(put).into(), range().into()],
            failure: vec![range().into()],
        };
        lease.sent();
        let answer: TxnResponse = connection.call(TXN, transaction, end).await?;
        if !answer.succeeded {
            lease.unused();
        }
        let (joined, revision) = (answer.succeeded, answer.revision());
        let range = answer.ranges().next().ok_or_else(|| unexpected("it has no range"))?;
        let queue = Queue::new(revision, range.kvs.into_iter().filter(|kv| layout.is_of(name, &kv.key)));
        if !joined {
            queue.check(request)?;
            return self.wait(request, queue, handoff_ttl, end).await;
        }
        if let Err(error) = queue.check(request) {
            let compare = vec![Compare::is_unchanged(&key, revision)];
            let delete = vec![Op::Delete(DeleteRangeRequest { key })];
            // Whether it went by this or by another call: it is gone, and its lease goes with this one.
            let _gone = self.shared.transact(compare, delete, &[], end).await.map_err(Error::maybe_applied)?;
            lease.unused();
            return Err(error);
        }
        self.shared.remember((name.clone(), owner.clone()), Spot { key, lease: lease.id, modified: revision });
        lease.keep();
        if queue.held_by(owner).is_some() {
            return self.settle(request, queue, end).await.map_err(Error::maybe_applied);
        }
        Ok(self.waits(request, &queue, handoff_ttl, end).await)
    }

    /// Looks after an entry, or takes what it was served.
    async fn heartbeat(&self, request: &Request, end: Instant) -> Result<AcquireReply, Error> {
        let id = (request.name.clone(), request.owner.clone());
        let handoff_ttl = self.shared.waits.handoff_ttl(&id);
        let Some(spot) = self.shared.spot(&id) else {
            let queue = self.shared.queue(&request.name, end).await?;
            return self.wait(request, queue, handoff_ttl, end).await;
        };
        let ids = [spot.lease];
        let alive = keep_alive(&self.shared.connection, &ids, end);
        let (alive, queue) = try_join(alive, self.shared.queue(&request.name, end)).await?;
        match queue.find(&request.owner) {
            Some(slot) if slot.lease == spot.lease && alive == [0] => Ok(self.lapsed(request, &queue, end).await),
            Some(slot) if slot.lease == spot.lease && queue.held_by(&request.owner).is_none() => {
                Ok(self.waits(request, &queue, handoff_ttl, end).await)
            }
            _ => self.wait(request, queue, handoff_ttl, end).await,
        }
    }

    /// Takes what the owner was served, or keeps its entry alive.
    async fn wait(&self, request: &Request, queue: Queue, handoff_ttl: Duration, end: Instant) -> Result<AcquireReply, Error> {
        queue.check(request)?;
        let Some(slot) = queue.find(&request.owner).filter(|_| request.generated).cloned() else {
            return Ok(self.lapsed(request, &queue, end).await);
        };
        if queue.held_by(&request.owner).is_some() {
            return self.settle(request, queue, end).await;
        }
        if keep_alive(&self.shared.connection, &[slot.lease], end).await? == [0] {
            return Ok(self.lapsed(request, &queue, end).await);
        }
        self.shared.remember((request.name.clone(), request.owner.clone()), Spot::from(&slot));
        Ok(self.waits(request, &queue, handoff_ttl, end).await)
    }

    /// Confirms a hold that the owner has, or takes it over.
    async fn settle(&self, request: &Request, mut queue: Queue, end: Instant) -> Result<AcquireReply, Error> {
        loop {
            let own = queue.held_by(&request.owner).filter(|_| request.generated);
            let taken_over = || {
                let from = queue.held_by(request.from.as_ref()?)?;
                let is_new = queue.find(&request.owner).or_else(|| queue.find(&request.owner.lingering())).is_none();
                (is_new && from.value.share.capacity() == request.share.capacity()).then_some(from)
            };
            let (slot, share) = match own {
                Some(own) => (own.clone(), request.share),
                None => match taken_over() {
                    Some(from) => (from.clone(), from.value.share),
                    None => return Ok(self.lapsed(request, &queue, end).await),
                },
            };
            match self.shared.confirm(&request.name, &slot, (&request.owner, share), request.ttl, end).await? {
                Ok(grant) => return Ok(AcquireReply::Granted(grant)),
                Err(changed) => queue = changed,
            }
        }
    }

    /// Busy, with the entry in the queue. Its notices begin here.
    async fn waits(&self, request: &Request, queue: &Queue, handoff_ttl: Duration, end: Instant) -> AcquireReply {
        let id = (request.name.clone(), request.owner.clone());
        let Some(before) = Before::new(queue, &request.owner, handoff_ttl) else {
            return self.lapsed(request, queue, end).await;
        };
        self.shared.waits.note(&id, before);
        let busy = self.busy(queue, &request.owner, request.enqueue == Enqueue::Heartbeat, end).await;
        AcquireReply::Busy(busy.with_grant_seq(u64::try_from(queue.revision).ok()))
    }

    /// Busy, without an entry.
    async fn lapsed(&self, request: &Request, queue: &Queue, end: Instant) -> AcquireReply {
        let id = (request.name.clone(), request.owner.clone());
        if request.generated {
            self.shared.forget(&id);
        }
        AcquireReply::Busy(self.busy(queue, &request.owner, false, end).await.with_position(None))
    }

    async fn busy(&self, queue: &Queue, owner: &Owner, briefly: bool, end: Instant) -> Busy {
        let mut busy = Busy::new(self.poll_interval);
        busy.position = queue.position(owner).and_then(|position| queue.ahead(position));
        let holder = queue.holders().iter().find(|slot| slot.owner() != owner || !briefly);
        busy.holder = match holder {
            // A heartbeat is sent often: it asks the server no more than it has to.
            Some(slot) if briefly => Some(slot.holder()),
            Some(slot) => self.holder(slot, end).await.ok().flatten(),
            None => None,
        };
        busy
    }

    /// A holder with what is left of its ttl. `None` if its lease has ended.
    async fn holder(&self, slot: &Slot, end: Instant) -> Result<Option<Holder>, Error> {
        let mut holder = slot.holder();
        if slot.lease != 0 {
            holder.ttl = left(&self.shared.connection, slot.lease, end).await?;
            if holder.ttl.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(holder))
    }

    async fn entry(&self, name: Name, queue: &Queue, end: Instant) -> Result<Entry, Error> {
        let holders = try_join_all(queue.holders().iter().map(|slot| self.holder(slot, end))).await?;
        Ok(queue.entry(name, holders.into_iter().flatten().collect()))
    }

    async fn list(&self, end: Instant) -> Result<Vec<Entry>, Error> {
        let layout = &self.shared.layout;
        let (mut key, range_end) = layout.all();
        let (mut names, mut revision) = (HashMap::<Name, Vec<KeyValue>>::new(), 0);
        loop {
            let request = RangeRequest { key, range_end: range_end.clone(), limit: PAGE, ..RangeRequest::default() };
            let page: RangeResponse = self.shared.connection.call(RANGE, request, end).await?;
            revision = page.header.as_ref().map_or(revision, |header| header.revision);
            let next = page.kvs.last().map(|last| [&last.key[..], &[0]].concat());
            for kv in page.kvs {
                // A lock of another client has no value, and a lease.
                let is_lock = Value::read(&kv.value).is_some() || (kv.value.is_empty() && kv.lease != 0);
                if is_lock && let Some(name) = layout.name_of(&kv.key).and_then(|name| Name::new(name).ok()) {
                    names.entry(name).or_default().push(kv);
                }
            }
            match next.filter(|_| page.more) {
                Some(next) => key = next,
                None => break,
            }
        }
        let mut queues: Vec<_> = names.into_iter().collect();
        queues.sort_by(|one, other| one.0.cmp(&other.0));
        let entries = queues.into_iter().map(|(name, mut kvs)| {
            kvs.sort_by_key(|kv| kv.create_revision);
            let queue = Queue::new(revision, kvs.into_iter());
            async move { self.entry(name, &queue, end).await }
        });
        let entries = try_join_all(entries).await?;
        Ok(entries.into_iter().filter(Entry::is_in_use).collect())
    }

    /// Deletes a key that is as it was seen. `Err` has the queue if it has changed.
    async fn delete(&self, name: &Name, spot: &Spot, end: Instant) -> Result<Result<(), Queue>, Error> {
        let delete = DeleteRangeRequest { key: spot.key.clone() };
        let compare = vec![Compare::is_unchanged(&spot.key, spot.modified)];
        match self.shared.transact(compare, vec![Op::Delete(delete)], &[name], end).await? {
            Ok(_) => {
                revoke_later(&self.shared.connection, spot.lease);
                Ok(Ok(()))
            }
            Err(queues) => queues.into_iter().next().map(Err).ok_or_else(|| unexpected("it has no range")),
        }
    }

    /// Leaves a key to nobody, for `linger` at least.
    async fn linger(&self, name: &Name, slot: &Slot, linger: Duration, end: Instant) -> Result<Result<(), Queue>, Error> {
        let mut lease = FreshLease::grant(&self.shared, (name.clone(), slot.owner().lingering()), seconds(linger), end).await?;
        let value = Value { state: State::Lingers, ttl: lease.ttl, owner: slot.owner().lingering(), ..slot.value.clone() };
        let put = PutRequest { key: slot.key.clone(), value: value.write(), lease: lease.id };
        let compare = vec![Compare::is_unchanged(&slot.key, slot.modified)];
        lease.sent();
        match self.shared.transact(compare, vec![Op::Put(put)], &[name], end).await? {
            Ok(_) => {
                lease.keep();
                revoke_later(&self.shared.connection, slot.lease);
                Ok(Ok(()))
            }
            Err(queues) => {
                lease.unused();
                queues.into_iter().next().map(Err).ok_or_else(|| unexpected("it has no range"))
            }
        }
    }
}

impl EtcdStore {
    /// Deletes the key of an owner, or leaves it to nobody.
    async fn give_up(&self, id: &Id, linger: Duration, end: Instant) -> Result<ReleaseReply, Error> {
        let (name, owner) = id;
        let spot = self.shared.spot(id).filter(|_| linger.is_zero());
        // The answer may be lost: nobody is to rely on it again.
        self.shared.forget(id);
        let mut queue = match spot {
            Some(spot) => match self.delete(name, &spot, end).await? {
                Ok(()) => return Ok(ReleaseReply::Released),
                Err(queue) => queue,
            },
            None => self.shared.queue(name, end).await?,
        };
        loop {
            let Some(slot) = queue.find(owner) else {
                let lingers = queue.find(&owner.lingering()).is_some();
                return Ok(if lingers { ReleaseReply::Released } else { ReleaseReply::NotHeld });
            };
            let lingers = !linger.is_zero() && queue.held_by(owner).is_some() && slot.value.state != State::Lingers;
            let done = if lingers {
                self.linger(name, slot, linger, end).await?
            } else {
                self.delete(name, &Spot::from(slot), end).await?
            };
            match done {
                Ok(()) => return Ok(ReleaseReply::Released),
                Err(changed) => queue = changed,
            }
        }
    }
}

#[async_trait]
impl Store for EtcdStore {
    fn features(&self) -> Features {
        Features::basic()
            .with_fence(true)
            .with_shares(true)
            .with_queue(true)
            .with_cohort(true)
            .with_push(true)
            .with_server_clock(true)
            .with_timed_calls(true)
            .with_min_ttl(Duration::from_secs(1))
            .with_operation_timeout(self.timeout)
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        let end = self.end(request.ttl);
        if request.from.is_some() {
            let queue = self.shared.queue(&request.name, end).await?;
            queue.check(request)?;
            return self.settle(request, queue, end).await;
        }
        match request.enqueue {
            Enqueue::Heartbeat if request.generated => self.heartbeat(request, end).await,
            Enqueue::Join { entry_ttl, handoff_ttl } if request.generated => {
                self.join(request, (entry_ttl, handoff_ttl), end).await
            }
            _ => match self.take(&[request], end).await? {
                Ok(grants) => grants.into_iter().next().map(AcquireReply::Granted).ok_or_else(|| unexpected("it grants nothing")),
                Err(queues) => {
                    let queue = queues.first().ok_or_else(|| unexpected("it has no range"))?;
                    let mut busy = self.busy(queue, &request.owner, false, end).await;
                    busy.position = busy.position.filter(|_| request.generated);
                    Ok(AcquireReply::Busy(busy))
                }
            },
        }
    }

    async fn acquire_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        let Some(shortest) = requests.iter().map(|request| request.ttl).min() else { return Ok(Some(Vec::new())) };
        if requests.len() > AT_ONCE {
            return Ok(None);
        }
        let requests: Vec<&Request> = requests.iter().collect();
        Ok(self.take(&requests, self.end(shortest)).await?.ok())
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        let Some(shortest) = leases.iter().map(|lease| lease.ttl).min() else { return Vec::new() };
        let end = self.end(shortest);
        let chunks = leases.chunks(crate::renew::AT_ONCE).map(|leases| crate::renew::all(&self.shared, leases, end));
        join_all(chunks).await.into_iter().flatten().collect()
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        let (end, id) = (self.end(lease.ttl), (lease.name.clone(), lease.owner.clone()));
        let reply = self.give_up(&id, linger, end).await?;
        self.shared.unanswered.end(&self.shared.connection, &id, end).await.map_err(Error::maybe_applied)?;
        Ok(reply)
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        crate::watch::notices(&self.shared, request, self.end(request.ttl)).await
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        let end = self.end(Duration::MAX);
        let Some(name) = name else { return self.list(end).await };
        let entry = self.entry(name.clone(), &self.shared.queue(name, end).await?, end).await?;
        Ok(Some(entry).filter(Entry::is_in_use).into_iter().collect())
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({:?})", self.connection)
    }
}

impl fmt::Display for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.connection.fmt(f)
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdStore({self})")
    }
}
