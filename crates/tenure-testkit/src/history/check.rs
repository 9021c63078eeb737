//! The one checker: what a history shows to have gone wrong.
//!
//! All processes share one clock, so every rule is a comparison of times and numbers; nothing is searched.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{At, Claim, Event, History, What};

/// What must not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// More of a name is believed to be held than there is.
    Overlap,
    /// A later exclusive holder's fence is not larger.
    FenceOrder,
    /// The resource took a write of a holder after one with a larger fence had come.
    StaleWrite,
    /// The resource refused the present holder.
    RefusedHolder,
    /// A write was made from a value that another had replaced meanwhile.
    LostUpdate,
    /// Two claims have one token.
    TokenReuse,
    /// A loss was told late, or never.
    LateLoss,
    /// A lock was lost that nothing had taken away.
    FalseLoss,
    /// Nobody got the name in time.
    NotGranted,
    /// The name stayed taken for nobody.
    Leak,
    /// An error of no class.
    Untyped,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Overlap => "two hold at once",
            Self::FenceOrder => "a later holder's fence is not larger",
            Self::StaleWrite => "a stale holder's write was taken",
            Self::RefusedHolder => "the present holder was refused",
            Self::LostUpdate => "an update was lost",
            Self::TokenReuse => "two claims have one token",
            Self::LateLoss => "the holder was not told in time",
            Self::FalseLoss => "the holder lost what nobody took",
            Self::NotGranted => "nobody got the name in time",
            Self::Leak => "the name stayed taken for nobody",
            Self::Untyped => "an error without a class",
        })
    }
}

/// One thing that went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which rule was broken.
    pub rule: Rule,
    /// When.
    pub at: At,
    /// By whom, in words.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.text)
    }
}

/// What a run has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing went wrong.
    Holds,
    /// Holders overlapped or a stale one wrote on, and fences kept the resource whole.
    Fenced,
    /// Something went wrong that nothing makes good.
    Broken,
    /// The machine was starved: nothing can be said.
    Inconclusive,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Holds => "holds",
            Self::Fenced => "fenced",
            Self::Broken => "broken",
            Self::Inconclusive => "inconclusive",
        })
    }
}

impl Verdict {
    /// What `findings` make of a history.
    pub fn of(history: &History, findings: &[Finding]) -> Self {
        let refused = |event: &Event| matches!(event.what, What::Write { accepted: false, .. } | What::Read { value: None, .. });
        let fenced = || history.claims().iter().all(|claim| claim.fence.is_some());
        if findings.iter().any(|finding| finding.rule != Rule::Overlap) {
            Self::Broken
        } else if !findings.is_empty() {
            if fenced() { Self::Fenced } else { Self::Broken }
        } else if history.events.iter().any(refused) {
            Self::Fenced
        } else {
            Self::Holds
        }
    }
}

/// Everything that went wrong, in order of time.
pub fn check(history: &History) -> Vec<Finding> {
    let claims = history.claims();
    let mut findings = Vec::new();
    overlaps(history.capacity, &claims, &mut findings);
    fence_order(history.capacity, &claims, &mut findings);
    tokens(&claims, &mut findings);
    resource(history, &claims, &mut findings);
    dues(history, &claims, &mut findings);
    losses(history, &claims, &mut findings);
    findings.extend(history.events.iter().filter_map(untyped));
    findings.sort_by_key(|finding| finding.at);
    findings
}

/// A sweep over the beliefs of each name.
fn overlaps(capacity: u32, claims: &[Claim], findings: &mut Vec<Finding>) {
    let mut names: BTreeMap<&str, Vec<(At, At, &Claim)>> = BTreeMap::new();
    for claim in claims {
        let beliefs = claim.beliefs.iter().filter(|(from, until)| from < until);
        names.entry(&claim.name).or_default().extend(beliefs.map(|&(from, until)| (from, until, claim)));
    }
    for (name, mut beliefs) in names {
        beliefs.sort_by_key(|&(from, ..)| from);
        let mut told: Vec<(&str, u32)> = Vec::new();
        for (index, &(from, _, claim)) in beliefs.iter().enumerate() {
            let inside: Vec<&Claim> = beliefs[..index]
                .iter()
                .filter(|(_, until, other)| *until > from && (&other.who, other.number) != (&claim.who, claim.number))
                .map(|&(_, _, other)| other)
                .collect();
            let weight: u32 = claim.weight + inside.iter().map(|other| other.weight).sum::<u32>();
            if weight > capacity && !told.contains(&(&claim.who, claim.number)) {
                told.push((&claim.who, claim.number));
                let others = inside.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                findings.push(Finding {
                    rule: Rule::Overlap,
                    at: from,
                    text: format!("{claim} and {others} hold {name:?} at once"),
                });
            }
        }
    }
}

/// Of two exclusive holders, the one that asked after the other was granted has the larger fence; and no fence is given twice.
fn fence_order(capacity: u32, claims: &[Claim], findings: &mut Vec<Finding>) {
    let exclusive: Vec<(&Claim, u64)> =
        claims.iter().filter(|claim| claim.weight == capacity).filter_map(|claim| Some((claim, claim.fence?))).collect();
    for (index, &(later, fence)) in exclusive.iter().enumerate() {
        let earlier = exclusive[..index].iter().filter(|(earlier, _)| earlier.name == later.name);
        let wrong = |(earlier, before): &&(&Claim, u64)| *before == fence || (earlier.granted <= later.asked && *before > fence);
        if let Some((earlier, _)) = earlier.clone().find(wrong) {
            let text = format!("{later} asked after {earlier} was granted");
            findings.push(Finding { rule: Rule::FenceOrder, at: later.granted, text });
        }
    }
}

