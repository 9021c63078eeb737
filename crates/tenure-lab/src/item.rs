//! What the lab can run, and what came of it.

use std::fmt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_testkit::history::{Finding, Rule, Verdict};
use tenure_testkit::{History, Program};

/// What a run needs from outside.
#[derive(Clone, Debug)]
pub struct Lab {
    /// The program that becomes the processes under test.
    pub program: Program,
}

impl Lab {
    /// The command that starts a process under test.
    pub fn worker(&self, role: &[&str]) -> Command {
        self.program.role(role)
    }
}

/// Of what kind an [`Item`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// One of tenure's stores under a fault.
    Scenario,
    /// A lock as others write it, under a fault that breaks it.
    BrokenLock,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Scenario => "scenario",
            Self::BrokenLock => "broken lock",
        })
    }
}

/// Does something with a seed, and says what it showed.
pub type Run = Arc<dyn Fn(&Lab, u64) -> Shown + Send + Sync>;

/// One thing the lab can run.
#[derive(Clone)]
pub struct Item {
    /// As in `tenure lab run ID`.
    pub id: String,
    /// Of what kind.
    pub kind: Kind,
    /// What is under test: a store, or a scheme in words.
    pub subject: String,
    /// What is done to it, in words.
    pub fault: String,
    /// What must survive: see GUARANTEES.md. Broken locks have none.
    pub tier: Option<u8>,
    /// What must come of it.
    pub expected: Verdict,
    /// The rule that must be broken, where one must be.
    pub because: Option<Rule>,
    /// Does it, with a seed.
    pub run: Run,
}

impl Item {
    /// Whether what was found is what must be found, and nothing else.
    pub fn expects(&self, verdict: Verdict, findings: &[Finding]) -> bool {
        let found = |rule: Rule| findings.iter().any(|finding| finding.rule == rule);
        let all_known = findings.iter().all(|finding| self.knows(finding.rule));
        verdict == self.expected && self.because.is_none_or(found) && all_known
    }

    /// The tier in a table.
    pub fn tier(&self) -> String {
        self.tier.map_or_else(|| "-".to_owned(), |tier| tier.to_string())
    }

    /// Whether `rule` may be broken.
    pub fn knows(&self, rule: Rule) -> bool {
        let follows = match self.because {
            None => self.expected == Verdict::Fenced && rule == Rule::Overlap,
            // What was granted with a smaller fence was granted while the other held, and what a stale writer overwrites is lost.
            Some(Rule::FenceOrder) => rule == Rule::Overlap,
            Some(Rule::StaleWrite) => matches!(rule, Rule::LostUpdate | Rule::Overlap),
            Some(_) => false,
        };
        follows || self.because == Some(rule)
    }
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Item").field("id", &self.id).field("expected", &self.expected).finish_non_exhaustive()
    }
}

/// What a run showed, before it is judged.
#[derive(Clone, Debug)]
pub struct Shown {
    /// What every process saw.
    pub history: History,
    /// The story in words, a line each; empty where the history tells it.
    pub story: Vec<String>,
    /// How long after it was due each loss was told.
    pub told_after: Vec<Duration>,
    /// Why nothing can be concluded: the machine was too slow for the times of the run.
    pub starved: Option<String>,
}

impl Shown {
    /// A run whose history says everything.
    pub fn new(history: History) -> Self {
        Self { history, story: Vec::new(), told_after: Vec::new(), starved: None }
    }
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Of what.
    pub item: Item,
    /// By which it can be done again.
    pub seed: u64,
    /// What it showed.
    pub verdict: Verdict,
    /// As expected.
    pub ok: bool,
    /// What went wrong, which may be what was expected.
    pub findings: Vec<Finding>,
    /// What was seen; `None` when the run itself broke down.
    pub shown: Option<Shown>,
    /// Why the run broke down or is not as expected.
    pub trouble: Option<String>,
    /// How long it took.
    pub took: Duration,
}
