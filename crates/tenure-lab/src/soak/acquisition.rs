//! Compares the state of a guard with the lease that the store keeps.

use std::time::Duration;

use tenure::{BootTime, Entry, Error, Fence, Guard, Locker, Owner, Share, State};

/// State of a guard at one moment.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    owner: Owner,
    share: Share,
    fence: Option<Fence>,
    /// The end of the validity, and that of the lease at the store.
    believed_until: BootTime,
    lease_until: BootTime,
}

/// The most that clocks in whole milliseconds, at either end, may add.
const GRAIN: Duration = Duration::from_millis(5);

impl Claim {
    /// `None` once the tenure has ended: then nothing is claimed.
    fn of(guard: &Guard) -> Option<Self> {
        // In this order, time that passes between these lines makes each end earlier, and never later.
        let now = BootTime::now();
        let (believed_until, lease_until) = (now + guard.remaining(), now + guard.lease_remaining());
        let acquisition =
            Self { owner: guard.token().clone(), share: guard.share(), fence: guard.fence(), believed_until, lease_until };
        (guard.state() != State::Lost).then_some(acquisition)
    }

    /// Describes what it claims and the store does not keep, by an answer that came at `answered`.
    ///
    /// The lease may last for `longer` than the store shows.
    fn excess(&self, entry: Option<&Entry>, answered: BootTime, longer: Duration) -> Option<String> {
        let Some(holder) = entry.into_iter().flat_map(|entry| &entry.holders).find(|holder| holder.owner == self.owner) else {
            return Some(format!("the store does not have it: {entry:?}"));
        };
        if holder.share.weight() < self.share.weight() || holder.share.capacity() != self.share.capacity() {
            return Some(format!("it claims {:?}, and the store keeps {:?}", self.share, holder.share));
        }
        if let (Some(claimed), Some(kept)) = (self.fence, holder.fence)
            && claimed.counter() > kept.counter()
        {
            return Some(format!("it claims fence {claimed}, and the store gave {kept}"));
        }
        let ttl = holder.ttl?;
        let ends = answered + ttl + GRAIN + longer;
        let late = self.believed_until.since(ends);
        if !late.is_zero() {
            return Some(format!("it is valid for {late:?} longer than the lease lasts, which ends in {ttl:?}"));
        }
        let late = self.lease_until.since(ends + ttl.mul_f64(0.01));
        (!late.is_zero()).then(|| format!("its lease is taken to last for {late:?} longer than it does, which ends in {ttl:?}"))
    }
}

/// Asks the store, and says what the guard claims beyond that; `None` where nothing is claimed any more.
///
/// # Errors
/// The store's: nothing can be said then.
pub(super) async fn compare(locker: &Locker, guard: &Guard) -> Result<Option<Option<String>>, Error> {
    let Some(before) = Claim::of(guard) else { return Ok(None) };
    let entry = locker.inspect(guard.name()).await?;
    let answered = BootTime::now();
    // It counts whole seconds, and shows what is left at least.
    let shows_less = locker.store().to_string().starts_with("memcached:");
    let longer = if shows_less { locker.store().features().late_end } else { Duration::ZERO };
    // It stood all the while only if it still stands: one that ended meanwhile may be missing.
    let Some(after) = Claim::of(guard) else { return Ok(None) };
    // A share only shrinks.
    Ok(Some(Claim { share: after.share, ..before }.excess(entry.as_ref(), answered, longer)))
}

#[cfg(test)]
mod tests {
    use tenure::{Holder, Name};

    use super::*;

    fn at(ms: u64) -> BootTime {
        BootTime::from_boot(Duration::from_millis(10_000 + ms))
    }

    fn acquisition() -> Claim {
        let owner = Owner::from_bytes(&b"me"[..]);
        let fence = Fence::from_counter(7);
        Claim { owner, share: Share::WRITE, fence, believed_until: at(900), lease_until: at(1_000) }
    }

    /// Returns the finding if the store has applied `change` to the very lease.
    fn found(change: impl Fn(&mut Holder)) -> String {
        found_longer(Duration::ZERO, change)
    }

    fn found_longer(longer: Duration, change: impl Fn(&mut Holder)) -> String {
        let Claim { owner, share, fence, .. } = acquisition();
        let mut holder = Holder::new(owner, share).with_fence(fence).with_ttl(Duration::from_secs(1));
        change(&mut holder);
        let entry = Entry::new(Name::new("n").unwrap(), vec![holder], vec![]);
        acquisition().excess(Some(&entry), at(0), longer).unwrap_or_default()
    }

    #[test]
    fn a_claim_is_no_more_than_what_the_store_keeps() {
        assert_eq!(found(|_| {}), "");
        assert_eq!(found(|holder| holder.ttl = None), "");
        assert_eq!(found(|holder| holder.fence = Fence::from_counter(8)), "", "a repeated grant has a later number");
        assert!(found(|holder| holder.share = Share::READ).contains("it claims"));
        assert!(found(|holder| holder.fence = Fence::from_counter(6)).contains("it claims fence"));
        assert!(found(|holder| holder.owner = Owner::from_bytes(&b"other"[..])).contains("does not have it"));
        assert!(found(|holder| holder.ttl = Some(Duration::from_millis(890))).contains("it is valid for"));
        assert!(found(|holder| holder.ttl = Some(Duration::from_millis(950))).contains("its lease"));
        let shown = |less| found_longer(Duration::from_millis(less), |holder| holder.ttl = Some(Duration::from_millis(800)));
        assert!(shown(180).contains("its lease") && shown(90).contains("it is valid for") && shown(210).is_empty());
        assert!(acquisition().excess(None, at(0), Duration::ZERO).unwrap().contains("does not have it"));
    }
}
