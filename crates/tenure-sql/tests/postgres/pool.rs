//! Behind a pool that lends sessions for single transactions: nothing is left in them, and waiters poll.

use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use tenure::store::Store;
use tenure_conformance::{NotApplicable, Process, Subject, exceptions};
use tenure_testkit::{PgBouncer, PostgresServer, Program, Proxy, Worker};

use crate::conformance::LONGER;
use crate::open;

static POOL: LazyLock<PgBouncer> = LazyLock::new(|| PgBouncer::start(PostgresServer::shared()));

struct Pooled {
    proxy: Proxy,
    table: String,
}

#[async_trait]
impl Subject for Pooled {
    async fn store(&self) -> Arc<dyn Store> {
        open(&(PostgresServer::url_at(self.proxy.addr(), &self.table) + LONGER)).await
    }

    fn process(&self) -> Result<Box<dyn Process>, NotApplicable> {
        let url = PostgresServer::url_at(POOL.addr(), &self.table) + LONGER;
        Ok(Box::new(Worker::start(Program::this_test().on(&url))))
    }

    fn silence(&self, silent: bool) -> Result<(), NotApplicable> {
        let control = if silent { Proxy::black_hole } else { Proxy::heal };
        control(&self.proxy);
        Ok(())
    }

    fn exceptions(&self) -> Vec<&'static str> {
        [exceptions::NO_FOREIGN_LOCKS, exceptions::NO_PUSH].concat()
    }
}

fn pooled() -> Pooled {
    Pooled { proxy: Proxy::start_opaque(POOL.addr()), table: PostgresServer::fresh_table() }
}

tenure_conformance::conformance!(pooled);

#[tokio::test]
async fn a_pool_is_found_out_and_nothing_listens_in_its_sessions() {
    let subject = pooled();
    let store = subject.store().await;
    assert!(!store.features().push);
    let request = crate::requests::joining("x");
    let _stream = store.watch(&request).await.unwrap();
    let direct = open(&PostgresServer::shared().url(&subject.table)).await;
    assert!(direct.features().push);
}
