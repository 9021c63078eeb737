//! When holders were notified of losses: not before they were due, and how long after.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_testkit::history::{Event, History, What};

/// The first notice that a lease ran out which came before the validity had ended.
pub(super) fn told_early(history: &History) -> Option<&Event> {
    let mut ends = BTreeMap::new();
    history.events.iter().find(|event| match &event.what {
        What::Grant { acquisition, until, .. } | What::Valid { acquisition, until } => {
            ends.insert((&event.who, *acquisition), *until);
            false
        }
        What::Lost { acquisition, why } => {
            let end = ends.get(&(&event.who, *acquisition)).copied().flatten();
            why.starts_with("the lease ran out") && end.is_none_or(|end| event.at < end)
        }
        _ => false,
    })
}

/// How long after it was due each holder was notified of its loss.
pub(super) fn told_after(history: &History) -> Vec<Duration> {
    let claims = history.claims();
    let dues = history.events.iter().filter_map(|event| match &event.what {
        What::LossDue { name, .. } => Some((event.at, name)),
        _ => None,
    });
    let told = dues.flat_map(|(at, name)| {
        let held = claims.iter().filter(move |acquisition| acquisition.name == *name && acquisition.granted <= at);
        held.filter_map(move |acquisition| acquisition.lost.as_ref().and_then(|(told, _)| told.checked_sub(at)))
    });
    told.map(Duration::from_nanos).collect()
}
