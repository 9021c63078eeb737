//! Time without progress.

use std::time::{Duration, Instant};

/// How long a count has stood still. A busy machine, or a store that stalls, is no dead work: such time counts little.
#[derive(Debug)]
pub struct Quiet {
    /// Longest time between two looks that counts in full.
    tick: Duration,
    count: i64,
    time: Duration,
    /// Time since the beginning, counted in the same way.
    pub whole: Duration,
    looked: Instant,
}

impl Quiet {
    /// Begins now, with a count of zero. At most a `tick` counts between two looks.
    pub fn begin(tick: Duration) -> Self {
        Self { tick, count: 0, time: Duration::ZERO, whole: Duration::ZERO, looked: Instant::now() }
    }

    /// Looks at the count. Returns how long it has stood still, and zero if it has changed.
    pub fn look(&mut self, count: i64) -> Duration {
        let passed = std::mem::replace(&mut self.looked, Instant::now()).elapsed().min(self.tick);
        self.whole += passed;
        self.time += passed;
        if count != std::mem::replace(&mut self.count, count) {
            self.time = Duration::ZERO;
        }
        self.time
    }
}
