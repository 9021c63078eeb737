//! Outcome of a run.

use std::fmt::Write;

use tenure_testkit::History;
use tenure_testkit::history::{Finding, timeline};

use super::coverage::Coverage;

/// The result of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explored {
    /// By which it can be made again.
    pub seed: u64,
    /// The tier: how much had to survive.
    pub tier: u8,
    /// The events at every process.
    pub history: History,
    /// The broken rules.
    pub findings: Vec<Finding>,
    /// The faults and paths that it met.
    pub coverage: Coverage,
}

impl Explored {
    /// The run as a picture, with what went wrong.
    pub fn story(&self) -> String {
        let mut story = timeline::picture(&self.history);
        for finding in &self.findings {
            let _ = writeln!(story, "at {} ms: {finding}", finding.at / 1_000_000);
        }
        story
    }
}
