//! A store under test, and what a case may ask of it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure::store::Store;
use tenure::{Fence, Lease, Name};

/// A store under test. Every subject has names of its own, which nobody else uses.
#[async_trait]
pub trait Subject: Send + Sync {
    /// Another handle on the same names, as another process would have.
    async fn store(&self) -> Arc<dyn Store>;

    /// Another process that uses the same names. Without one the cases of [`exceptions::ONE_PROCESS`](crate::exceptions::ONE_PROCESS) cannot be run.
    fn process(&self) -> Result<Box<dyn Process>, NotApplicable> {
        Err(NotApplicable("its subject starts no other processes"))
    }

    /// Puts something at a name that no tenure made. Without it the cases of [`exceptions::NO_FOREIGN_LOCKS`](crate::exceptions::NO_FOREIGN_LOCKS) cannot be run.
    fn plant(&self, _name: &Name, _what: &Plant) -> Result<(), NotApplicable> {
        Err(NotApplicable("nobody else keeps locks there"))
    }

    /// Makes the store silent, or lets it answer again. Without it the cases of [`exceptions::NEVER_SILENT`](crate::exceptions::NEVER_SILENT) cannot be run.
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

    /// Begins to take and release `name` so many times, each time with a visit to the [`Counter`](crate::Counter) in `dir`.
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
