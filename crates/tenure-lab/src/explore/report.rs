//! Many runs: on several threads, for a number of seeds or for a time.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::{Coverage, Explored, Flaw, flawed, one};

/// How far to explore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// A number of seeds.
    Runs(u64),
    /// For so long.
    Time(Duration),
}

/// The results of many runs.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// How many there were.
    pub runs: u64,
    /// Of them, those in which the store lost data or time.
    pub tier_2: u64,
    /// How long they took.
    pub took: Duration,
    /// The faults and paths that they met.
    pub coverage: Coverage,
    /// The seeds of those in which something went wrong.
    pub failed: Vec<u64>,
    /// The first of those, whole.
    pub failures: Vec<Explored>,
}

/// How many failures are kept whole.
const KEPT: usize = 10;

impl Report {
    /// How many runs there were in a second.
    pub fn per_second(&self) -> u64 {
        let millis = u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX).max(1);
        self.runs * 1_000 / millis
    }

    fn add(&mut self, part: Self) {
        self.runs += part.runs;
        self.tier_2 += part.tier_2;
        self.coverage.add(&part.coverage);
        self.failed.extend(part.failed);
        self.failures.extend(part.failures);
        self.failed.sort_unstable();
        self.failures.sort_by_key(|explored| explored.seed);
        self.failures.truncate(KEPT);
    }

    fn count(&mut self, explored: Explored) {
        self.runs += 1;
        self.tier_2 += u64::from(explored.tier == 2);
        self.coverage.add(&explored.coverage);
        if !explored.findings.is_empty() {
            self.failed.push(explored.seed);
            self.failures.push(explored);
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} runs in {:.1?}, {} a second, {} of them tier 2", self.runs, self.took, self.per_second(), self.tier_2)?;
        write!(f, "{}", self.coverage)?;
        for explored in &self.failures {
            write!(f, "\n{}", explored.story())?;
        }
        if self.failed.is_empty() { Ok(()) } else { writeln!(f, "\n{} seeds failed: {:?}", self.failed.len(), self.failed) }
    }
}

/// How many runs a thread makes before it tells of them.
const CHUNK: u64 = 64;

/// Explores from `first_seed` on, with `jobs` threads, telling `on_progress` from time to time what
/// there is so far.
pub fn many(first_seed: u64, extent: Extent, jobs: usize, mut on_progress: impl FnMut(&Report)) -> Report {
    let began = Instant::now();
    let end = match extent {
        Extent::Runs(runs) => first_seed.saturating_add(runs),
        Extent::Time(_) => u64::MAX,
    };
    let over = || matches!(extent, Extent::Time(span) if began.elapsed() >= span);
    let next = AtomicU64::new(first_seed);
    let (sender, parts) = mpsc::channel();
    let mut report = Report::default();
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            let (sender, next, over) = (sender.clone(), &next, &over);
            scope.spawn(move || {
                loop {
                    let from = next.fetch_add(CHUNK, Ordering::Relaxed);
                    if from >= end || over() {
                        return;
                    }
                    let mut part = Report::default();
                    (from..end.min(from + CHUNK)).for_each(|seed| part.count(one(seed)));
                    if sender.send(part).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for part in parts {
            report.add(part);
            report.took = began.elapsed();
            on_progress(&report);
        }
    });
    report
}

/// The first run, of `runs` from `first_seed` on, that finds out what is broken.
pub fn search(flaw: Flaw, first_seed: u64, runs: u64) -> Option<Explored> {
    (first_seed..first_seed + runs).map(|seed| flawed(seed, flaw)).find(|explored| !explored.findings.is_empty())
}
