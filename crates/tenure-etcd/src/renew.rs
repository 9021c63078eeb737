//! Renewals, many at a time.

use std::sync::Arc;

use futures_util::future::{BoxFuture, join, ready};
use futures_util::{FutureExt as _, StreamExt as _, stream};
use tenure::store::RenewReply;
use tenure::{Error, Lease};
use tokio::time::Instant;

use crate::keys::{Phase, Value, seconds};
use crate::lease::{keep_alive, keep_many, left_at_least};
use crate::proto::{KeyValue, Op, RangeRequest, TXN, TxnRequest, TxnResponse};
use crate::queue::Slot;
use crate::seen::Seen;
use crate::shared::Shared;

/// Leases of one batch: etcd allows 128 reads in a transaction.
pub(crate) const AT_ONCE: usize = 120;
/// Leases that are looked for at a time.
const LOOKS: usize = 16;

/// Renews a batch. A lease that is not as it was last seen is looked for.
pub(crate) async fn all(shared: &Arc<Shared>, leases: &[Lease], end: Instant) -> Vec<Result<RenewReply, Error>> {
    // A lease that is too long is not renewed, but replaced when it has run down.
    let fits = |lease: &Lease, seen: &Seen| seen.ttl <= shared.seconds(lease.ttl);
    let seen = |lease: &Lease| shared.seen(&(lease.name.clone(), lease.owner.clone())).filter(|seen| fits(lease, seen));
    let seen_keys: Vec<Option<Seen>> = leases.iter().map(seen).collect();
    let known = match known(shared, leases, &seen_keys, end).await {
        Ok(known) => known,
        // It may be about one of them: each is asked for by itself.
        Err(error) if !error.is_transient() && leases.len() > 1 => vec![Ok(false); leases.len()],
        Err(error) => vec![Err(error); leases.len()],
    };
    let mut each: Vec<BoxFuture<'_, Result<RenewReply, Error>>> = Vec::with_capacity(leases.len());
    for (lease, renewed) in leases.iter().zip(known) {
        each.push(match renewed {
            Ok(true) => ready(Ok(RenewReply::Renewed)).boxed(),
            Ok(false) => one(shared, lease, end).boxed(),
            Err(error) => ready(Err(error)).boxed(),
        });
    }
    stream::iter(each).buffered(LOOKS).collect().await
}

/// Renews those whose key and lease are known: a renewal of the lease, and a read of the key.
/// Returns which of them are renewed: one that was not answered in time does not cost the others their renewals.
///
/// A leader that was deposed without noticing may have renewed. The read was asked for at the same time, and is
/// answered under the later term.
async fn known(
    shared: &Arc<Shared>,
    leases: &[Lease],
    seen_keys: &[Option<Seen>],
    end: Instant,
) -> Result<Vec<Result<bool, Error>>, Error> {
    let ids: Vec<i64> = seen_keys.iter().flatten().map(|seen| seen.lease).collect();
    if ids.is_empty() {
        return Ok(vec![Ok(false); leases.len()]);
    }
    let reads = seen_keys.iter().flatten().map(|seen| Op::Range(RangeRequest::of_one(&seen.key)).into()).collect();
    let transaction = TxnRequest { success: reads, ..TxnRequest::default() };
    let look = async {
        let answer: TxnResponse = shared.connection.call(TXN, transaction, end).await?;
        shared.saw(answer.header.as_ref());
        let term = answer.header.map_or(0, |header| header.raft_term);
        Ok::<_, Error>((term, answer.ranges().map(|range| range.kvs.into_iter().next()).collect::<Vec<_>>()))
    };
    let (kept, found) = join(keep_many(&shared.connection, &ids, end), look).await;
    let (term, found) = found?;
    let mut answers = kept.into_iter().zip(found);
    let renewed = leases.iter().zip(seen_keys).map(|(lease, seen)| {
        let Some((seen, (ttl, kv))) = seen.as_ref().and_then(|seen| Some((seen, answers.next()?))) else { return Ok(false) };
        Ok(ttl? > 0 && kv.is_some_and(|kv| is_held(&kv, seen, lease, term)))
    });
    Ok(renewed.collect())
}

/// Whether a key is this lease's, confirmed, and its lease is long enough and not of an earlier term.
fn is_held(kv: &KeyValue, seen: &Seen, lease: &Lease, term: u64) -> bool {
    let is_whole = |value: &Value| value.ttl >= seconds(lease.ttl) && value.term >= term;
    let is_ours = |value: &Value| value.owner == lease.owner && value.phase == Phase::Holds;
    kv.lease == seen.lease && Value::read(&kv.value).is_some_and(|value| is_ours(&value) && is_whole(&value))
}

/// Looks for a lease, and renews it: by another one if need be.
async fn one(shared: &Arc<Shared>, lease: &Lease, end: Instant) -> Result<RenewReply, Error> {
    let id = (lease.name.clone(), lease.owner.clone());
    let mut queue = shared.queue(&lease.name, end).await?;
    loop {
        // Another client's is none of ours.
        let is_ours = |slot: &&Slot| slot.value.phase != Phase::Lingers && slot.own_lease() != 0;
        let Some(slot) = queue.held_by(&lease.owner).filter(is_ours).cloned() else {
            shared.forget(&id);
            return Ok(RenewReply::Gone);
        };
        match kept(shared, lease, &slot, queue.term, end).await? {
            Some(RenewReply::Renewed) => {
                shared.remember(id, Seen::from(&slot));
                return Ok(RenewReply::Renewed);
            }
            Some(reply) => {
                shared.forget(&id);
                return Ok(reply);
            }
            None => {}
        }
        // Others are shown the fence that the holder has, and not the number of this write.
        let known = slot.holder().fence.or(lease.fence);
        let granted = known.and_then(|fence| i64::try_from(fence.counter()).ok()).unwrap_or(0);
        let share = (&lease.owner, slot.value.share);
        match shared.confirm(&lease.name, &slot, share, (lease.ttl, Some(granted)), end).await? {
            Ok(_) => return Ok(RenewReply::Renewed),
            Err(changed) => queue = changed,
        }
    }
}

/// Renews a lease as it is. `None` if the key needs another one.
async fn kept(shared: &Shared, lease: &Lease, slot: &Slot, term: u64, end: Instant) -> Result<Option<RenewReply>, Error> {
    let wanted = shared.seconds(lease.ttl);
    // Served, and not confirmed; or wanted for longer; or known to an earlier leader, who may yet end it.
    if slot.value.phase != Phase::Holds || slot.value.ttl < seconds(lease.ttl) || slot.value.term < term {
        return Ok(None);
    }
    if slot.value.ttl > wanted {
        // Renewed, it would outlive its holder by that ttl.
        let left = left_at_least(&shared.connection, slot.lease, end).await?;
        return Ok(left.map_or(Some(RenewReply::Gone), |left| (left >= wanted).then_some(RenewReply::Renewed)));
    }
    let kept = keep_alive(&shared.connection, &[slot.lease], end).await?;
    if kept.has_ended() {
        return Ok(Some(RenewReply::Gone));
    }
    Ok((slot.value.term >= kept.term).then_some(RenewReply::Renewed))
}
