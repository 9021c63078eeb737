//! Conformance of a decorator: the store in memory with faults around it, and none of them planned but
//! silence, which memory alone cannot have.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops where its set-up does")]

use std::process::Command;
use std::sync::Arc;

use async_trait::async_trait;
use tenure::store::Store;
use tenure::{MemoryStore, Name};
use tenure_testkit::conformance::{NotApplicable, Plant, Subject};
use tenure_testkit::{Fate, Faulty};

struct Memory(Faulty<MemoryStore>);

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

    fn silence(&self, silent: bool) -> Result<(), NotApplicable> {
        if silent {
            self.0.plan(|_, _| Fate::HangsBefore);
        } else {
            self.0.heal();
        }
        Ok(())
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
        ]
    }
}

fn subject() -> Memory {
    Memory(Faulty::new(MemoryStore::new()))
}

tenure_testkit::conformance!(subject);
