//! Conformance of the SQLite store, on a real file that several processes open.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use tenure::store::Store;
use tenure_conformance::{NotApplicable, Process, Subject, exceptions};
use tenure_testkit::{Program, Worker};

struct Sqlite(tempfile::TempDir);

impl Sqlite {
    fn path(&self) -> PathBuf {
        self.0.path().join("locks.db")
    }
}

#[async_trait]
impl Subject for Sqlite {
    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(tenure_sql::sqlite::open(self.path()).unwrap())
    }

    fn process(&self) -> Result<Box<dyn Process>, NotApplicable> {
        Ok(Box::new(Worker::start(Program::this_test().on(&format!("sqlite:{}", self.path().display())))))
    }

    /// Nobody but tenure writes to its file, and a file has no link to fall silent: its own trouble is tested with the store.
    fn exceptions(&self) -> Vec<&'static str> {
        [exceptions::NO_FOREIGN_LOCKS, exceptions::NEVER_SILENT].concat()
    }
}

fn subject() -> Sqlite {
    Sqlite(tempfile::tempdir().unwrap())
}

tenure_conformance::conformance!(subject);
