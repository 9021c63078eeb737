//! A transaction between its read and its write.

use std::fmt;
use std::sync::{Arc, Mutex};

use tokio::sync::OwnedMutexGuard;

use crate::transport::link::Link;

/// A transaction that has begun: names are watched.
pub(super) struct Begun {
    pub(super) link: Arc<Link>,
    /// The counter at the server, the largest that was seen before, and what it has to be before it counts grants.
    pub(super) counter: u64,
    pub(super) seen: u64,
    pub(super) first: u64,
    /// It has to be raised before it counts grants.
    pub(super) due: bool,
    /// It is watched as well.
    pub(super) watched: bool,
    pub(super) sent_at: u64,
    pub(super) doubts: u64,
    pub(super) turn: Mutex<Option<OwnedMutexGuard<()>>>,
}

impl fmt::Debug for Begun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Begun").field("counter", &self.counter).finish_non_exhaustive()
    }
}
