//! Every specimen is found out by the model, and by the checker when its story is played on a real server.

use std::ops::ControlFlow;

use tenure_lab::specimens::{RULES, controls, items, search, story};
use tenure_lab::{Lab, run};
use tenure_testkit::Program;
use tenure_testkit::history::timeline::picture;

const SEED: u64 = 20_260_721;

/// `TENURE_LAB_SPECIMENS` names a part of the ids, to run fewer of them.
#[test]
fn every_specimen_is_caught() {
    let lab = Lab { program: Program::new([env!("CARGO_BIN_EXE_tenure-lab"), "__worker"]) };
    let wanted = std::env::var("TENURE_LAB_SPECIMENS").unwrap_or_default();
    let work: Vec<_> = items().into_iter().filter(|item| item.id.contains(&wanted)).map(|item| (item, SEED)).collect();
    assert!(!work.is_empty(), "no specimen has {wanted:?} in its id");
    let mut missed = Vec::new();
    run::all(&lab, work, 4, |outcome| {
        println!("{:36} {:12} {:>5.1} s", outcome.item.id, outcome.verdict, outcome.took.as_secs_f64());
        if !outcome.ok {
            let shown = outcome.shown.map(|shown| format!("{}\n{}", shown.story.join("\n"), picture(&shown.history)));
            missed.push(format!("{}: {}\n{}", outcome.item.id, outcome.trouble.unwrap_or_default(), shown.unwrap_or_default()));
        }
        ControlFlow::Continue(())
    });
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// The search does not cry wolf.
#[test]
fn nothing_is_found_where_nothing_is() {
    for control in controls() {
        let searched = search(&control.setting, &RULES);
        println!("{}: all of {} states in {:?}", control.id, searched.states, searched.took);
        if let Some(path) = searched.path {
            panic!("{}:\n{}", control.id, story(&control.setting, &path).join("\n"));
        }
    }
}
