//! Conformance of a table, on a real server behind a proxy that can fall silent. Each subject has a table of its own.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tenure::store::Store;
use tenure_conformance::{NotApplicable, Process, Subject};
use tenure_testkit::{Program, Proxy, Worker};

use crate::{EXCEPTIONS, Server, open};

/// On a machine with other work, a row that eight tasks and two stores write at once takes a while.
const LONGER: &str = "&timeout=700ms";

/// Opens a store on a table of the server at an address.
type Open = fn(SocketAddr, String) -> BoxFuture<'static, Arc<dyn Store>>;

/// A way to a table, and the table.
pub(crate) struct Way {
    proxy: Proxy,
    table: String,
    /// For other processes, which have no proxy.
    url: String,
    open: Open,
    exceptions: Vec<&'static str>,
}

impl Way {
    /// Through what listens at `upstream`.
    pub(crate) fn at(upstream: SocketAddr, open: Open, exceptions: Vec<&'static str>) -> Self {
        let (proxy, table) = (Proxy::start_opaque(upstream), Server::fresh_table());
        let url = Server::url_at(upstream, &table) + LONGER;
        Self { proxy, table, url, open, exceptions }
    }
}

#[async_trait]
impl Subject for Way {
    async fn store(&self) -> Arc<dyn Store> {
        (self.open)(self.proxy.addr(), self.table.clone()).await
    }

    fn process(&self) -> Result<Box<dyn Process>, NotApplicable> {
        Ok(Box::new(Worker::start(Program::this_test().on(&self.url))))
    }

    fn silence(&self, silent: bool) -> Result<(), NotApplicable> {
        let control = if silent { Proxy::black_hole } else { Proxy::heal };
        control(&self.proxy);
        Ok(())
    }

    fn exceptions(&self) -> Vec<&'static str> {
        self.exceptions.clone()
    }
}

/// Opens it by its URL.
pub(crate) fn by_url(addr: SocketAddr, table: String) -> BoxFuture<'static, Arc<dyn Store>> {
    async move { open(&(Server::url_at(addr, &table) + LONGER)).await }.boxed()
}

fn subject() -> Way {
    Way::at(Server::shared().addr(), by_url, EXCEPTIONS.concat())
}

tenure_conformance::conformance!(subject);
