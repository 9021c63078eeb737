//! The store on a real ZooKeeper: faults of it and on the way to it, Curator beside us, and the cases of conformance.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "helpers of tests are tests")]

mod conformance;
#[path = "../../../tenure-sql/tests/shared/dropped.rs"]
mod dropped;
mod faults;
mod raw;
#[path = "../../../tenure-sql/tests/shared/requests.rs"]
mod requests;
mod rights;
mod settings;
mod silence;
mod tap;

use std::sync::Arc;
use std::time::Duration;

use tenure::Name;
use tenure::store::Store;
use tenure_conformance::exceptions;
use tenure_zookeeper::Options;
use tokio::time::timeout;

/// A session is of one process. Nothing takes several names in one step, so that waiters of each keep their order.
const EXCEPTIONS: &[&[&str]] = &[exceptions::NO_FOREIGN_LOCKS, exceptions::PROCESS_BOUND, exceptions::ONE_BY_ONE];

const PATIENCE: Duration = Duration::from_secs(20);

async fn open(url: &str) -> Arc<dyn Store> {
    Arc::new(Options::parse(url).unwrap().open().await.unwrap())
}

/// Waits until nothing is left of a name.
async fn gone(store: &dyn Store, name: &str, why: &str) {
    let name = Name::new(name).unwrap();
    let gone = async {
        while !store.inspect(Some(&name)).await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, gone).await.unwrap_or_else(|_| panic!("{name} is still taken: {why}"));
}

/// Not a case: the workers of these tests begin here.
#[test]
fn worker() {
    tenure_testkit::worker::entry();
}
