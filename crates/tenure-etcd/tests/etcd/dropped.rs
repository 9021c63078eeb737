//! Each call dropped at each of its polls. Nothing is left that a release does not clear, and the connection
//! is as good as before.

use std::time::Duration;

use tenure::store::{AcquireReply, RenewReply, Store};

use crate::behind_proxy;
use crate::requests::{CALLS, Case, granted, lease, owner, request};

/// More than any call has.
const POLLS: usize = 10;

async fn is_consistent(delay: Duration, what: &str, polls: usize) {
    let (proxy, store, other) = behind_proxy().await;
    let case = Case { store: &store, owner: owner(), held: owner() };
    granted(&store, &request("taken", &case.held)).await;
    granted(&store, &request("mine", &case.held)).await;
    proxy.delay(delay);
    case.call(what, polls).await;
    proxy.delay(Duration::ZERO);
    for name in ["x", "y", "taken"] {
        store.release(&lease(name, &case.owner), Duration::ZERO).await.unwrap();
    }
    let text = format!("{what} dropped after {polls} polls, with a delay of {delay:?}");
    for entry in other.inspect(None).await.unwrap() {
        let ours = entry.holders.iter().any(|holder| holder.owner == case.owner);
        assert!(!ours && entry.waiters.is_empty(), "{text}: {entry:?} is left");
    }
    let kept = store.renew(&[lease("mine", &case.held)]).await.remove(0).unwrap();
    assert!(kept == RenewReply::Renewed || what == "release", "{text}: it gave up another lease");
    for name in ["x", "y"] {
        assert!(matches!(other.acquire(&request(name, &owner())).await.unwrap(), AcquireReply::Granted(_)), "{text}");
    }
    assert_eq!(proxy.accepted(), 1, "{text}: the connection is as good as before");
    assert!(!store.features().late_commands);
}

#[tokio::test]
async fn every_call_dropped_at_every_poll_leaves_what_a_release_clears() {
    for delay in [Duration::ZERO, Duration::from_millis(2)] {
        for what in CALLS {
            for polls in 0..=POLLS {
                is_consistent(delay, what, polls).await;
            }
        }
    }
    println!("{} calls, dropped after 0 to {POLLS} polls, on a fast and on a slow connection", CALLS.len());
}
