//! `tenure lab` and `tenure bench`: how the program that has them is found.

use std::path::PathBuf;
use std::process::Command;

use crate::common::{Ended, Place, assert_one_line, script};

/// Copies the command to a directory that has nothing else in it. By a process of its own: what this one has open for writing while
/// another test starts a process cannot be executed.
fn alone(place: &Place) -> PathBuf {
    let dir = place.path("bin");
    std::fs::create_dir(&dir).unwrap();
    assert!(Command::new("cp").args([env!("CARGO_BIN_EXE_tenure"), "."]).current_dir(&dir).status().unwrap().success());
    dir
}

fn run(place: &Place, program: PathBuf, args: &[&str]) -> Ended {
    let mut command = Command::new(program);
    place.settle(&mut command);
    Ended::from(command.args(args).env("PATH", format!("{}:/usr/bin:/bin", place.path("path").display())).output().unwrap())
}

const SHOWS_ARGUMENTS: &str = "#!/bin/sh\nfor word; do echo \"$0: $word\"; done\nexit 41\n";

#[test]
fn without_its_program_the_lab_says_how_to_get_it() {
    let place = Place::new();
    let dir = alone(&place);
    for args in [&["lab", "list"][..], &["bench", "--help"], &["lab"]] {
        let ended = run(&place, dir.join("tenure"), args);
        assert_eq!(ended.code, 69, "{ended:?}");
        assert_one_line(&ended);
        for word in ["cargo install --path crates/tenure-lab", "cargo build --release -p tenure-lab"] {
            assert!(ended.err.contains(word), "{ended:?}");
        }
    }
    let help = run(&place, dir.join("tenure"), &["--help"]).out;
    assert!(help.contains("  lab ") && help.contains("  bench "), "{help}");
}

#[test]
fn the_program_is_looked_for_beside_the_command_and_then_in_path() {
    let place = Place::new();
    let dir = alone(&place);
    std::fs::create_dir(place.path("path")).unwrap();
    script(&place.path("path/tenure-lab"), SHOWS_ARGUMENTS);
    let ended = run(&place, dir.join("tenure"), &["lab", "list"]);
    assert!(
        ended.code == 41 && ended.out.starts_with(&format!("{}: lab\n", place.path("path/tenure-lab").display())),
        "{ended:?}"
    );
    let beside = dir.join("tenure-lab");
    script(&beside, SHOWS_ARGUMENTS);
    // It gets the arguments as they are, and links to the command are followed.
    std::os::unix::fs::symlink(dir.join("tenure"), place.path("link")).unwrap();
    let words = ["bench", "--store", "redis://x", "-V", "--", "-h", ""];
    let ended = run(&place, place.path("link"), &words);
    let expected = words.map(|word| format!("{}: {word}\n", beside.display())).concat();
    assert_eq!((ended.code, ended.out), (41, expected), "{}", ended.err);
    // One that cannot be run is named.
    std::fs::set_permissions(&beside, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let ended = run(&place, dir.join("tenure"), &["lab", "list"]);
    assert!(ended.code == 126 && ended.err.contains(&beside.display().to_string()), "{ended:?}");
}
