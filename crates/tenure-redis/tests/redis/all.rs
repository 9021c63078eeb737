//! Conformance of all of a Redis and an SQLite file, in this order.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use tenure::Name;
use tenure::compose::AllOf;
use tenure::store::Store;
use tenure_conformance::{NotApplicable, Plant, Process, Subject, exceptions};
use tenure_testkit::{Program, RedisServer, Worker};

use crate::store;
use crate::subject::plant;

struct RedisAndFile(RedisServer, tempfile::TempDir);

impl RedisAndFile {
    fn path(&self) -> PathBuf {
        self.1.path().join("locks.db")
    }
}

#[async_trait]
impl Subject for RedisAndFile {
    async fn store(&self) -> Arc<dyn Store> {
        let (redis, file) = (store(&self.0.url()).await, tenure_sql::sqlite::open(self.path()).unwrap());
        Arc::new(AllOf::new(vec![Arc::new(redis), Arc::new(file)]).unwrap())
    }

    fn process(&self) -> Result<Box<dyn Process>, NotApplicable> {
        let urls = format!("all:{} sqlite:{}", self.0.url(), self.path().display());
        Ok(Box::new(Worker::start(Program::this_test().on(&urls))))
    }

    fn plant(&self, name: &Name, what: &Plant) -> Result<(), NotApplicable> {
        plant(&self.0, name.as_str().as_bytes(), what, "");
        Ok(())
    }

    /// A file has no link to fall silent.
    fn exceptions(&self) -> Vec<&'static str> {
        [exceptions::NEVER_SILENT, exceptions::NO_QUEUE, exceptions::ONE_BY_ONE].concat()
    }
}

fn subject() -> RedisAndFile {
    RedisAndFile(RedisServer::start(), tempfile::tempdir().unwrap())
}

tenure_conformance::conformance!(subject, Variant);
