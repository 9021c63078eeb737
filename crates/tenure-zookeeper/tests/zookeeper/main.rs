//! The store on a real ZooKeeper: faults of it and on the way to it, Curator beside us, and the cases of conformance.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "helpers of tests are tests")]

mod conformance;

use std::sync::Arc;

use tenure::store::Store;
use tenure_conformance::exceptions;
use tenure_zookeeper::Options;

/// A session is of one process. Nothing takes several names in one step, so that waiters of each keep their order.
const EXCEPTIONS: &[&[&str]] = &[exceptions::NO_FOREIGN_LOCKS, exceptions::PROCESS_BOUND, exceptions::ONE_BY_ONE];

async fn open(url: &str) -> Arc<dyn Store> {
    Arc::new(Options::parse(url).unwrap().open().await.unwrap())
}

/// Not a case: the workers of these tests begin here.
#[test]
fn worker() {
    tenure_testkit::worker::entry();
}