fn tokens(claims: &[Claim], findings: &mut Vec<Finding>) {
    let mut owners: BTreeMap<&str, &Claim> = BTreeMap::new();
    for claim in claims {
        let Some(token) = &claim.token else { continue };
        if let Some(first) = owners.insert(token, claim) {
            let text = format!("{claim} and {first} are both {token}");
            findings.push(Finding { rule: Rule::TokenReuse, at: claim.granted, text });
        }
    }
}

/// The guarded resource's own log: what a fence is for.
fn resource(history: &History, claims: &[Claim], findings: &mut Vec<Finding>) {
    let mut largest: Option<(u64, &str)> = None;
    let mut last = None;
    for Event { at, who, what } in &history.events {
        let (claim, fence, accepted, write) = match what {
            What::Read { claim, fence, value } => (claim, fence, value.is_some(), None),
            What::Write { claim, fence, read, wrote, accepted } => (claim, fence, *accepted, Some((*read, *wrote))),
            _ => continue,
        };
        let mut find = |rule, text| findings.push(Finding { rule, at: *at, text });
        if !accepted {
            let present = claims.iter().any(|held| held.who == *who && held.number == *claim && held.believes_at(*at));
            if present && fence.is_some() && !claims.iter().any(|other| other.granted <= *at && other.fence > *fence) {
                find(Rule::RefusedHolder, format!("{who}#{claim} holds with the largest fence and was refused"));
            }
            continue;
        }
        if let (Some(fence), Some((before, other))) = (fence, largest)
            && *fence < before
        {
            find(Rule::StaleWrite, format!("{who}#{claim} with fence {fence} was let in after {other} with fence {before}"));
        }
        if let Some((read, wrote)) = write {
            if let Some((value, other)) = last.filter(|&(value, _)| value != read) {
                find(Rule::LostUpdate, format!("{who}#{claim} wrote {wrote} from {read}, when {other} had made it {value}"));
            }
            last = Some((wrote, who));
        }
        largest = largest.max(fence.map(|fence| (fence, who.as_str())));
    }
}

/// What had to come within a time.
fn dues(history: &History, claims: &[Claim], findings: &mut Vec<Finding>) {
    for Event { at, what, .. } in &history.events {
        let granted = |name: &str, within: u64| {
            let by = at.saturating_add(within);
            claims.iter().any(|claim| claim.name == name && (*at..=by).contains(&claim.granted))
        };
        let mut find = |rule, text| findings.push(Finding { rule, at: *at, text });
        match what {
            What::GrantDue { name, within } if !granted(name, *within) => {
                find(Rule::NotGranted, format!("{name:?} was granted to nobody within {}", span(*within)));
            }
            What::FreeDue { name, within } => {
                let by = at.saturating_add(*within);
                let free = |event: &Event| {
                    let is_free = matches!(&event.what, What::Seen { name: seen, holder: None, .. } if seen == name);
                    is_free && (*at..=by).contains(&event.at)
                };
                if !history.events.iter().any(free) && !granted(name, *within) {
                    find(Rule::Leak, format!("{name:?} was not free within {}", span(*within)));
                }
            }
            What::Seen { name, holder: Some(holder), forever: true } => {
                find(Rule::Leak, format!("{name:?} is held by {holder} and nothing will ever end that"));
            }
            _ => {}
        }
    }
}

/// A loss is told in time, and only when there was one.
fn losses(history: &History, claims: &[Claim], findings: &mut Vec<Finding>) {
    for Event { at, what, .. } in &history.events {
        let What::LossDue { name, within } = what else { continue };
        let by = at.saturating_add(*within);
        let held =
            claims.iter().filter(|claim| claim.name == *name && claim.granted <= *at && claim.ended.is_none_or(|end| end > *at));
        for claim in held.filter(|claim| claim.ended.is_none_or(|end| end > by)) {
            let when = claim.ended.map_or_else(|| "never".to_owned(), |end| format!("after {}", span(end - at)));
            let text = format!("{claim} was told {when}, not within {}", span(*within));
            findings.push(Finding { rule: Rule::LateLoss, at: by, text });
        }
    }
    if history.keeps {
        let lost = claims.iter().filter_map(|claim| claim.lost.as_ref().map(|lost| (claim, lost)));
        findings.extend(lost.map(|(claim, (at, why))| Finding {
            rule: Rule::FalseLoss,
            at: *at,
            text: format!("{claim}: {why}"),
        }));
    }
}

fn untyped(event: &Event) -> Option<Finding> {
    match &event.what {
        What::Failed { claim, kind: None, text } => {
            Some(Finding { rule: Rule::Untyped, at: event.at, text: format!("{}#{claim} was told: {text}", event.who) })
        }
        _ => None,
    }
}

/// A span of nanoseconds, for people.
pub(super) fn span(nanos: u64) -> String {
    format!("{} ms", nanos / 1_000_000)
}
