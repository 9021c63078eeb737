//! Stores that promise different things, behind one store: the weakest promise counts.

use std::sync::Arc;

use tenure::compose::AllOf;
use tenure::compose::quorum::{Node, Plain, Quorum};
use tenure::store::{AcquireReply, Grant, Request, Store};
use tenure::{BootClock, Fence, Name, Owner, Share};

use crate::scripted_store::ScriptedStore;
use crate::{LONG, secs};

/// A store that keeps the promises of its number, and grants so many seconds.
fn unlike(number: u64) -> ScriptedStore {
    let store = ScriptedStore::with(BootClock, |features| {
        (features.process_bound, features.max_name) = (number == 20, usize::try_from(number).unwrap());
        (features.min_ttl, features.late_end) = (secs(number), secs(number));
    });
    store.answers([AcquireReply::Granted(Grant::new(Fence::from_counter(1), secs(number)))]);
    store
}

/// In each order, so that none comes first by chance.
fn combined() -> Vec<Arc<dyn Store>> {
    let mut all: Vec<Arc<dyn Store>> = Vec::new();
    for numbers in [[10, 20, 30], [20, 30, 10], [30, 10, 20]] {
        let nodes = numbers.iter().map(|number| Arc::new(Plain(unlike(*number))) as Arc<dyn Node>);
        all.push(Arc::new(Quorum::new(nodes.collect()).unwrap()));
        let stores = numbers.iter().map(|number| Arc::new(unlike(*number)) as Arc<dyn Store>);
        all.push(Arc::new(AllOf::new(stores.collect()).unwrap()));
    }
    all
}

#[test]
fn the_features_of_unequal_stores_are_the_weakest() {
    for store in combined() {
        let features = store.features();
        assert!(features.process_bound, "{store}");
        assert_eq!((features.min_ttl, features.late_end, features.max_name), (secs(30), secs(30), 10), "{store}");
    }
}

/// A majority of a quorum may be without the store that grants the shortest.
#[tokio::test]
async fn the_shortest_ttl_that_a_store_granted_counts() {
    for (at, store) in combined().into_iter().enumerate() {
        let request = Request::new(Name::new(format!("door {at}")).unwrap(), Owner::generate("x").unwrap(), Share::MUTEX, LONG);
        let reply = store.acquire(&request).await.unwrap();
        let AcquireReply::Granted(grant) = reply else { panic!("{store}: {reply:?}") };
        let most = if store.to_string().contains("quorum") { 20 } else { 10 };
        assert!(grant.ttl <= secs(most), "{store}: {:?}", grant.ttl);
    }
}
