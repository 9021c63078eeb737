//! Conformance of the SQLite store, on a real file that several processes open.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops where its set-up does")]

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use async_trait::async_trait;
use tenure::Name;
use tenure::store::Store;
use tenure_testkit::conformance::{NotApplicable, Plant, Subject};

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

    fn worker(&self) -> Result<Command, NotApplicable> {
        let mut worker = Command::new(env!("CARGO_BIN_EXE_tenure-worker"));
        worker.arg(format!("sqlite:{}", self.path().display()));
        Ok(worker)
    }

    fn plant(&self, _: &Name, _: &Plant) -> Result<(), NotApplicable> {
        Err(NotApplicable("nobody but tenure writes to its file"))
    }

    fn silence(&self, _: bool) -> Result<(), NotApplicable> {
        Err(NotApplicable("a file has no link to fall silent; its own trouble is tested with the store"))
    }

    fn exceptions(&self) -> &[&'static str] {
        &[
            "a_foreign_lock_and_ours_exclude_each_other",
            "a_lock_without_expiry_is_told",
            "another_type_is_refused_and_left_alone",
            "a_silent_store_is_told_within_the_timeout",
            "what_was_sent_to_a_silent_store_is_cleared",
        ]
    }
}

fn subject() -> Sqlite {
    Sqlite(tempfile::tempdir().unwrap())
}

tenure_testkit::conformance!(subject);
