//! Conformance of the store in memory.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops where its set-up does")]

use std::process::Command;
use std::sync::Arc;

use async_trait::async_trait;
use tenure::{MemoryStore, Name, Store};
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
