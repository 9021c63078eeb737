//! The etcd store on real members: the cases of conformance, its faults, and `etcdctl` beside it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "helpers of tests are tests")]

mod conformance;

use std::sync::Arc;
use std::time::Duration;

use tenure::store::Store;
use tenure_etcd::Options;

/// For what happens at once, on a machine that has other work.
const PATIENCE: Duration = Duration::from_secs(20);

async fn open(url: &str) -> Arc<dyn Store> {
    Arc::new(Options::parse(url).unwrap().open().await.unwrap())
}

/// Not a case: the workers of these tests begin here.
#[test]
fn worker() {
    tenure_testkit::worker::entry();
}
