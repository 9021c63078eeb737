//! Conformance of the store in memory.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops where its set-up does")]

use std::process::Command;
use std::sync::Arc;

use async_trait::async_trait;
use tenure::store::Store;
use tenure::{MemoryStore, Name};
use tenure_testkit::conformance::{NotApplicable, Plant, Subject};

struct Memory(MemoryStore);

const ALONE: NotApplicable = NotApplicable("nobody else reaches this process's memory");

#[async_trait]
impl Subject for Memory {
    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.0.clone())
    }

    fn worker(&self) -> Result<Command, NotApplicable> {
        Err(ALONE)
    }

    fn plant(&self, _: &Name, _: &Plant) -> Result<(), NotApplicable> {
        Err(ALONE)
    }

    fn silence(&self, _: bool) -> Result<(), NotApplicable> {
        Err(NotApplicable("memory always answers"))
    }

    fn exceptions(&self) -> &[&'static str] {
        &[
            "no_two_processes_are_inside_at_once",
            "a_killed_holder_frees_within_its_ttl",
            "a_stopped_holder_is_overtaken_and_knows_it",
            "a_killed_waiter_leaves_nothing",
            "a_lease_passes_between_processes",
            "a_foreign_lock_and_ours_exclude_each_other",
            "a_lock_without_expiry_is_told",
            "another_type_is_refused_and_left_alone",
            "a_silent_store_is_told_within_the_timeout",
            "what_was_sent_to_a_silent_store_is_cleared",
        ]
    }
}

fn subject() -> Memory {
    Memory(MemoryStore::new())
}

tenure_testkit::conformance!(subject);

/// Every call that can be dropped says what that leaves, and is dropped in the conformance cases.
#[test]
fn every_call_says_what_dropping_it_leaves() {
    let tried = tenure_testkit::conformance::cancelled::functions();
    let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tenure/src");
    let mut seen = 0;
    for file in ["acquire.rs", "guard.rs", "locker.rs", "multi.rs"] {
        let source = std::fs::read_to_string(sources.join(file)).unwrap();
        let (mut of, mut docs) = (String::new(), String::new());
        for line in source.lines() {
            let code = line.trim_start();
            if let Some(name) = line.strip_prefix("impl ") {
                of = name.trim_end_matches(" {").to_owned();
            } else if let Some(text) = code.strip_prefix("///") {
                docs.push_str(text);
            } else if let Some(name) = code.strip_prefix("pub async fn ") {
                let call = format!("{of}::{}", name.split(['(', '<']).next().unwrap());
                assert!(docs.contains("# Cancel safety"), "{call} does not say what dropping it leaves");
                assert!(tried.contains(&call.as_str()), "{call} is in no conformance case that drops it");
                seen += 1;
            } else if !code.starts_with("#[") {
                docs.clear();
            }
        }
    }
    assert!(seen >= 18, "only {seen} calls were found");
}
