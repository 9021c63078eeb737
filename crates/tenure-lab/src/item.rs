//! Items that the lab can run, and their outcomes.

use std::fmt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_testkit::history::{Finding, Rule, Verdict};
use tenure_testkit::{History, Program};

/// Environment of a run.
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

/// Kind of an [`Item`].
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
    /// Scenario or broken lock.
    pub kind: Kind,
    /// Subject of the test: a store, or a scheme in words.
    pub subject: String,
    /// The fault that it suffers, in words.
    pub fault: String,
    /// The guarantee that must survive: see GUARANTEES.md. Broken locks have none.
    pub tier: Option<u8>,
    /// The verdict that it must have.
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

/// Result of a run, before it is judged.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The events of every process.
    pub history: History,
    /// The story in words, a line each; empty where the history tells it.
    pub story: Vec<String>,
    /// Delay of each reported loss after it was due.
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

/// Outcome of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The item that ran.
    pub item: Item,
    /// By which it can be done again.
    pub seed: u64,
    /// Verdict on its history.
    pub verdict: Verdict,
    /// As expected.
    pub ok: bool,
    /// Broken rules, which may be the expected ones.
    pub findings: Vec<Finding>,
    /// History and story; `None` if the run itself broke down.
    pub shown: Option<Shown>,
    /// Why the run broke down or is not as expected.
    pub trouble: Option<String>,
    /// It is not as expected, and only because something did not come in time, or came late. What ran beside may have kept the
    /// processor from a server or a process, which no timer of the lab sees. A hole that was not shown counts as well.
    pub is_late: bool,
    /// How long it took.
    pub took: Duration,
}
