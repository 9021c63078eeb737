//! Every row of the fault matrix, on real servers and with real processes.

#![allow(clippy::unwrap_used, reason = "a test stops where its set-up does")]

use std::ops::ControlFlow;

use tenure_lab::{Item, Lab, Outcome, run, scenarios};
use tenure_testkit::Program;
use tenure_testkit::history::timeline::picture;

/// Each draws other moments and commands. The second is for `./scripts/test --all`.
fn seeds() -> &'static [u64] {
    if std::env::var_os("TENURE_TEST_ALL").is_some() { &[1, 2] } else { &[1] }
}

/// Only the rows that are not as promised are printed. `TENURE_LAB_ROWS` names a part of the rows' ids, to run fewer of them; `TENURE_LAB_SEED` gives another seed.
#[test]
fn every_row_of_the_matrix_is_as_promised() {
    let lab = Lab { program: Program::new([env!("CARGO_BIN_EXE_tenure-lab"), "__worker"]) };
    let wanted = std::env::var("TENURE_LAB_ROWS").unwrap_or_default();
    let seed = std::env::var("TENURE_LAB_SEED").ok().filter(|seed| !seed.is_empty());
    let seeds: Vec<u64> = seed.as_ref().map_or_else(|| seeds().to_vec(), |seed| vec![seed.parse().unwrap()]);
    let rows = scenarios::items().into_iter().filter(|item| item.id.contains(&wanted));
    let rows: Vec<_> = rows.flat_map(|item| seeds.iter().map(move |seed| (item.clone(), *seed))).collect();
    assert!(!rows.is_empty(), "no row has {wanted:?} in its id");
    // Servers that watch one another take one that gets no processor for down, so they have it for themselves.
    let watched = |id: &str| id.starts_with("sentinel/") || id.starts_with("cluster/");
    let (groups, others): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(item, _)| watched(&item.id));
    let mut broke = played(&lab, others, 10);
    broke.extend(played(&lab, groups, 3));
    let (late, mut wrong): (Vec<_>, Vec<_>) = broke.into_iter().partition(|outcome| outcome.is_late);
    for outcome in late {
        eprintln!("{}: played again, alone", told(&outcome));
        wrong.extend(played(&lab, vec![(outcome.item, outcome.seed); 3], 1));
    }
    assert!(wrong.is_empty(), "{}", wrong.iter().map(told).collect::<Vec<_>>().join("\n"));
}

/// Plays so many rows side by side, which wait most of the time. Those that are not as promised.
fn played(lab: &Lab, rows: Vec<(Item, u64)>, jobs: usize) -> Vec<Outcome> {
    let mut broke = Vec::new();
    run::all(lab, rows, jobs, |outcome| {
        if !outcome.ok {
            broke.push(outcome);
        }
        ControlFlow::Continue(())
    });
    broke
}

fn told(outcome: &Outcome) -> String {
    let picture = outcome.shown.as_ref().map(|shown| picture(&shown.history)).unwrap_or_default();
    format!("{} (seed {}): {}\n{picture}", outcome.item.id, outcome.seed, outcome.trouble.as_deref().unwrap_or_default())
}
