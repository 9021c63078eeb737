//! The one checker: what a history shows to have gone wrong.
//!
//! All processes share one clock, so every rule is a comparison of times and numbers; nothing is searched.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{At, Claim, Event, History, What};

/// Kind of violation that a history may show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Holders have more of a name than its capacity, all within their validity.
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
    /// A lease that had ended counts as valid again.
    Revived,
    /// A holder noticed its loss late, or never.
    LateLoss,
    /// A lock was lost that nothing had taken away.
    FalseLoss,
    /// One that came later was served before one that waited.
    Overtaken,
    /// Nobody got the name in time.
    NotGranted,
    /// The name stayed taken for nobody.
    Leak,
    /// An error of no class.
    Untyped,
}

impl Rule {
    /// Whether it is about what must never happen, however slow the machine is; the others are about times.
    pub fn is_about_safety(self) -> bool {
        !matches!(self, Self::LateLoss | Self::FalseLoss | Self::NotGranted | Self::Leak)
    }
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
            Self::Revived => "a lease that had ended counts as valid again",
            Self::LateLoss => "the holder was not notified in time",
            Self::FalseLoss => "the holder lost what nobody took",
            Self::Overtaken => "one that came later was served first",
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

/// Result of a run.
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
    /// Returns the verdict on a history that has these `findings`.
    pub fn of(history: &History, findings: &[Finding]) -> Self {
        let refused = |event: &Event| matches!(event.what, What::Write { accepted: false, .. } | What::Read { value: None, .. });
        let fenced =
            || history.claims().iter().all(|acquisition| acquisition.fence.is_some() && acquisition.weight == history.capacity);
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
    if !history.events.is_sorted_by_key(|event| event.at) {
        let mut history = history.clone();
        history.events.sort_by_key(|event| event.at);
        return check(&history);
    }
    let claims = history.claims();
    let mut findings = Vec::new();
    overlaps(history.capacity, &claims, &mut findings);
    fence_order(history.capacity, &claims, &mut findings);
    tokens(&claims, &mut findings);
    order(history, &claims, &mut findings);
    findings.extend(claims.iter().filter_map(revived));
    resource(history, &claims, &mut findings);
    dues(history, &claims, &mut findings);
    losses(history, &claims, &mut findings);
    findings.extend(history.events.iter().filter_map(untyped));
    findings.sort_by_key(|finding| finding.at);
    findings
}

/// Finds overlaps by a sweep over the validity of the holders of each name.
fn overlaps(capacity: u32, claims: &[Claim], findings: &mut Vec<Finding>) {
    let mut names: BTreeMap<&str, Vec<(At, At, &Claim)>> = BTreeMap::new();
    for acquisition in claims {
        let spans = acquisition.validity.iter().filter(|(from, until)| from < until);
        names.entry(&acquisition.name).or_default().extend(spans.map(|&(from, until)| (from, until, acquisition)));
    }
    for (name, mut spans) in names {
        spans.sort_by_key(|&(from, ..)| from);
        let mut told: Vec<(&str, u32)> = Vec::new();
        for (index, &(from, _, acquisition)) in spans.iter().enumerate() {
            let inside: Vec<&Claim> = spans[..index]
                .iter()
                .filter(|(_, until, other)| *until > from && (&other.who, other.number) != (&acquisition.who, acquisition.number))
                .map(|&(_, _, other)| other)
                .collect();
            let weight: u64 = [acquisition].into_iter().chain(inside.iter().copied()).map(|held| u64::from(held.weight)).sum();
            if weight > u64::from(capacity) && !told.contains(&(&acquisition.who, acquisition.number)) {
                told.push((&acquisition.who, acquisition.number));
                let others = inside.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                findings.push(Finding {
                    rule: Rule::Overlap,
                    at: from,
                    text: format!("{acquisition} and {others} hold {name:?} at once"),
                });
            }
        }
    }
}

/// Checks the fences of exclusive holders. A holder that asked after another was granted has the
/// larger fence. No fence is given twice. If one holder had a fence, all later ones have one.
fn fence_order(capacity: u32, claims: &[Claim], findings: &mut Vec<Finding>) {
    let exclusive: Vec<&Claim> = claims.iter().filter(|acquisition| acquisition.weight == capacity).collect();
    for (index, later) in exclusive.iter().enumerate() {
        let is_wrong = |earlier: &&&Claim| {
            let known = earlier.granted <= later.asked && earlier.fence > later.fence;
            earlier.name == later.name && earlier.fence.is_some() && (earlier.fence == later.fence || known)
        };
        if let Some(earlier) = exclusive[..index].iter().find(is_wrong) {
            let text = format!("{later} asked after {earlier} was granted");
            findings.push(Finding { rule: Rule::FenceOrder, at: later.granted, text });
        }
    }
}

/// Checks that an owner token belongs to one acquisition. A lease may pass from task to task of one
/// process, each with the next fence.
fn tokens(claims: &[Claim], findings: &mut Vec<Finding>) {
    let mut owners: BTreeMap<&str, &Claim> = BTreeMap::new();
    for acquisition in claims {
        let Some(token) = &acquisition.token else { continue };
        let passed = |first: &&Claim| first.who == acquisition.who && first.fence.map(|fence| fence + 1) == acquisition.fence;
        if let Some(first) = owners.insert(token, acquisition).filter(|first| acquisition.fence.is_none() || !passed(first)) {
            let text = format!("{acquisition} and {first} are both {token}");
            findings.push(Finding { rule: Rule::TokenReuse, at: acquisition.granted, text });
        }
    }
}

/// Checks that a client that asks after another has queued holds only after it, unless that one has
/// left the queue. Of shares the order is seen only if the one that came later also ends first.
fn order(history: &History, claims: &[Claim], findings: &mut Vec<Finding>) {
    let mut told = BTreeSet::new();
    for Event { at: queued, who, what } in &history.events {
        let What::Queued { acquisition: number, name } = what else { continue };
        let leaves = |event: &&Event| {
            let its_own =
                matches!(&event.what, What::Failed { acquisition, .. } | What::Release { acquisition } if acquisition == number);
            event.at >= *queued && event.who == *who && (its_own || event.what == What::Died)
        };
        let left = history.events.iter().find(leaves).map_or(At::MAX, |event| event.at);
        let granted = |own: &&Claim| own.who == *who && own.number == *number && own.granted >= *queued;
        let served = claims.iter().find(granted).map_or(At::MAX, |acquisition| acquisition.granted);
        let overtakes = |other: &&Claim| {
            let came_later = other.name == *name && other.asked > *queued;
            came_later && other.in_time && other.granted < left && other.believed_until() <= served
        };
        if let Some(other) = claims.iter().find(overtakes).filter(|_| told.insert((who, number))) {
            let text = format!("{other} asked after {who}#{number} had queued");
            findings.push(Finding { rule: Rule::Overtaken, at: other.granted, text });
        }
    }
}

fn revived(ended: &Claim) -> Option<Finding> {
    let text = format!("{ended} had ended");
    ended.revived.map(|at| Finding { rule: Rule::Revived, at, text })
}

/// The guarded resource's own log: what a fence is for.
fn resource(history: &History, claims: &[Claim], findings: &mut Vec<Finding>) {
    let mut largest: Option<(u64, &str)> = None;
    // Of those whose store has no fences: nothing can refuse a stale one, and it is stale all the same.
    let (mut latest, mut told): (Option<&Claim>, Option<&Claim>) = (None, None);
    let mut last = (0, "nobody");
    // A share below the capacity orders nothing: nobody is refused for its fence.
    let is_share = |held: &Claim| held.weight < history.capacity;
    for Event { at, who, what } in &history.events {
        let (number, fence, accepted, read, wrote) = match what {
            What::Read { acquisition, fence, value } => (acquisition, fence, value.is_some(), value.unwrap_or(last.0), None),
            What::Write { acquisition, fence, read, wrote, accepted } => (acquisition, fence, *accepted, *read, Some(*wrote)),
            _ => continue,
        };
        let mut find = |rule, text| findings.push(Finding { rule, at: *at, text });
        let acquisition = claims
            .iter()
            .rfind(|acquisition| acquisition.who == *who && acquisition.number == *number && acquisition.granted <= *at);
        if !accepted {
            if let Some(acquisition) = acquisition.filter(|acquisition| acquisition.believes_at(*at)) {
                let is_later = |other: &Claim| {
                    let others = other.name == acquisition.name && other.granted <= *at && !is_share(other);
                    others && other.fence > acquisition.fence
                };
                if !claims.iter().any(is_later) {
                    find(Rule::RefusedHolder, format!("{acquisition} holds, nobody has a larger fence, and it was refused"));
                }
            }
            continue;
        }
        if let Some((before, other)) = largest.filter(|(before, _)| fence.is_none_or(|fence| fence < *before)) {
            let with = fence.map_or_else(|| "no fence".to_owned(), |fence| format!("fence {fence}"));
            find(Rule::StaleWrite, format!("{who}#{number} with {with} was let in after {other} with fence {before}"));
        }
        if let Some(acquisition) = acquisition.filter(|acquisition| acquisition.fence.is_none() && !is_share(acquisition)) {
            match latest.filter(|latest| latest.granted > acquisition.granted) {
                Some(later) if !told.is_some_and(|told| std::ptr::eq(told, acquisition)) => {
                    told = Some(acquisition);
                    find(Rule::StaleWrite, format!("{acquisition} was let in after {later}, which was granted later"));
                }
                Some(_) => {}
                None => latest = Some(acquisition),
            }
        }
        if read != last.0 {
            find(Rule::LostUpdate, format!("{who}#{number} read {read}, when {} had made it {}", last.1, last.0));
        }
        last = wrote.map_or(last, |wrote| (wrote, who));
        if !acquisition.is_some_and(is_share) {
            largest = largest.max(fence.map(|fence| (fence, who.as_str())));
        }
    }
}

/// Checks the events that had to come within a time.
fn dues(history: &History, claims: &[Claim], findings: &mut Vec<Finding>) {
    for Event { at, what, .. } in &history.events {
        let granted = |name: &str, within: u64| {
            let by = at.saturating_add(within);
            claims
                .iter()
                .any(|acquisition| acquisition.name == name && (*at..=by).contains(&acquisition.granted) && acquisition.in_time)
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

/// Checks that holders are notified of a loss in time, and only if there was one.
fn losses(history: &History, claims: &[Claim], findings: &mut Vec<Finding>) {
    for Event { at, what, .. } in &history.events {
        let What::LossDue { name, within } = what else { continue };
        let by = at.saturating_add(*within);
        let held = claims.iter().filter(|acquisition| {
            acquisition.name == *name && acquisition.granted <= *at && acquisition.ended.is_none_or(|end| end > *at)
        });
        let held: Vec<&Claim> = held.collect();
        if held.is_empty() {
            findings.push(Finding { rule: Rule::LateLoss, at: *at, text: format!("nobody held {name:?} that was to be lost") });
        }
        for acquisition in held.into_iter().filter(|acquisition| acquisition.ended.is_none_or(|end| end > by)) {
            let when = acquisition.ended.map_or_else(|| "never".to_owned(), |end| format!("after {}", span(end - at)));
            let text = format!("{acquisition} was notified {when}, not within {}", span(*within));
            findings.push(Finding { rule: Rule::LateLoss, at: by, text });
        }
    }
    if history.keeps {
        let lost = claims.iter().filter_map(|held| held.lost.as_ref().map(|lost| (held, lost)));
        findings.extend(lost.map(|(held, (at, why))| Finding { rule: Rule::FalseLoss, at: *at, text: format!("{held}: {why}") }));
    }
}

fn untyped(event: &Event) -> Option<Finding> {
    match &event.what {
        What::Failed { acquisition, kind: None, text } => {
            Some(Finding { rule: Rule::Untyped, at: event.at, text: format!("{}#{acquisition} failed: {text}", event.who) })
        }
        _ => None,
    }
}

/// A span of nanoseconds, for people.
pub(super) fn span(nanos: u64) -> String {
    format!("{} ms", nanos / 1_000_000)
}
