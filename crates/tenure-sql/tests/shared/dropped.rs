//! Each call dropped at each of its polls: before it is sent, while it runs, and when its answer has come. The calls behind it run
//! after it, on the same connection. No transaction is left open.

use std::sync::Arc;
use std::time::Duration;

use tenure::Lease;
use tenure::store::{AcquireReply, ReleaseReply, RenewReply, Store};
use tenure_testkit::{Proxy, wait_until};

use crate::requests::{CALLS, Case, granted, lease, owner, request};
use crate::{OPEN_TRANSACTIONS, Server, open};

const POLLS: usize = 6;

/// A proxy, and stores that reach a table through it and without it.
type Stores = (Proxy, Arc<dyn Store>, Arc<dyn Store>);

async fn is_consistent((proxy, store, other): Stores, delay: Duration, what: &str, polls: usize) {
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
    for entry in other.inspect(None).await.unwrap() {
        let ours = entry.holders.iter().any(|holder| holder.owner == case.owner);
        assert!(!ours && entry.waiters.is_empty(), "{text}: {entry:?} is left");
    }
    let kept = store.renew(&[lease("mine", &case.held)]).await.remove(0).unwrap();
    let given_up = what == "release" && polls > 0;
    assert_eq!(kept == RenewReply::Gone, given_up, "{text}: a release that was sent is done, and nothing else gives up");
    assert!(matches!(other.acquire(&request("x", &owner())).await.unwrap(), AcquireReply::Granted(_)), "{text}");
    assert!(!store.features().late_commands, "{text}: nothing is under way");
    assert_eq!(proxy.accepted(), 1, "{text}: the connection is as good as before");
}

async fn clear(store: &dyn Store, lease: &Lease) {
    assert!(matches!(store.release(lease, Duration::ZERO).await.unwrap(), ReleaseReply::Released | ReleaseReply::NotHeld));
}

pub(crate) async fn leave_what_a_release_clears(stores: impl AsyncFn() -> Stores) {
    for delay in [Duration::ZERO, Duration::from_millis(2)] {
        for what in CALLS {
            for polls in 0..=POLLS {
                is_consistent(stores().await, delay, what, polls).await;
            }
        }
    }
    // Those of other tests end by themselves, and others begin.
    let mut open = Server::shared().sql(OPEN_TRANSACTIONS);
    wait_until(crate::PATIENCE, "the open transactions to end", || {
        // InnoDB gives the same answer again to a client that asks more often than every 100 ms.
        std::thread::sleep(Duration::from_millis(150));
        let still = Server::shared().sql(OPEN_TRANSACTIONS);
        open.retain(|transaction| still.contains(transaction));
        println!("still open: {open:?}");
        open.is_empty()
    });
    println!("{} calls, dropped after 0 to {POLLS} polls, on a fast and on a slow connection", CALLS.len());
}

#[tokio::test]
async fn every_call_dropped_at_every_poll_leaves_what_a_release_clears() {
    let stores = async || {
        let (proxy, table) = (Proxy::start_opaque(Server::shared().addr()), Server::fresh_table());
        let behind = open(&(Server::url_at(proxy.addr(), &table) + "&timeout=20s")).await;
        (proxy, behind, open(&(Server::shared().url(&table) + "&timeout=20s")).await)
    };
    leave_what_a_release_clears(stores).await;
}
