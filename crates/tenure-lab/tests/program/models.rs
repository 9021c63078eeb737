//! The protocol keeps its promises in every state within the bounds, and without any of its rules
//! it does not.

#![allow(clippy::print_stdout, reason = "the counts and the stories are what these tests are read for")]

use std::collections::BTreeSet;

use tenure_lab::models::{self, Expected, Model, Searched};

/// How many states there are, of each model that holds. A count that changes says that the model
/// has changed.
const STATES: [(&str, usize); 32] = [
    ("lease", 162_724),
    ("lease-again", 354_233),
    ("lease-three", 94_848),
    ("lease-shorter", 89_463),
    ("late", 195_141),
    ("later", 44_396),
    ("fence", 304_223),
    ("fence-one-step", 69_130),
    ("supplied", 50_177),
    ("adoption", 197_222),
    ("adoption-late", 39_244),
    ("queue", 183_366),
    ("queue-again", 213_457),
    ("queue-repeated", 228_155),
    ("queue-late", 120_300),
    ("queue-served", 41_938),
    ("queue-unmarked", 45_041),
    ("cohort", 18_445),
    ("cohort-again", 43_640),
    ("quorum", 30_737),
    ("quorum-twice", 344_508),
    ("quorum-forgetful", 520_363),
    ("quorum-forgetful-twice", 496_081),
    ("quorum-older", 524_202),
    ("php", 44_993),
    ("getset", 46_707),
    ("watch", 10_033),
    ("watch-late", 10_558),
    ("php-beside", 280_256),
    ("getset-beside", 86_185),
    ("getset-clocks", 790),
    ("watch-beside", 40_773),
];

/// Searches a model, prints what came of it, and sees that this is what must come of it.
fn searched(model: &Model) -> Searched {
    let searched = model.search();
    let Searched { states, depth, took, .. } = &searched;
    println!("{}: {}\n  within {}\n  {states} states, {depth} steps deep, {took:.1?}", model.id, model.of, model.bounds);
    for line in searched.counterexample.iter().flatten() {
        println!("    {line}");
    }
    assert!(model.is_as_expected(&searched), "{}: {:?}, and it is {searched:#?}", model.id, model.expected);
    searched
}

fn of(kind: impl Fn(&Expected) -> bool) -> Vec<Model> {
    models::all().into_iter().filter(|model| kind(&model.expected)).collect()
}

/// The protocol as it stands, a part of the models to each test, so that they run side by side.
fn holds(ids: &[&str]) {
    for model in of(|expected| *expected == Expected::Holds).iter().filter(|model| ids.contains(&&*model.id)) {
        let found = searched(model);
        assert!(found.complete && STATES.contains(&(&model.id, found.states)), "{}: {} states", model.id, found.states);
    }
}

#[test]
fn leases_hold() {
    holds(&["lease", "lease-again", "lease-three", "lease-shorter", "adoption"]);
}

#[test]
fn leases_hold_where_commands_run_late_and_fences_rise() {
    holds(&["late", "later", "adoption-late", "supplied", "fence", "fence-one-step"]);
}

#[test]
fn queues_hold() {
    holds(&["queue", "queue-again", "queue-repeated", "queue-late", "queue-served", "queue-unmarked"]);
}

#[test]
fn cohorts_hold() {
    holds(&["cohort", "cohort-again"]);
}

#[test]
fn quorums_hold() {
    holds(&["quorum", "quorum-twice", "quorum-forgetful", "quorum-forgetful-twice", "quorum-older"]);
}

#[test]
fn schemes_hold_among_ourselves() {
    holds(&["php", "getset", "watch", "watch-late"]);
}

#[test]
fn schemes_hold_beside_others_that_make_no_mistake() {
    holds(&["php-beside", "getset-beside", "getset-clocks", "watch-beside"]);
}

#[test]
fn no_rule_can_be_left_out() {
    for model in of(|expected| *expected != Expected::Holds) {
        let found = searched(&model);
        let story = found.counterexample.expect("a broken model has a story");
        let last = story.last().expect("a story has an end");
        assert!(last.contains("BROKEN: "), "{}: {story:#?}", model.id);
        // A tick is shown only by its ends, every other step by one line.
        assert!(story.len() <= 25, "{}: {story:#?}", model.id);
    }
}

#[test]
fn every_model_is_known_by_its_own_name_and_counted() {
    let all = models::all().into_iter().chain(models::larger());
    let ids: Vec<String> = all.map(|model| model.id).collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "{ids:?}");
    let standing: Vec<String> = of(|expected| *expected == Expected::Holds).into_iter().map(|model| model.id).collect();
    assert_eq!(standing, STATES.map(|(id, _)| id.to_owned()));
}

#[test]
#[ignore = "takes minutes and some gigabytes: run with --release"]
fn all_of_it_holds_within_larger_bounds() {
    for model in models::larger() {
        searched(&model);
    }
}
