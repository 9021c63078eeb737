//! A release: the key goes, or stays for nobody.

use std::time::Duration;

use tenure::store::ReleaseReply;
use tenure::{Error, Name};
use tokio::time::Instant;

use crate::failure::{is_full, unexpected};
use crate::fresh::FreshLease;
use crate::keys::{Phase, seconds};
use crate::lease::{keep_alive, revoke_later};
use crate::proto::{Compare, DeleteRangeRequest, Op, PutRequest};
use crate::queue::{Queue, Slot};
use crate::seen::{Id, Seen};
use crate::spare::Spare;
use crate::store::EtcdStore;

impl EtcdStore {
    /// Deletes a key that is as it was seen. `Err` has the queue if it has changed.
    pub(crate) async fn delete(&self, name: &Name, seen: &Seen, end: Instant) -> Result<Result<(), Queue>, Error> {
        let delete = DeleteRangeRequest { key: seen.key.clone() };
        let compare = vec![Compare::is_unchanged(&seen.key, seen.modified)];
        match self.shared.transact(compare, vec![Op::Delete(delete)], &[name], end).await? {
            Ok(_) => {
                match seen.own_term {
                    Some(term) => self.shared.spare(Spare { id: seen.lease, ttl: seen.ttl, term }),
                    None => revoke_later(&self.shared.connection, seen.lease),
                }
                Ok(Ok(()))
            }
            Err(queues) => queues.into_iter().next().map(Err).ok_or_else(|| unexpected("it has no range")),
        }
    }

    /// Leaves a key to nobody, for `linger` at least.
    async fn linger(&self, name: &Name, slot: &Slot, linger: Duration, end: Instant) -> Result<Result<(), Queue>, Error> {
        let id = (name.clone(), slot.owner().lingering());
        let mut lease = match FreshLease::new(&self.shared, id, seconds(linger), end).await {
            // Nothing can be written. The lease that it has is long enough.
            Err(error) if is_full(&error) && slot.value.ttl >= seconds(linger) => {
                let kept = keep_alive(&self.shared.connection, &[slot.lease], end).await?;
                return if kept.has_ended() { Err(error) } else { Ok(Ok(())) };
            }
            lease => lease?,
        };
        let value = lease.value(Phase::Lingers, slot.value.share, &slot.owner().lingering());
        let put = PutRequest { key: slot.key.clone(), value: value.write(), lease: lease.id };
        let compare = vec![Compare::is_unchanged(&slot.key, slot.modified)];
        lease.sent();
        match self.shared.transact(compare, vec![Op::Put(put)], &[name], end).await? {
            Ok(_) => {
                lease.keep();
                revoke_later(&self.shared.connection, slot.own_lease());
                Ok(Ok(()))
            }
            Err(queues) => {
                lease.unused();
                queues.into_iter().next().map(Err).ok_or_else(|| unexpected("it has no range"))
            }
        }
    }

    /// Deletes the key of an owner, or leaves it to nobody.
    pub(crate) async fn give_up(&self, id: &Id, linger: Duration, end: Instant) -> Result<ReleaseReply, Error> {
        let (name, owner) = id;
        let seen = self.shared.seen(id).filter(|_| linger.is_zero());
        // The answer may be lost: nobody is to rely on it again.
        self.shared.forget(id);
        let mut queue = match seen {
            Some(seen) => match self.delete(name, &seen, end).await? {
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
            let lingers = !linger.is_zero() && queue.held_by(owner).is_some() && slot.value.phase != Phase::Lingers;
            let done = if lingers {
                self.linger(name, slot, linger, end).await?
            } else {
                self.delete(name, &Seen::from(slot), end).await?
            };
            match done {
                Ok(()) => return Ok(ReleaseReply::Released),
                Err(changed) => queue = changed,
            }
        }
    }
}
