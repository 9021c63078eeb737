//! The etcd store on real members: the cases of conformance, its faults, and `etcdctl` beside it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "helpers of tests are tests")]

mod beside;
mod conformance;
#[path = "../../../tenure-sql/tests/shared/dropped.rs"]
mod dropped;
mod faults;
mod members;
#[path = "../../../tenure-sql/tests/shared/requests.rs"]
mod requests;
mod secure;
mod shown;

use std::sync::Arc;
use std::time::Duration;

use tenure::store::Store;
use tenure_etcd::Options;
use tenure_testkit::{EtcdCluster, Proxy};

/// For what happens at once, on a machine that has other work.
const PATIENCE: Duration = Duration::from_secs(20);

async fn open(url: &str) -> Arc<dyn Store> {
    Arc::new(Options::parse(url).unwrap().open().await.unwrap())
}

/// A prefix of its own on the shared member, behind a proxy, and stores that reach it through the proxy and
/// without it.
async fn behind_proxy() -> (Proxy, Arc<dyn Store>, Arc<dyn Store>) {
    behind_proxy_with("&timeout=10s").await
}

/// As [`behind_proxy`], with other parameters for the store behind it.
async fn behind_proxy_with(parameters: &str) -> (Proxy, Arc<dyn Store>, Arc<dyn Store>) {
    let (etcd, prefix) = (EtcdCluster::shared(), EtcdCluster::fresh_prefix());
    let proxy = Proxy::start_opaque(etcd.addr(0));
    let behind = open(&(EtcdCluster::url_at(proxy.addr(), &prefix) + parameters)).await;
    (proxy, behind, open(&etcd.url(&prefix)).await)
}

/// Not a case: the workers of these tests begin here.
#[test]
fn worker() {
    tenure_testkit::worker::entry();
}
