//! Renewals, many at a time.

use std::sync::Arc;

use futures_util::future::{BoxFuture, ready, try_join};
use futures_util::{FutureExt as _, StreamExt as _, stream};
use tenure::store::RenewReply;
use tenure::{Error, Lease};
use tokio::time::Instant;

use crate::keys::{State, Value, seconds};
use crate::lease::keep_alive;
use crate::proto::{KeyValue, Op, RangeRequest, TXN, TxnRequest, TxnResponse};
use crate::store::{Shared, Spot};

/// Leases of one batch: etcd allows 128 reads in a transaction.
pub(crate) const AT_ONCE: usize = 120;
/// Leases that are looked for at a time.
const LOOKS: usize = 16;

/// Renews a batch. A lease that is not as it was last seen is looked for.
pub(crate) async fn all(shared: &Arc<Shared>, leases: &[Lease], end: Instant) -> Vec<Result<RenewReply, Error>> {
    let spots: Vec<Option<Spot>> = leases.iter().map(|lease| shared.spot(&(lease.name.clone(), lease.owner.clone()))).collect();
    let known = match known(shared, leases, &spots, end).await {
        Ok(known) => known,
        Err(error) => return leases.iter().map(|_| Err(error.clone())).collect(),
    };
    let mut each: Vec<BoxFuture<'_, Result<RenewReply, Error>>> = Vec::with_capacity(leases.len());
    for (lease, renewed) in leases.iter().zip(known) {
        each.push(if renewed { ready(Ok(RenewReply::Renewed)).boxed() } else { one(shared, lease, end).boxed() });
    }
    stream::iter(each).buffered(LOOKS).collect().await
}

/// Renews those whose key and lease are known: a renewal of the lease, and a look whether it has the key.
/// Returns which of them are renewed.
async fn known(shared: &Arc<Shared>, leases: &[Lease], spots: &[Option<Spot>], end: Instant) -> Result<Vec<bool>, Error> {
    let ids: Vec<i64> = spots.iter().flatten().map(|spot| spot.lease).collect();
    if ids.is_empty() {
        return Ok(vec![false; leases.len()]);
    }
    let reads = spots.iter().flatten().map(|spot| Op::Range(RangeRequest::of_one(&spot.key)).into()).collect();
    let transaction = TxnRequest { success: reads, ..TxnRequest::default() };
    let look = async {
        let answer: TxnResponse = shared.connection.call(TXN, transaction, end).await?;
        Ok::<_, Error>(answer.ranges().map(|range| range.kvs.into_iter().next()).collect::<Vec<_>>())
    };
    let (kept, seen) = try_join(keep_alive(&shared.connection, &ids, end), look).await?;
    let mut answers = kept.into_iter().zip(seen);
    let renewed = leases.iter().zip(spots).map(|(lease, spot)| {
        let Some((spot, (ttl, kv))) = spot.as_ref().and_then(|spot| Some((spot, answers.next()?))) else { return false };
        ttl > 0 && kv.is_some_and(|kv| is_held(&kv, spot, lease))
    });
    Ok(renewed.collect())
}

/// Whether a key is this lease's, confirmed, and its lease is long enough.
fn is_held(kv: &KeyValue, spot: &Spot, lease: &Lease) -> bool {
    let value = Value::read(&kv.value);
    kv.lease == spot.lease
        && value.is_some_and(|value| value.owner == lease.owner && value.state == State::Holds && value.ttl >= seconds(lease.ttl))
}

/// Looks for a lease, and renews it: by a longer one if need be.
async fn one(shared: &Arc<Shared>, lease: &Lease, end: Instant) -> Result<RenewReply, Error> {
    let id = (lease.name.clone(), lease.owner.clone());
    let mut queue = shared.queue(&lease.name, end).await?;
    loop {
        let Some(slot) = queue.held_by(&lease.owner).filter(|slot| slot.value.state != State::Lingers) else {
            shared.forget(&id);
            return Ok(RenewReply::Gone);
        };
        if slot.value.state == State::Holds && slot.value.ttl >= seconds(lease.ttl) {
            if keep_alive(&shared.connection, &[slot.lease], end).await? == [0] {
                shared.forget(&id);
                return Ok(RenewReply::Gone);
            }
            shared.remember(id, Spot::from(slot));
            return Ok(RenewReply::Renewed);
        }
        // It was served and comes for it now, or wants to stay longer. Another client's is none of ours.
        if slot.value.ttl == 0 {
            return Ok(RenewReply::Gone);
        }
        let (slot, share) = (slot.clone(), slot.value.share);
        match shared.confirm(&lease.name, &slot, (&lease.owner, share), lease.ttl, end).await? {
            Ok(_) => return Ok(RenewReply::Renewed),
            Err(changed) => queue = changed,
        }
    }
}
