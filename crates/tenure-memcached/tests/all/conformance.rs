//! Conformance of both schemes, on a real server behind a proxy that can fall silent. Each subject has a prefix of its own.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure::Name;
use tenure::store::Store;
use tenure_conformance::{NotApplicable, Plant, Process, Subject, exceptions};
use tenure_memcached::Options;
use tenure_testkit::{MemcachedServer, Program, Proxy, Worker};

/// A way to names that nobody else has.
struct Way {
    proxy: Proxy,
    prefix: String,
    parameters: &'static str,
    exceptions: Vec<&'static str>,
}

impl Way {
    fn new(parameters: &'static str, exceptions: &[&[&'static str]]) -> Self {
        let (proxy, prefix) = (Proxy::start_opaque(MemcachedServer::shared().addr()), MemcachedServer::fresh_prefix());
        Self { proxy, prefix, parameters, exceptions: exceptions.concat() }
    }

    fn url_at(&self, addr: std::net::SocketAddr) -> String {
        MemcachedServer::url_at(addr, &self.prefix) + self.parameters
    }
}

#[async_trait]
impl Subject for Way {
    async fn store(&self) -> Arc<dyn Store> {
        // Less than a second: a late answer counts as late then, and not as lost.
        Arc::new(Options::parse(&(self.url_at(self.proxy.addr()) + "&timeout=700ms")).unwrap().open().await.unwrap())
    }

    fn process(&self) -> Result<Box<dyn Process>, NotApplicable> {
        Ok(Box::new(Worker::start(Program::this_test().on(&self.url_at(MemcachedServer::shared().addr())))))
    }

    fn plant(&self, name: &Name, what: &Plant) -> Result<(), NotApplicable> {
        let key = format!("{}{name}", self.prefix);
        let server = MemcachedServer::shared();
        match what {
            Plant::Value(value, ttl) => {
                let seconds = ttl.unwrap_or(Duration::ZERO).as_secs();
                server.set_bytes(&key, value, u32::try_from(seconds).expect("a short one"));
            }
            Plant::OtherType => return Err(NotApplicable("its values have no types")),
            Plant::Nothing => drop(server.ask(&format!("delete {key}"), Some(1))),
        }
        Ok(())
    }

    fn silence(&self, silent: bool) -> Result<(), NotApplicable> {
        let control = if silent { Proxy::black_hole } else { Proxy::heal };
        control(&self.proxy);
        Ok(())
    }

    fn overtime(&self) -> Duration {
        // A record has the end of each lease, and a token alone that of its item, in whole seconds.
        Duration::from_millis(if self.parameters.is_empty() { 4_500 } else { 5_500 })
    }

    fn exceptions(&self) -> Vec<&'static str> {
        self.exceptions.clone()
    }
}

/// A value at a key has no type.
const NO_TYPES: &[&str] = &["another_type_is_refused_and_left_alone"];

mod cas {
    use super::*;

    fn subject() -> Way {
        Way::new("", &[exceptions::NO_PUSH, exceptions::ONE_BY_ONE, NO_TYPES])
    }

    tenure_conformance::conformance!(subject);
}

mod add {
    use super::*;

    /// It has fences.
    const FENCES: &[&str] = &["fences_rise_under_contention", "fences_rise_with_every_grant"];

    fn subject() -> Way {
        let mutexes: Vec<&str> = exceptions::MUTEXES_ONLY.iter().copied().filter(|case| !FENCES.contains(case)).collect();
        Way::new("&scheme=add", &[&mutexes, NO_TYPES])
    }

    tenure_conformance::conformance!(subject, Contract);
}
