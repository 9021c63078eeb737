//! Conformance on a real server behind a proxy that can fall silent. Each subject has a chroot of its own.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure::store::Store;
use tenure_conformance::{NotApplicable, Process, Subject};
use tenure_testkit::{Program, Proxy, Worker, ZooKeeperServer as Server};

use crate::{EXCEPTIONS, open};

/// On a machine with other work, a session is not made in a sixth of a short ttl.
const LONGER: &str = "?timeout=700ms";

struct Chroot {
    proxy: Proxy,
    chroot: String,
}

#[async_trait]
impl Subject for Chroot {
    async fn store(&self) -> Arc<dyn Store> {
        open(&(Server::url_at(self.proxy.addr(), &self.chroot) + LONGER)).await
    }

    fn process(&self) -> Result<Box<dyn Process>, NotApplicable> {
        Ok(Box::new(Worker::start(Program::this_test().on(&(Server::shared().url(&self.chroot) + LONGER)))))
    }

    fn silence(&self, silent: bool) -> Result<(), NotApplicable> {
        let control = if silent { Proxy::black_hole } else { Proxy::heal };
        control(&self.proxy);
        Ok(())
    }

    /// A session ends up to three ticks late, and a store deletes a node a moment after its ttl.
    fn overtime(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn exceptions(&self) -> Vec<&'static str> {
        EXCEPTIONS.concat()
    }
}

fn subject() -> Chroot {
    Chroot { proxy: Proxy::start_opaque(Server::shared().addr()), chroot: Server::fresh_chroot() }
}

tenure_conformance::conformance!(subject);
