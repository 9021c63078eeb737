//! Our client in the dialects of others: against itself, and beside the clients that the articles teach.
//!
//! These are searched where the specimens are, by the same model of a server and with the same clients of the others.

use tenure_testkit::history::Rule;

use super::{Expected, Model, Promise, Searched};
use crate::specimens::dialects::{Dialect, dialects};
use crate::specimens::story;

/// The dialects as they stand, alone and beside others that make none of their known mistakes.
pub(crate) fn standing() -> Vec<Model> {
    models(|expected| expected == Expected::Holds)
}

/// Without each of their rules, and with each of the others' mistakes.
pub(crate) fn broken() -> Vec<Model> {
    models(|expected| expected != Expected::Holds)
}

fn models(wanted: fn(Expected) -> bool) -> Vec<Model> {
    dialects().into_iter().map(model).filter(|model| wanted(model.expected)).collect()
}

fn model(dialect: Dialect) -> Model {
    let expected = match dialect.breaks {
        None => Expected::Holds,
        Some(rule) => Expected::Breaks(promise(rule)),
    };
    let (id, of, bounds) = (dialect.id.to_owned(), dialect.of.to_owned(), dialect.bounds());
    Model { id, of, bounds, expected, search: Box::new(move || searched(&dialect)) }
}

fn searched(dialect: &Dialect) -> Searched {
    let found = dialect.search();
    let broken = found.path.as_ref().map(|path| (dialect.broken_by(path), path));
    let counterexample = broken.as_ref().map(|(rule, path)| {
        let last = format!("BROKEN: {}", promise(*rule).words());
        story(&dialect.setting, path).into_iter().chain([last]).collect()
    });
    Searched {
        states: found.states,
        depth: found.depth,
        complete: found.path.is_none(),
        missed: found.missed,
        broken: broken.map(|(rule, _)| promise(rule)),
        counterexample,
        took: found.took,
    }
}

const fn promise(rule: Rule) -> Promise {
    match rule {
        Rule::Leak => Promise::NoOrphan,
        Rule::FalseLoss => Promise::NoFalseLoss,
        _ => Promise::OneHolder,
    }
}
