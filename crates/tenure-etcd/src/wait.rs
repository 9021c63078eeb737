//! A wait: an entry in the queue, its heartbeats, and the hold that it is served.

use std::time::Duration;

use futures_util::future::try_join;
use tenure::Error;
use tenure::store::{AcquireReply, Request};
use tokio::time::Instant;

use crate::failure::unexpected;
use crate::fresh::FreshLease;
use crate::keys::{Phase, seconds};
use crate::lease::keep_alive;
use crate::proto::{Compare, DeleteRangeRequest, Op, PutRequest};
use crate::queue::Queue;
use crate::seen::Seen;
use crate::store::EtcdStore;
use crate::waits::Before;

/// Ttl of a queue entry's lease, at most. One heartbeat may be lost in that time.
const ENTRY: Duration = Duration::from_secs(3);

impl EtcdStore {
    /// Joins the queue, if the owner is not in it.
    pub(crate) async fn join(
        &self,
        request: &Request,
        (entry_ttl, handoff_ttl): (Duration, Duration),
        end: Instant,
    ) -> Result<AcquireReply, Error> {
        let (name, owner) = (&request.name, &request.owner);
        let ttl = seconds(entry_ttl.min(handoff_ttl.max(ENTRY)));
        let mut lease = FreshLease::grant(&self.shared, (name.clone(), owner.clone()), ttl, end).await?;
        let key = self.shared.layout.key(name, owner);
        let value = lease.value(Phase::Joined, request.share, owner);
        let put = PutRequest { key: key.clone(), value: value.write(), lease: lease.id };
        lease.sent();
        let (joined, queues) = self.shared.join(vec![put], &[name], end).await?;
        if joined.is_none() {
            lease.unused();
        }
        let queue = queues.into_iter().next().ok_or_else(|| unexpected("it has no range"))?;
        let Some(revision) = joined else {
            queue.check(request)?;
            return self.wait(request, queue, handoff_ttl, end).await;
        };
        if let Err(error) = queue.check(request) {
            let compare = vec![Compare::is_unchanged(&key, revision)];
            let delete = vec![Op::Delete(DeleteRangeRequest { key })];
            // Whether it went by this or by another call: it is gone, and its lease goes with this one.
            let _gone = self.shared.transact(compare, delete, &[], end).await.map_err(Error::maybe_applied)?;
            lease.unused();
            return Err(error);
        }
        self.shared.remember((name.clone(), owner.clone()), lease.seen(key, revision));
        lease.keep();
        if queue.held_by(owner).is_some() {
            return self.settle(request, queue, end).await.map_err(Error::maybe_applied);
        }
        Ok(self.waits(request, &queue, handoff_ttl, end).await)
    }

    /// Looks after an entry, or takes what it was served.
    pub(crate) async fn heartbeat(&self, request: &Request, end: Instant) -> Result<AcquireReply, Error> {
        let id = (request.name.clone(), request.owner.clone());
        let handoff_ttl = self.shared.waits.handoff_ttl(&id);
        let Some(seen) = self.shared.seen(&id) else {
            let queue = self.shared.queue(&request.name, end).await?;
            return self.wait(request, queue, handoff_ttl, end).await;
        };
        let ids = [seen.lease];
        let alive = keep_alive(&self.shared.connection, &ids, end);
        let (alive, mut queue) = try_join(alive, self.shared.queue(&request.name, end)).await?;
        queue.term = queue.term.max(alive.term);
        match queue.find(&request.owner) {
            Some(slot) if slot.lease == seen.lease && alive.has_ended() => Ok(self.lapsed(request, &queue, end).await),
            Some(slot) if slot.lease == seen.lease && queue.held_by(&request.owner).is_none() => {
                Ok(self.waits(request, &queue, handoff_ttl, end).await)
            }
            _ => self.wait(request, queue, handoff_ttl, end).await,
        }
    }

    /// Takes what the owner was served, or keeps its entry alive.
    async fn wait(
        &self,
        request: &Request,
        mut queue: Queue,
        handoff_ttl: Duration,
        end: Instant,
    ) -> Result<AcquireReply, Error> {
        queue.check(request)?;
        let Some(slot) = queue.find(&request.owner).filter(|_| request.generated).cloned() else {
            return Ok(self.lapsed(request, &queue, end).await);
        };
        if queue.held_by(&request.owner).is_some() {
            return self.settle(request, queue, end).await;
        }
        let alive = keep_alive(&self.shared.connection, &[slot.lease], end).await?;
        if alive.has_ended() {
            return Ok(self.lapsed(request, &queue, end).await);
        }
        queue.term = queue.term.max(alive.term);
        self.shared.remember((request.name.clone(), request.owner.clone()), Seen::from(&slot));
        Ok(self.waits(request, &queue, handoff_ttl, end).await)
    }

    /// Confirms a hold that the owner has, or takes it over.
    pub(crate) async fn settle(&self, request: &Request, mut queue: Queue, end: Instant) -> Result<AcquireReply, Error> {
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
            match self.shared.confirm(&request.name, &slot, (&request.owner, share), (request.ttl, None), end).await? {
                Ok(grant) => return Ok(AcquireReply::Granted(grant)),
                Err(changed) => queue = changed,
            }
        }
    }

    /// Busy, with the entry in the queue. Its notices begin here.
    async fn waits(&self, request: &Request, queue: &Queue, handoff_ttl: Duration, end: Instant) -> AcquireReply {
        let id = (request.name.clone(), request.owner.clone());
        let Some(before) = Before::new(queue, &request.owner, handoff_ttl, self.shared.connection.number()) else {
            return self.lapsed(request, queue, end).await;
        };
        self.shared.waits.note(&id, before);
        let busy = self.busy(queue, &request.owner, end).await;
        // An earlier leader may end the lease of this entry, so its turn has to be confirmed first.
        let is_safe = queue.find(&request.owner).is_some_and(|slot| slot.value.term >= queue.term);
        AcquireReply::Busy(busy.with_grant_seq(u64::try_from(queue.revision).ok().filter(|_| is_safe)))
    }

    /// Busy, without an entry.
    async fn lapsed(&self, request: &Request, queue: &Queue, end: Instant) -> AcquireReply {
        let id = (request.name.clone(), request.owner.clone());
        if request.generated {
            self.shared.forget(&id);
        }
        AcquireReply::Busy(self.busy(queue, &request.owner, end).await.with_position(None))
    }
}
