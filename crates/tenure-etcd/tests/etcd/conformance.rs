//! Conformance on a real member behind a proxy that can fall silent. Each subject has a prefix of its own.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure::Name;
use tenure::store::Store;
use tenure_conformance::{NotApplicable, Plant, Process, Subject};
use tenure_testkit::{EtcdCluster, Program, Proxy, Worker};

use crate::open;

/// On a machine with other work, a name that eight tasks and two stores want takes a while.
const LONGER: &str = "&timeout=700ms";

struct Way {
    proxy: Proxy,
    prefix: String,
}

fn subject() -> Way {
    Way { proxy: Proxy::start_opaque(EtcdCluster::shared().addr(0)), prefix: EtcdCluster::fresh_prefix() }
}

#[async_trait]
impl Subject for Way {
    async fn store(&self) -> Arc<dyn Store> {
        open(&(EtcdCluster::url_at(self.proxy.addr(), &self.prefix) + LONGER)).await
    }

    fn process(&self) -> Result<Box<dyn Process>, NotApplicable> {
        let url = EtcdCluster::shared().url(&self.prefix) + LONGER;
        Ok(Box::new(Worker::start(Program::this_test().on(&url))))
    }

    fn plant(&self, name: &Name, what: &Plant) -> Result<(), NotApplicable> {
        let key = format!("{}{}/694d8d2f", self.prefix, name.as_str());
        match what {
            Plant::Value(_, None) => return Err(NotApplicable("a key without a lease is data")),
            // The tests of the command have locks of `etcdctl`.
            Plant::Value(_, Some(_)) => return Err(NotApplicable("the keys of other clients have no values")),
            Plant::OtherType => return Err(NotApplicable("etcd has values of one type only")),
            Plant::Nothing => drop(EtcdCluster::shared().ctl(&["del", &key])),
        }
        Ok(())
    }

    fn silence(&self, silent: bool) -> Result<(), NotApplicable> {
        let control = if silent { Proxy::black_hole } else { Proxy::heal };
        control(&self.proxy);
        Ok(())
    }

    /// A lease is kept for 2 s at least, and ends up to half a second late.
    fn overtime(&self) -> Duration {
        Duration::from_secs(3)
    }

    fn exceptions(&self) -> Vec<&'static str> {
        vec![
            "a_foreign_lock_and_ours_exclude_each_other",
            "a_lock_without_expiry_is_told",
            "another_type_is_refused_and_left_alone",
        ]
    }
}

tenure_conformance::conformance!(subject);
