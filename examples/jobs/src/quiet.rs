//! Time without progress.

use std::time::{Duration, Instant};

/// Longest time between two looks that counts in full.
const TICK: Duration = Duration::from_millis(25);

/// How long a count has stood still. A busy machine, or a store that stalls, is no dead work: such time counts little.
#[derive(Debug)]
pub struct Quiet {
    count: i64,
    time: Duration,
    looked: Instant,
}

impl Quiet {
    /// Begins with a count of zero.
    #[allow(clippy::new_without_default, reason = "it begins now")]
    pub fn new() -> Self {
        Self { count: 0, time: Duration::ZERO, looked: Instant::now() }
    }

    /// Looks at the count. Returns how long it has stood still, and zero if it has changed.
    pub fn look(&mut self, count: i64) -> Duration {
        self.time += std::mem::replace(&mut self.looked, Instant::now()).elapsed().min(TICK);
        if count != std::mem::replace(&mut self.count, count) {
            self.time = Duration::ZERO;
        }
        self.time
    }
}
