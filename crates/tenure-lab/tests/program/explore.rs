//! The random exploration: it finds nothing in the core, it can be repeated, and it finds what is
//! broken on purpose.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test stops where its set-up does")]

use std::time::{Duration, Instant};

use tenure_lab::explore::{Extent, Flaw, Met, Report, flawed, many, one, search};
use tenure_testkit::history::Rule;
use tenure_testkit::some_of;

/// How many seeds are explored with `--all`.
const SEEDS: usize = 20_000;
/// Where they begin.
const FIRST: u64 = 1;

fn jobs() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn explored(extent: Extent, first: u64) -> Report {
    let report = many(first, extent, jobs(), |_| {});
    println!("{report}");
    report
}

#[test]
fn the_core_survives_the_exploration() {
    let seeds = u64::try_from(some_of(SEEDS)).unwrap();
    let report = explored(Extent::Runs(seeds), FIRST);
    assert_eq!(report.failed, [0; 0], "see one with `tenure lab explore --runs 1 --seed SEED`\n{report}");
    assert_eq!(report.runs, seeds);
    let never: Vec<&str> = report.coverage.all().filter(|(_, count)| *count == 0).map(|(what, _)| what).collect();
    assert!(never.is_empty(), "these were never met: {never:?}");
    // What the promises are about must not be a rarity.
    for what in [
        Met::Grant,
        Met::LostExpired,
        Met::Jeopardy,
        Met::CleanUp,
        Met::LateCommand,
        Met::Killed,
        Met::Adoption,
        Met::Served,
        Met::Pushed,
        Met::Passed,
        Met::Compared,
        Met::Downgraded,
        Met::CancelledDowngrade,
    ] {
        assert!(report.coverage.of(what) >= seeds / 20, "{what:?}: {}", report.coverage.of(what));
    }
}

#[test]
fn a_seed_makes_the_same_history_again() {
    for seed in (FIRST..).take(200) {
        let (first, second) = (one(seed), one(seed));
        assert_eq!(
            serde_json::to_string(&first.history).unwrap(),
            serde_json::to_string(&second.history).unwrap(),
            "seed {seed}"
        );
        assert_eq!(first, second, "seed {seed}");
    }
    assert_ne!(one(FIRST).history.events, one(FIRST + 1).history.events, "the seed has no effect");
}

/// Within how many seeds each flaw is found, and by which rule.
const CAUGHT: [(Flaw, u64, &[Rule]); 13] = [
    (Flaw::ReleasesAnyone, 50, &[Rule::Overlap, Rule::FalseLoss, Rule::LateLoss]),
    (Flaw::ShortLease, 20, &[Rule::LateLoss]),
    (Flaw::ShortClaim, 100, &[Rule::Overlap, Rule::FalseLoss, Rule::LateLoss]),
    (Flaw::SlowClock, 20, &[Rule::LateLoss]),
    (Flaw::FenceFallsBack, 20, &[Rule::FenceOrder]),
    (Flaw::LosesReleases, 20, &[Rule::Leak]),
    (Flaw::RenewalShortens, 500, &[Rule::Overlap, Rule::FalseLoss, Rule::LateLoss]),
    (Flaw::SuppliedIsMine, 50, &[Rule::Overlap]),
    (Flaw::AdoptsAnything, 100, &[Rule::Overlap, Rule::FalseLoss, Rule::LateLoss]),
    (Flaw::EndsNoConnection, 500, &[Rule::Leak]),
    (Flaw::KeepsShare, 100, &[Rule::Overlap]),
    (Flaw::ShrinksShare, 50, &[Rule::Overlap]),
    (Flaw::ReportsOldFence, 20, &[Rule::FenceOrder]),
];

#[test]
fn every_flaw_is_found() {
    assert_eq!(CAUGHT.map(|(flaw, ..)| flaw), *Flaw::ALL);
    for (flaw, within, rules) in CAUGHT {
        let found = search(flaw, FIRST, within).unwrap_or_else(|| panic!("{flaw:?} was not found within {within} seeds"));
        println!("{flaw:?}: seed {} of {within}: {}", found.seed, found.findings[0]);
        let by = |rule: &Rule| found.findings.iter().any(|finding| finding.rule == *rule);
        assert!(rules.iter().any(by), "{flaw:?} was found by another rule:\n{}", found.story());
        assert_eq!(flawed(found.seed, flaw), found, "{flaw:?}: the seed does not bring it back");
    }
}

#[test]
fn an_exploration_for_a_time_ends_and_tells_how_it_goes() {
    let (began, mut told) = (Instant::now(), 0);
    let report = many(1_000_000, Extent::Time(Duration::from_secs(2)), 2, |so_far| told = so_far.runs);
    assert!(began.elapsed() >= Duration::from_secs(2));
    assert!(report.runs > 0 && told == report.runs, "{} runs, told of {told}", report.runs);
    assert_eq!(report.failed, [0; 0], "{report}");
}
