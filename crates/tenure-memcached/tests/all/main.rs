//! The memcached store on a real server: its items, its connection and their faults, and the cases of conformance.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "helpers of tests are tests")]

mod conformance;

use std::sync::Arc;

use tenure::store::Store;
use tenure_memcached::Options;

async fn open(url: &str) -> Arc<dyn Store> {
    Arc::new(Options::parse(url).unwrap().open().await.unwrap())
}

/// Not a case: the workers of these tests begin here.
#[test]
fn worker() {
    tenure_testkit::worker::entry();
}
