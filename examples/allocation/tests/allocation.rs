//! The example as its README has it, for some seconds.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test stops where its set-up does")]

use std::process::Command;

use tenure_testkit::Spawned;

/// Number in the line of a report.
fn number(report: &str, line: &str) -> i64 {
    let found = report.lines().find_map(|text| text.strip_prefix(line)).unwrap_or_else(|| panic!("no {line:?}: {report}"));
    found.split_whitespace().next().unwrap().parse().unwrap()
}

fn run(args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_allocation"));
    command.args(["--stop", "--seconds", "6"]).args(args);
    let output = Spawned::output(&mut command).unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    println!("{args:?}\n{report}");
    assert!(output.status.success(), "{report}{}", String::from_utf8_lossy(&output.stderr));
    assert!(number(&report, "allocations ") > 0 && number(&report, "holders stopped ") > 0, "{report}");
    report
}

#[test]
fn with_the_fence_nothing_is_lost_and_no_stale_write_accepted() {
    // Until a stopped holder has met the fence.
    for _ in 0..5 {
        let report = run(&[]);
        assert_eq!(number(&report, "stale writes accepted "), 0, "{report}");
        assert_eq!(number(&report, "lost updates "), 0, "{report}");
        if number(&report, "stale writes refused ") > 0 {
            return;
        }
    }
    panic!("no stopped holder ever came too late");
}

#[test]
fn without_the_fence_updates_are_lost() {
    let lost = |report: &String| number(report, "lost updates ") > 0 && number(report, "stale writes accepted ") > 0;
    assert!((0..5).map(|_| run(&["--no-fence"])).any(|report| lost(&report)), "no stopped holder ever came too late");
}

#[test]
fn bad_input_is_refused() {
    for option in ["--workers", "--items", "--rate", "--seconds", "--ttl"] {
        let output = Spawned::output(Command::new(env!("CARGO_BIN_EXE_allocation")).args([option, "0"])).unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(option) && told.contains("not in"), "{told}");
    }
}
