//! Conformance of session locks, on a real server behind a proxy that can fall silent.

use std::sync::Arc;

use async_trait::async_trait;
use tenure::store::Store;
use tenure_conformance::{NotApplicable, Process, Subject};
use tenure_testkit::{Program, Proxy, Worker};

use crate::session_locks::{SESSION_EXCEPTIONS, fresh_space, refuses, url_at};
use crate::{Server, open};

/// On a machine with other work, a session is not made in a sixth of a short ttl.
const LONGER: &str = "&timeout=700ms";

struct Sessions {
    proxy: Proxy,
    space: String,
}

#[async_trait]
impl Subject for Sessions {
    async fn store(&self) -> Arc<dyn Store> {
        open(&(url_at(self.proxy.addr(), &self.space) + LONGER)).await
    }

    fn process(&self) -> Result<Box<dyn Process>, NotApplicable> {
        Ok(Box::new(Worker::start(Program::this_test().on(&(url_at(Server::shared().addr(), &self.space) + LONGER)))))
    }

    fn silence(&self, silent: bool) -> Result<(), NotApplicable> {
        let control = if silent { Proxy::black_hole } else { Proxy::heal };
        control(&self.proxy);
        Ok(())
    }

    fn refuses(&self, name: &str) -> bool {
        refuses(name)
    }

    fn exceptions(&self) -> Vec<&'static str> {
        SESSION_EXCEPTIONS.concat()
    }
}

fn subject() -> Sessions {
    Sessions { proxy: Proxy::start_opaque(Server::shared().addr()), space: fresh_space(Server::shared()) }
}

tenure_conformance::conformance!(subject, Contract);
