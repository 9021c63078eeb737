//! Each call dropped at each of its polls: before it is sent, while it runs, and when its answer has come. The calls behind it run
//! after it, on the same connection.

use std::time::Duration;

use tenure::Name;
use tenure::store::{AcquireReply, ReleaseReply, RenewReply, Store};

use crate::behind_proxy;
use crate::requests::{CALLS, Case, granted, lease, owner, request};

const POLLS: usize = 8;

async fn is_consistent(delay: Duration, what: &str, polls: usize) {
    let (proxy, store, other) = behind_proxy().await;
    let case = Case { store: &store, owner: owner(), held: owner() };
    granted(&store, &request("taken", &case.held)).await;
    granted(&store, &request("mine", &case.held)).await;
    proxy.delay(delay);
    case.call(what, polls).await;
    proxy.delay(Duration::ZERO);
    // Sent behind it, and so run after it.
    for name in ["x", "y", "taken"] {
        clear(&store, &lease(name, &case.owner)).await;
    }
    let text = format!("{what} dropped after {polls} polls, with a delay of {delay:?}");
    for name in ["x", "y", "taken", "mine"] {
        for entry in other.inspect(Some(&Name::new(name).unwrap())).await.unwrap() {
            let ours = entry.holders.iter().any(|holder| holder.owner == case.owner);
            assert!(!ours && entry.waiters.is_empty(), "{text}: {entry:?} is left");
        }
    }
    let kept = store.renew(&[lease("mine", &case.held)]).await.remove(0).unwrap();
    assert!(kept == RenewReply::Renewed || what == "release", "{text}: nothing else gives up");
    assert!(matches!(other.acquire(&request("x", &owner())).await.unwrap(), AcquireReply::Granted(_)), "{text}");
    assert!(!store.features().late_commands, "{text}: nothing is under way");
    // To list the names has a connection of its own.
    assert!(proxy.accepted() == 1 || what == "inspect", "{text}: the connection is as good as before");
}

async fn clear(store: &dyn Store, lease: &tenure::Lease) {
    assert!(matches!(store.release(lease, Duration::ZERO).await.unwrap(), ReleaseReply::Released | ReleaseReply::NotHeld));
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
