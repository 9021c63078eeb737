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
//! them by name. A case that *fails* cannot be excused: it says that the store breaks the contract of [`Store`].
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

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure::store::Store;
use tenure::{Fence, Lease, Name};

pub use crate::cases::cancelled::functions as cancelled_functions;
pub use crate::faulty::{Fate, Faulty, Operation};
pub use crate::overlap::Counter;

/// A store under test. Every subject has names of its own, which nobody else uses.
#[async_trait]
pub trait Subject: Send + Sync {
    /// Another handle on the same names, as another process would have.
    async fn store(&self) -> Arc<dyn Store>;

    /// Another process that uses the same names. Without one the cases of [`exceptions::ONE_PROCESS`] cannot be run.
    fn process(&self) -> Result<Box<dyn Process>, NotApplicable> {
        Err(NotApplicable("its subject starts no other processes"))
    }

    /// Puts something at a name that no tenure made. Without it the cases of [`exceptions::NO_FOREIGN_LOCKS`] cannot be run.
    fn plant(&self, _name: &Name, _what: &Plant) -> Result<(), NotApplicable> {
        Err(NotApplicable("nobody else keeps locks there"))
    }

    /// Makes the store silent, or lets it answer again. Without it the cases of [`exceptions::NEVER_SILENT`] cannot be run.
    fn silence(&self, _silent: bool) -> Result<(), NotApplicable> {
        Err(NotApplicable("it has no link that falls silent"))
    }

    /// Whether a semaphore stays at its name when nobody holds any of its permits, as an object of its own. Then the cases in which
    /// names change their kind leave semaphores out.
    fn semaphores_stay(&self) -> bool {
        false
    }

    /// How much longer than its ttl the store may keep a lease or a queue entry. Not zero for one whose clock has whole seconds.
    fn overtime(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether the store refuses this name as invalid, because of the layout that it shares with other clients.
    fn refuses(&self, _name: &str) -> bool {
        false
    }

    /// The cases that cannot be run on this store.
    fn exceptions(&self) -> Vec<&'static str> {
        Vec::new()
    }
}

/// A holder in a process of its own, on the names of a [`Subject`]. It is killed when it is dropped.
///
/// All locks are mutexes, and one is asked for or held at a time. A call that waits for its outcome fails the test after a while.
pub trait Process: Send {
    /// Takes `name`, waiting for it, and renews it from then on.
    fn acquire(&mut self, name: &str, ttl: Duration) -> Option<Fence>;

    /// Begins to wait for `name`.
    fn begin_acquire(&mut self, name: &str, ttl: Duration);

    /// Gives up its guard and returns the lease, which stays.
    fn hand_over(&mut self) -> Lease;

    /// Takes over a lease that another gave up so.
    fn adopt(&mut self, lease: &Lease) -> Option<Fence>;

    /// Releases what it holds.
    fn release(&mut self);

    /// Whether its guard says that the lease is lost.
    fn is_lost(&mut self) -> bool;

    /// Begins to take and release `name` so many times, each time with a visit to the [`Counter`] in `dir`.
    fn begin_visits(&mut self, name: &str, dir: &Path, times: u64);

    /// Waits until all visits were made.
    fn finish_visits(&mut self);

    /// Stops it as `SIGSTOP` does, or lets it go on.
    fn stop(&mut self, stopped: bool);

    /// Kills it as `SIGKILL` does, and waits for its end.
    fn kill(&mut self);
}

/// A value that another client leaves at a name.
#[derive(Clone, Debug)]
pub enum Plant {
    /// A lock of a client that knows nothing of us, with its ttl if it has one.
    Value(&'static [u8], Option<Duration>),
    /// No lock at all.
    OtherType,
    /// Nothing any more.
    Nothing,
}

/// Why a case cannot be run on a store.
#[derive(Clone, Copy, Debug)]
pub struct NotApplicable(pub &'static str);

/// How a case ends if it does not panic.
pub type Outcome = Result<(), NotApplicable>;

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

/// Which cases run on a store. With `TENURE_TEST_ALL` in the environment each of them runs everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// All of them: one store of each engine.
    Whole,
    /// All but the groups `cancelled`, `guards` and `waiting`, which test what the core makes of a store. Another store of the same
    /// engine runs those.
    Contract,
    /// Fifteen cases: for a store that differs from another one by prefixes, profiles, the form of its scripts or its connections.
    Variant,
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
