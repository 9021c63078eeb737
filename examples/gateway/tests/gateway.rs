//! The example as its README has it, for some seconds.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test stops where its set-up does")]

use std::process::Command;

use tenure_testkit::Spawned;

fn run(args: &[&str]) -> String {
    let output = Spawned::output(Command::new(env!("CARGO_BIN_EXE_gateway")).args(args)).unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    println!("{args:?}\n{report}");
    assert!(output.status.success(), "{report}{}", String::from_utf8_lossy(&output.stderr));
    report
}

/// Numbers in the row of a table.
fn row(report: &str, name: &str) -> Vec<f64> {
    let found = report.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name:?}: {report}"));
    found.split_whitespace().map_while(|cell| cell.parse().ok()).collect()
}

fn whole(numbers: &[f64]) -> Vec<i64> {
    numbers.iter().map(|number| format!("{number:.0}").parse().unwrap()).collect()
}

#[test]
fn a_double_click_is_one_gift_with_the_layer_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", dir.path().join("locks.db").display());
    for store in [&[][..], &["--store", &file]] {
        let report = run(&[&["clicks", "--users", "200"], store].concat());
        let [gifts, refused, others, doubled] = whole(&row(&report, "with the layer"))[..] else { panic!("{report}") };
        assert_eq!((gifts, refused + others, doubled), (200, 200, 0), "{report}");
        let without = whole(&row(&report, "without a lock"));
        assert!(without[0] > 200 && without[3] > 0, "{report}");
    }
}

#[test]
fn every_request_of_a_load_is_answered() {
    let report = run(&["load", "--rate", "200", "--seconds", "2", "--turns", "2", "--no-limit"]);
    for name in ["with the layer", "without it"] {
        assert_eq!(whole(&row(&report, name)[..2]), [400, 0], "{report}");
    }
}
