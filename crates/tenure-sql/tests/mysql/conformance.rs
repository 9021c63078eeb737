//! Conformance of the MariaDB store, on a real server behind a proxy that can fall silent. Each subject has a table of its own.

use std::sync::Arc;

use async_trait::async_trait;
use tenure::store::Store;
use tenure_conformance::{NotApplicable, Process, Subject, exceptions};
use tenure_sql::mysql::Options;
use tenure_testkit::{MariaDbServer, Program, Proxy, Worker};

/// On a machine with other work, a row that eight tasks and two stores write at once takes a while.
pub(crate) const LONGER: &str = "&timeout=400ms";

struct MariaDb {
    proxy: Proxy,
    table: String,
    parameters: &'static str,
    exceptions: Vec<&'static str>,
}

impl MariaDb {
    fn start(parameters: &'static str, exceptions: &[&[&'static str]]) -> Self {
        let proxy = Proxy::start_opaque(MariaDbServer::shared().addr());
        Self { proxy, table: MariaDbServer::fresh_table(), parameters, exceptions: exceptions.concat() }
    }
}

#[async_trait]
impl Subject for MariaDb {
    async fn store(&self) -> Arc<dyn Store> {
        let url = MariaDbServer::url_at(self.proxy.addr(), &self.table) + self.parameters + LONGER;
        Options::parse(&url).unwrap().open().await.unwrap()
    }

    fn process(&self) -> Result<Box<dyn Process>, NotApplicable> {
        let url = MariaDbServer::shared().url(&self.table) + self.parameters + LONGER;
        Ok(Box::new(Worker::start(Program::this_test().on(&url))))
    }

    fn silence(&self, silent: bool) -> Result<(), NotApplicable> {
        let control = if silent { Proxy::black_hole } else { Proxy::heal };
        control(&self.proxy);
        Ok(())
    }

    /// Nobody but tenure writes to its table.
    fn exceptions(&self) -> Vec<&'static str> {
        self.exceptions.clone()
    }
}

fn subject() -> MariaDb {
    MariaDb::start("", &[exceptions::NO_FOREIGN_LOCKS, exceptions::NO_PUSH])
}

tenure_conformance::conformance!(subject);
