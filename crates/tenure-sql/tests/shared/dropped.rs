//! Each call dropped at each of its polls: before it is sent, while it runs, and when its answer has come. What a release does not
//! clear is not left, and the connection is as good as before. Tests of other stores include this file.

use std::sync::Arc;
use std::time::Duration;

use tenure::Name;
use tenure::store::{AcquireReply, RenewReply, Store};
use tenure_testkit::Proxy;
use tokio::time::timeout;

use crate::requests::{CALLS, Case, granted, lease, owner, request};

/// Longer than any server needs.
const PATIENCE: Duration = Duration::from_secs(20);

/// A proxy, and stores that reach the same locks through it and without it.
pub(crate) type Stores = (Proxy, Arc<dyn Store>, Arc<dyn Store>);

/// The differences between stores.
pub(crate) struct Calls {
    /// More polls than any call has.
    pub(crate) polls: usize,
    /// Polls after which a release is on its way, so that the store carries it out.
    pub(crate) until_sent: usize,
    /// The calls whose connection is not the one of the others.
    pub(crate) apart: &'static [&'static str],
}

impl Calls {
    /// Drops each of them at each poll, on a fast and on a slow connection.
    pub(crate) async fn leave_what_a_release_clears(&self, stores: impl AsyncFn() -> Stores) {
        for delay in [Duration::ZERO, Duration::from_millis(2)] {
            for what in CALLS {
                let stores = stores().await;
                for polls in 0..=self.polls {
                    self.is_consistent(&stores, delay, what, polls).await;
                }
            }
        }
        println!("{} calls, dropped after 0 to {} polls, on a fast and on a slow connection", CALLS.len(), self.polls);
    }

    async fn is_consistent(&self, (proxy, store, other): &Stores, delay: Duration, what: &str, polls: usize) {
        let case = Case { store, owner: owner(), held: owner() };
        let (taken, next) = (request("taken", &owner()), request("x", &owner()));
        granted(other, &taken).await;
        granted(store, &request("mine", &case.held)).await;
        proxy.delay(delay);
        case.call(what, polls).await;
        proxy.delay(Duration::ZERO);
        let text = format!("{what} dropped after {polls} polls, with a delay of {delay:?}");
        // Sent behind it, and so run after it.
        for name in ["x", "y", "taken"] {
            let cleared = store.release(&lease(name, &case.owner), Duration::ZERO).await;
            assert!(cleared.is_ok(), "{text}: {cleared:?}");
        }
        let is_given_up = what == "release" && polls >= self.until_sent;
        if is_given_up {
            gone(&**other, &Name::new("mine").unwrap(), &text).await;
        }
        for name in ["x", "y", "taken", "mine"] {
            for entry in other.inspect(Some(&Name::new(name).unwrap())).await.unwrap() {
                let is_left = ["x", "y"].contains(&name) || entry.holders.iter().any(|holder| holder.owner == case.owner);
                assert!(!is_left && entry.waiters.is_empty(), "{text}: {entry:?} is left");
            }
        }
        let kept = store.renew(&[lease("mine", &case.held)]).await.remove(0).unwrap();
        if what != "release" || polls == 0 || is_given_up {
            assert_eq!(kept == RenewReply::Gone, is_given_up, "{text}: nothing else gives up");
        }
        assert!(matches!(other.acquire(&next).await.unwrap(), AcquireReply::Granted(_)), "{text}");
        assert!(!store.features().late_commands, "{text}: nothing is under way");
        assert!(proxy.accepted() == 1 || self.apart.contains(&what), "{text}: the connection is as good as before");
        for (by, lease) in [(other, next.lease()), (other, taken.lease()), (store, lease("mine", &case.held))] {
            by.release(&lease, Duration::ZERO).await.unwrap();
            gone(&**other, &lease.name, &text).await;
        }
    }
}

async fn gone(store: &dyn Store, name: &Name, text: &str) {
    let gone = async {
        while !store.inspect(Some(name)).await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, gone).await.unwrap_or_else(|_| panic!("{name} is still taken: {text}"));
}
