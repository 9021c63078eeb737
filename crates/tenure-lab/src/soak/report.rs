//! Result of a soak.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_testkit::history::At;

use super::absence::Absence;
use super::plan::{Plan, Where};

/// Findings: the first of them in words, the rest as numbers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Findings {
    counts: BTreeMap<Kind, u64>,
    first: Vec<String>,
}

/// Kind of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// Two held who exclude each other.
    Overlap,
    /// An update that was made under a lock was lost.
    LostUpdate,
    /// A later holder had a smaller fence.
    FenceFell,
    /// A later holder had the same fence.
    FenceRepeated,
    /// A call failed while a majority of the servers voted.
    Unreachable,
    /// Anything else.
    Other,
}

/// Number of findings that are kept in words.
const TOLD: usize = 20;

impl Findings {
    pub(super) fn add(&mut self, finding: impl Into<String>) {
        self.add_of(Kind::Other, finding);
    }

    pub(super) fn add_of(&mut self, kind: Kind, finding: impl Into<String>) {
        *self.counts.entry(kind).or_default() += 1;
        if self.first.len() < TOLD {
            self.first.push(finding.into());
        }
    }

    pub(super) fn extend(&mut self, findings: impl IntoIterator<Item = String>) {
        findings.into_iter().for_each(|finding| self.add(finding));
    }

    fn absorb(&mut self, other: Self) {
        for (kind, count) in other.counts {
            *self.counts.entry(kind).or_default() += count;
        }
        self.first.extend(other.first);
        self.first.truncate(TOLD);
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.counts.values().sum()
    }

    /// How many there are of a kind.
    pub fn of(&self, kind: Kind) -> u64 {
        self.counts.get(&kind).copied().unwrap_or(0)
    }

    /// The first of them.
    pub fn told(&self) -> &[String] {
        &self.first
    }
}

/// Counts and findings of tasks.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Tenures, and of them the exclusive ones, those that came from another task of the process, and those that were taken over.
    pub grants: u64,
    /// See above.
    pub exclusive: u64,
    /// See above.
    pub passed: u64,
    /// See above.
    pub adopted: u64,
    /// How often a guard was compared with what the store says of it.
    pub compared: u64,
    /// Calls that were dropped half-way, of every kind.
    pub cut: u64,
    /// Downgrades that were begun.
    pub downgrades: u64,
    /// Tenures that ended before they were given up.
    pub lost: u64,
    /// Renewals that were seen, where passwords change.
    pub renewed: u64,
    /// Grants of a quorum that took two rounds.
    pub second_rounds: u64,
    /// Calls that failed, by the class of the error.
    pub errors: BTreeMap<String, u64>,
    /// The longest wait of one who waits for ever.
    pub longest_wait: Duration,
    /// Waits that were begun, and tries that found the name held, where names are contended.
    pub waits: u64,
    /// See above.
    pub busy: u64,
    /// Calls without an answer, where names are contended.
    pub(super) outages: Vec<Outage>,
    /// Leases that may stay until their ttl has passed: a take-over or a release of them was not confirmed.
    pub(super) loose: BTreeSet<String>,
    /// Mistakes that the tasks have seen.
    pub findings: Findings,
}

/// A call that failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Outage {
    pub(super) who: String,
    pub(super) why: String,
    pub(super) began: At,
    pub(super) ended: At,
}

impl Tally {
    pub(super) fn failed(&mut self, error: &tenure::Error) {
        *self.errors.entry(format!("{:?}", error.kind())).or_default() += 1;
    }

    /// Reports calls that failed while the servers `could_answer`.
    pub(super) fn judge_outages(&mut self, could_answer: impl Fn(At, At) -> bool) {
        for Outage { who, why, began, ended } in self.outages.iter().filter(|call| could_answer(call.began, call.ended)) {
            let ms = (ended - began) / 1_000_000;
            self.findings.add_of(Kind::Unreachable, format!("{who}: a call failed after {ms} ms while a majority voted: {why}"));
        }
    }

    pub(super) fn absorb(&mut self, other: Self) {
        for (sum, more) in [
            (&mut self.grants, other.grants),
            (&mut self.exclusive, other.exclusive),
            (&mut self.passed, other.passed),
            (&mut self.adopted, other.adopted),
            (&mut self.compared, other.compared),
            (&mut self.cut, other.cut),
            (&mut self.downgrades, other.downgrades),
            (&mut self.lost, other.lost),
            (&mut self.renewed, other.renewed),
            (&mut self.second_rounds, other.second_rounds),
            (&mut self.waits, other.waits),
            (&mut self.busy, other.busy),
        ] {
            *sum += more;
        }
        for (kind, count) in other.errors {
            *self.errors.entry(kind).or_default() += count;
        }
        self.longest_wait = self.longest_wait.max(other.longest_wait);
        self.outages.extend(other.outages);
        self.loose.extend(other.loose);
        self.findings.absorb(other.findings);
    }
}

