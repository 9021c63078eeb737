//! Conformance of a table, on a real server behind a proxy that can fall silent. Each subject has a table of its own.

use std::sync::Arc;

use async_trait::async_trait;
use tenure::store::Store;
use tenure_conformance::{NotApplicable, Process, Subject};
use tenure_testkit::{Program, Proxy, Worker};

use crate::{EXCEPTIONS, Server, open};

/// On a machine with other work, a row that eight tasks and two stores write at once takes a while.
const LONGER: &str = "&timeout=400ms";

struct Table {
    proxy: Proxy,
    table: String,
}

#[async_trait]
impl Subject for Table {
    async fn store(&self) -> Arc<dyn Store> {
        open(&(Server::url_at(self.proxy.addr(), &self.table) + LONGER)).await
    }

    fn process(&self) -> Result<Box<dyn Process>, NotApplicable> {
        Ok(Box::new(Worker::start(Program::this_test().on(&(Server::shared().url(&self.table) + LONGER)))))
    }

    fn silence(&self, silent: bool) -> Result<(), NotApplicable> {
        let control = if silent { Proxy::black_hole } else { Proxy::heal };
        control(&self.proxy);
        Ok(())
    }

    fn exceptions(&self) -> Vec<&'static str> {
        EXCEPTIONS.concat()
    }
}

fn subject() -> Table {
    Table { proxy: Proxy::start_opaque(Server::shared().addr()), table: Server::fresh_table() }
}

tenure_conformance::conformance!(subject);
