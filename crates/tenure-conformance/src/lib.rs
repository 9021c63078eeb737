//! Conformance tests for authors of stores: every store of tenure passes them.
//!
//! Make a [`Subject`] of your store, and call [`conformance!`](crate::conformance). Each case becomes a test. You need this crate and
//! `async-trait` as dev-dependencies. `examples/own-store.rs` is a store of about a hundred lines with its subject.
//!
//! ```
//! use std::sync::Arc;
//! use tenure::MemoryStore;
//! use tenure::store::Store;
//! use tenure_conformance::{Subject, exceptions};
//!
//! struct Memory(MemoryStore);
//!
//! #[async_trait::async_trait]
//! impl Subject for Memory {
//!     async fn store(&self) -> Arc<dyn Store> {
//!         Arc::new(self.0.clone())
//!     }
//!
//!     fn exceptions(&self) -> Vec<&'static str> {
//!         [exceptions::ONE_PROCESS, exceptions::NO_FOREIGN_LOCKS, exceptions::NEVER_SILENT].concat()
//!     }
//! }
//!
//! fn memory() -> Memory {
//!     Memory(MemoryStore::new())
//! }
//!
//! tenure_conformance::conformance!(memory);
//! ```
//!
//! # Exceptions
//! A case that a store cannot run ends as [`NotApplicable`]: its subject has no other processes, or the store keeps mutexes only. Such a
//! case has to be named in [`Subject::exceptions`]. It fails if it is not, so nothing is left out in silence. A case that is named
//! and passes fails as well, so the list does not outlive its reason. [`exceptions`] has the usual groups; add single cases to
//! them by name. A case that *fails* cannot be excused: it says that the store breaks the contract of [`Store`](tenure::store::Store).
//!
//! # Faults
//! [`Faulty`] is a store around any other whose calls fail, hang or lose their answers where a test says so. [`Counter`] is a resource
//! without a lock of its own that shows when two holders were inside at once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::missing_panics_doc,
    clippy::print_stdout,
    clippy::unused_async,
    clippy::future_not_send,
    reason = "the cases are tests: what is wrong stops the test that meets it"
)]

#[doc(hidden)]
pub mod cases;
pub mod exceptions;
pub mod faulty;
pub mod overlap;
mod subject;

pub use crate::cases::cancelled::functions as cancelled_functions;
pub use crate::faulty::{Fate, Faulty, Operation};
pub use crate::overlap::Counter;
pub use crate::subject::{NotApplicable, Outcome, Plant, Process, Subject, Tier};

/// Makes a test of each case, on the [`Subject`] that a function makes: `conformance!(subject)`, or `conformance!(subject, Contract)`
/// where another store of the same engine runs all of them (see [`Tier`]).
#[macro_export]
macro_rules! conformance {
    ($subject:path) => {
        $crate::conformance! { $subject, Whole }
    };
    ($subject:path, $tier:ident) => {
        $crate::cases! { ($crate::conformance_tests) $subject, $tier }
    };
}

/// The expansion of [`conformance!`].
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    ($subject:path, $tier:ident; $($group:ident: [$($case:ident),* $(,)?])*) => {
        $($(
            #[test]
            fn $case() {
                $crate::check(stringify!($case), $crate::Tier::$tier, || Box::new($subject()));
            }
        )*)*
    };
}

/// Runs a case, and holds its outcome against what the subject declared.
#[doc(hidden)]
pub fn check(name: &str, tier: Tier, make: fn() -> Box<dyn Subject>) {
    let case = cases::CASES.iter().find(|case| case.name == name).expect("the same list made the test");
    if !case.runs_in(tier) && std::env::var_os("TENURE_TEST_ALL").is_none() {
        println!("{name}: left to ./scripts/test --all");
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let subject = make();
        let declared = subject.exceptions().contains(&name);
        match (case.run)(&*subject).await {
            Ok(()) => assert!(!declared, "{name} is declared to be impossible on this store, and passes"),
            Err(NotApplicable(why)) if declared => println!("{name}: not on this store: {why}"),
            Err(NotApplicable(why)) => panic!("{name} cannot be run on this store and is not declared: {why}"),
        }
    });
}
