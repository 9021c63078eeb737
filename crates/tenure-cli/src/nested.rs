//! A command that waits for what the command around it holds would wait for ever.

use tenure::{ErrorKind, Holder, Lease, Locker, Name, Owner, Share};

use crate::config::TTL;
use crate::exit::Failure;
use crate::names::Names;

/// Refuses to wait for a name that an outer `tenure` holds until we have ended.
///
/// Asks the store only if the environment says that something is held. That the token is found
/// there shows that it is the same store.
pub(crate) async fn check(locker: &Locker, names: &Names, share: Share) -> Result<(), Failure> {
    for (name, token) in held_around_us() {
        if !names.iter().any(|wanted| *wanted == name) {
            continue;
        }
        let entry = locker.inspect(&name).await.ok().flatten();
        let mut outer = entry.and_then(|entry| entry.holders.into_iter().find(|holder| holder.owner == token));
        if outer.is_none() && locker.store().features().process_bound && is_elsewhere(locker, &name, &token).await {
            outer = Some(Holder::new(token, Share::MUTEX));
        }
        if outer.is_some_and(|outer| !fit_together(outer.share, share)) {
            let what = format!("{name:?} is held by the command around this one (see TENURE_TOKEN), so waiting would never end");
            return Err(Failure::usage(format!("{what}; take it once, outside, or use another name inside")));
        }
    }
    Ok(())
}

/// Whether another process holds with this token. Not every store of leases that are bound to their
/// process shows the token, but it refuses to renew there what it knows to be elsewhere.
async fn is_elsewhere(locker: &Locker, name: &Name, token: &Owner) -> bool {
    let renewed = locker.renew(&Lease::new(name.clone(), token.clone(), Share::MUTEX, TTL)).await;
    renewed.is_err_and(|error| error.kind() == ErrorKind::Unsupported)
}

/// The names and tokens that the environment says are held.
fn held_around_us() -> Vec<(Name, Owner)> {
    let lines = |variable| std::env::var(variable).unwrap_or_default();
    let (names, tokens) = (lines("TENURE_NAME"), lines("TENURE_TOKEN"));
    let pairs = names.lines().zip(tokens.lines());
    pairs.filter_map(|(name, token)| Some((Name::new(name).ok()?, token.parse().ok()?))).collect()
}

/// Whether both can be held at once. Another kind of lock is refused by the store, at once.
fn fit_together(outer: Share, inner: Share) -> bool {
    let (outer, inner) = (outer.counted(), inner.counted());
    let both = u64::from(outer.weight()) + u64::from(inner.weight());
    outer.capacity() != inner.capacity() || both <= u64::from(outer.capacity())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_and_permits_go_together() {
        let permits = |some| Share::permits(some, 5).unwrap();
        for (outer, inner, fit) in [
            (Share::MUTEX, Share::MUTEX, false),
            (Share::READ, Share::READ, true),
            (Share::READ, Share::WRITE, false),
            (Share::WRITE, Share::READ, false),
            (permits(2), permits(3), true),
            (permits(3), permits(3), false),
            (Share::MUTEX, Share::READ, false),
            (Share::WRITE, Share::MUTEX, false),
            (Share::MUTEX, permits(3), true),
        ] {
            assert_eq!(fit_together(outer, inner), fit, "{outer:?} {inner:?}");
        }
    }
}
