//! Every broken lock is found out by the checker when its story is played on a real server.

use std::ops::ControlFlow;

use tenure_lab::museum::items;
use tenure_lab::{Item, Lab, Outcome, run};
use tenure_testkit::Program;
use tenure_testkit::history::timeline::picture;

const SEED: u64 = 20_260_721;

/// `TENURE_LAB_LOCKS` names a part of the ids, to run fewer of them.
#[test]
fn every_broken_lock_is_caught() {
    let lab = Lab { program: Program::new([env!("CARGO_BIN_EXE_tenure-lab"), "__worker"]) };
    let wanted = std::env::var("TENURE_LAB_LOCKS").unwrap_or_default();
    let work: Vec<_> = items().into_iter().filter(|item| item.id.contains(&wanted)).map(|item| (item, SEED)).collect();
    assert!(!work.is_empty(), "no broken lock has {wanted:?} in its id");
    let play = |work: Vec<(Item, u64)>, jobs: usize| {
        let mut missed = Vec::new();
        run::all(&lab, work, jobs, |outcome| {
            println!("{:36} {:12} {:>5.1} s", outcome.item.id, outcome.verdict, outcome.took.as_secs_f64());
            if !outcome.ok {
                missed.push(outcome);
            }
            ControlFlow::Continue(())
        });
        missed
    };
    let (late, mut missed): (Vec<Outcome>, Vec<Outcome>) = play(work, 4).into_iter().partition(|outcome| outcome.is_late);
    for outcome in late {
        eprintln!("{}: played again, alone", told(&outcome));
        missed.extend(play(vec![(outcome.item, SEED); 3], 1));
    }
    assert!(missed.is_empty(), "{}", missed.iter().map(told).collect::<Vec<_>>().join("\n"));
}

fn told(outcome: &Outcome) -> String {
    let shown = outcome.shown.as_ref().map(|shown| format!("{}\n{}", shown.story.join("\n"), picture(&shown.history)));
    format!("{}: {}\n{}", outcome.item.id, outcome.trouble.as_deref().unwrap_or_default(), shown.unwrap_or_default())
}
