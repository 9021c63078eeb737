//! An acquisition that is followed.

use std::sync::Weak;

use tenure::Guard;
use tenure_testkit::history::{Finding, Rule};

use super::clock::{At, SimClock};

#[derive(Debug)]
pub(super) struct Watched {
    pub(super) who: String,
    pub(super) clock: SimClock,
    pub(super) acquisition: u32,
    pub(super) guard: Weak<Guard>,
    /// The share at the grant.
    pub(super) granted: tenure::Share,
    /// How much longer than the validity the work may go on, by the process's clock.
    pub(super) stop: u64,
    pub(super) until: At,
    pub(super) latest: Option<At>,
    pub(super) jeopardy: bool,
    /// That it claims too much was reported.
    pub(super) told: bool,
}

impl Watched {
    pub(super) fn finds(&self, findings: &mut Vec<Finding>, rule: Rule, at: At, what: &str) {
        findings.push(Finding { rule, at, text: format!("{}#{}: {what}", self.who, self.acquisition) });
    }
}