/// Result of a soak.
#[derive(Clone, Debug)]
pub struct Report {
    /// The plan of the run.
    pub plan: Plan,
    /// On what, in a word.
    pub store: &'static str,
    /// Counts and findings of its tasks.
    pub tally: Tally,
    /// How often something was broken.
    pub faults: u64,
    /// How many processes were killed.
    pub killed: u64,
    /// Grants by the store, those to processes that were killed among them.
    pub granted: u64,
    /// Faults of the servers of a quorum, or of another engine.
    pub servers: Option<ServerFaults>,
}

/// Faults of servers, and of the ways to them.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServerFaults {
    /// How often one was killed, and was back with its data or without.
    pub killed: u64,
    /// How often it was back without.
    pub emptied: u64,
    /// Connections that were cut, or fell silent, between a command and its reply.
    pub lost_replies: u64,
    /// How often one was away in each way, where one always is.
    pub(super) away: [u64; Absence::ALL.len()],
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plan, store, tally, faults, killed, granted, servers } = self;
        let findings = &tally.findings;
        for finding in findings.told() {
            writeln!(f, "!! {finding}")?;
        }
        let Tally { grants, exclusive, passed, adopted, compared, cut, downgrades, lost, errors, longest_wait, .. } = tally;
        let (seconds, seed, processes) = (plan.time.as_secs_f64(), plan.seed, plan.processes);
        let processes = if processes == 1 { "1 process".to_owned() } else { format!("{processes} processes") };
        write!(
            f,
            "{store}, {seconds} s, seed {seed}, {processes}: {grants} grants, {exclusive} exclusive, {passed} passed on, "
        )?;
        write!(
            f,
            "{adopted} adopted; {downgrades} downgrades, {cut} calls dropped, {lost} lost; {faults} faults, {killed} killed; "
        )?;
        if plan.rotates {
            write!(f, "{faults} rotations, {} renewals seen; ", tally.renewed)?;
        }
        let errors = errors.iter().map(|(kind, count)| format!("{count} {kind}")).collect::<Vec<_>>().join(", ");
        let errors = if errors.is_empty() { "none".to_owned() } else { errors };
        write!(f, "errors: {errors}; longest wait {} ms; ", longest_wait.as_millis())?;
        match servers {
            Some(servers) if matches!(plan.place, Where::QuorumOneAway(_)) => {
                let Tally { waits, busy, outages, .. } = tally;
                write!(f, "{waits} waits, {busy} tries found the name held; servers: ")?;
                for (absence, count) in Absence::ALL.iter().zip(servers.away) {
                    write!(f, "{count} {}, ", absence.words())?;
                }
                let unreachable = findings.of(Kind::Unreachable);
                write!(
                    f,
                    "{} calls failed while too few answered; {} overlaps, {} updates lost, {} fences fell, {} repeated, {unreachable} \
                     calls failed while a majority voted; ",
                    u64::try_from(outages.len()).unwrap_or(u64::MAX) - unreachable,
                    findings.of(Kind::Overlap),
                    findings.of(Kind::LostUpdate),
                    findings.of(Kind::FenceFell),
                    findings.of(Kind::FenceRepeated),
                )?;
            }
            Some(ServerFaults { killed, emptied, lost_replies, .. }) if matches!(plan.place, Where::Quorum) => {
                #[allow(clippy::cast_precision_loss, reason = "a share in words")]
                let share = 100.0 * tally.second_rounds as f64 / (grants - passed).max(1) as f64;
                write!(
                    f,
                    "{granted} grants by a majority, {share:.1} % of them in two rounds; servers: {killed} killed, {emptied} of them \
                     back empty, {lost_replies} replies lost; "
                )?;
            }
            Some(ServerFaults { killed, lost_replies, .. }) => {
                write!(f, "server: {killed} killed, {lost_replies} times cut off; ")?;
            }
            None => {}
        }
        write!(f, "{compared} claims compared, {} findings", findings.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_add_up() {
        let (mut all, mut few) = (Findings::default(), Findings::default());
        few.extend((0..30).map(|number| number.to_string()));
        all.add("first");
        all.absorb(few);
        assert_eq!((all.count(), all.told().len()), (31, TOLD));
        assert_eq!(all.told()[..2], ["first", "0"]);
    }
}
