//! Conformance of all of two files, one after the other.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use tenure::compose::AllOf;
use tenure::store::Store;
use tenure_conformance::{NotApplicable, Process, Subject, exceptions};
use tenure_testkit::{Program, Worker};

struct TwoFiles(tempfile::TempDir);

impl TwoFiles {
    fn paths(&self) -> [PathBuf; 2] {
        ["first.db", "second.db"].map(|name| self.0.path().join(name))
    }
}

#[async_trait]
impl Subject for TwoFiles {
    async fn store(&self) -> Arc<dyn Store> {
        let [first, second] = self.paths().map(|path| Arc::new(tenure_sql::sqlite::open(path).unwrap()));
        Arc::new(AllOf::new(vec![first, second]).unwrap())
    }

    fn process(&self) -> Result<Box<dyn Process>, NotApplicable> {
        let urls = self.paths().map(|path| format!("sqlite:{}", path.display())).join(" ");
        Ok(Box::new(Worker::start(Program::this_test().on(&format!("all:{urls}")))))
    }

    /// As a file alone.
    fn exceptions(&self) -> Vec<&'static str> {
        use exceptions::{NEVER_SILENT, NO_FOREIGN_LOCKS, NO_QUEUE, ONE_BY_ONE};
        [NO_FOREIGN_LOCKS, NEVER_SILENT, NO_QUEUE, ONE_BY_ONE].concat()
    }
}

fn subject() -> TwoFiles {
    TwoFiles(tempfile::tempdir().unwrap())
}

tenure_conformance::conformance!(subject, Contract);
