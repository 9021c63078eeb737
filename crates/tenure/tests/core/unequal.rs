//! Stores that promise different things, behind one store: the weakest promise counts.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tenure::compose::AllOf;
use tenure::compose::quorum::{Node, Plain, Quorum};
use tenure::store::{AcquireReply, Features, Grant, Notice, ReleaseReply, RenewReply, Request, Store};
use tenure::{Entry, Error, Lease, MemoryStore, Name, Owner, Share};

use crate::LONG;

/// A store that keeps the promises of its number, and grants so many seconds.
#[derive(Clone, Debug)]
struct Unlike {
    inner: MemoryStore,
    number: u8,
}

impl fmt::Display for Unlike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unlike:{}", self.number)
    }
}

const fn secs(number: u8) -> Duration {
    Duration::from_secs(number as u64)
}

#[async_trait]
impl Store for Unlike {
    fn features(&self) -> Features {
        let of = self.inner.features().with_process_bound(self.number == 20).with_max_name(usize::from(self.number));
        of.with_min_ttl(secs(self.number)).with_late_end(secs(self.number))
    }

    async fn acquire(&self, request: &Request) -> Result<AcquireReply, Error> {
        let reply = self.inner.acquire(request).await?;
        let AcquireReply::Granted(grant) = reply else { return Ok(reply) };
        Ok(AcquireReply::Granted(Grant::new(grant.fence, secs(self.number))))
    }

    async fn acquire_all(&self, requests: &[Request]) -> Result<Option<Vec<Grant>>, Error> {
        self.inner.acquire_all(requests).await
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<RenewReply, Error>> {
        self.inner.renew(leases).await
    }

    async fn release(&self, lease: &Lease, linger: Duration) -> Result<ReleaseReply, Error> {
        self.inner.release(lease, linger).await
    }

    async fn watch(&self, request: &Request) -> Result<BoxStream<'static, Notice>, Error> {
        self.inner.watch(request).await
    }

    async fn inspect(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        self.inner.inspect(name).await
    }
}

/// In each order, so that none comes first by chance.
fn combined() -> Vec<Arc<dyn Store>> {
    let mut all: Vec<Arc<dyn Store>> = Vec::new();
    for numbers in [[10, 20, 30], [20, 30, 10], [30, 10, 20]] {
        let stores = numbers.map(|number| Unlike { inner: MemoryStore::new(), number });
        let nodes = stores.iter().map(|store| Arc::new(Plain(store.clone())) as Arc<dyn Node>).collect();
        all.push(Arc::new(Quorum::new(nodes).unwrap()));
        all.push(Arc::new(AllOf::new(stores.into_iter().map(|store| Arc::new(store) as Arc<dyn Store>).collect()).unwrap()));
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
