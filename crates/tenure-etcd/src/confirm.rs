//! The write that makes a hold.

use std::sync::Arc;
use std::time::Duration;

use tenure::store::Grant;
use tenure::{Error, Name, Owner, Share};
use tokio::time::Instant;

use crate::failure::unexpected;
use crate::fresh::FreshLease;
use crate::keys::{Phase, Value, seconds, span};
use crate::lease::{left, revoke_later};
use crate::proto::{Compare, Op, PutRequest};
use crate::queue::{Queue, Slot, fence};
use crate::shared::Shared;

impl Shared {
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
        let is_same = slot.owner() == owner && slot.value.phase == Phase::Holds;
        let (mut ttl, mut slot) = (self.seconds(ttl), slot.clone());
        // A lease does not get shorter than what is left of it.
        if is_same && slot.value.ttl > ttl {
            ttl = left(&self.connection, slot.lease, end).await?.map_or(ttl, |left| seconds(left).max(ttl));
        }
        let mut lease = FreshLease::grant(self, (name.clone(), owner.clone()), ttl, end).await?;
        let mut is_written = false;
        loop {
            let value = Value { granted, ..lease.value(Phase::Holds, share, owner) };
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
