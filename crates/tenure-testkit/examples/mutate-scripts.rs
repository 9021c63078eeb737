//! Breaks the Lua scripts of the Redis store in one place at a time and says which breakages no test notices.
//!
//! `./scripts/mutants scripts` runs it: `mutate-scripts ROOT [--list] [TEXT...]`. ROOT is a copy of
//! the tree that may be written to. TEXT chooses mutants whose description contains it. In the copy
//! the store reads its scripts when it runs, so that one build serves all mutants. Exits 1 when a
//! mutant survives that is not explained below.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a tool of the tests: it prints, and stops where its set-up does"
)]

#[path = "mutate-scripts/mutants.rs"]
mod mutants;

use std::collections::BTreeSet;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

use crate::mutants::{Mutant, of_script};

/// The mutants that change nothing a client could notice: two parts of the description, and why.
const EXPLAINED: &[(&str, &str, &str)] = &[
    (r#""1" instead of "0""#, "local stored", "the server's time is above both"),
    ("math.ceil", "", "a whole number is its floor and its ceiling"),
    ("if false", "if micros >= MOST", FAR_FUTURE),
    (r#"">" instead of ">=""#, "if micros >= MOST", FAR_FUTURE),
    ("left out", "return nil, redis.error_reply('TENURECOUNTER the clock", FAR_FUTURE),
    (
        r#""EXPIRE" instead"#,
        "redis.call('PEXPIRE', name, linger)",
        "the SET that follows sets the expiry, and must not be the first write",
    ),
    (r#""<=" instead of "<""#, "redis.call('PTTL'", SET_TO_WHAT_IT_IS),
    (r#""<=" instead of "<""#, "if left < tonumber(ttl)", SET_TO_WHAT_IT_IS),
    (r#""-1" instead of "0""#, "weight_of(owner), waiter(0)", "the last waiter says as well as the first that somebody waits"),
    (r#""1" instead of "0""#, "not first and patience > 0", "the last of a thousand dead is met by the next call"),
    (r#"instead of "0""#, "till - now) or 0", "a ttl is longer than that"),
    (r#"">=" instead of ">""#, "first + #args > MOST", "numbers are kept back there that are never needed"),
    (r#"instead of "5000""#, "local WITHOUT_TTL", "nobody notices a thousandth of a second of it"),
    (r#"instead of "1000""#, "since + WITHOUT_TTL", "nobody notices a thousandth of a second of it"),
    (r#""2" instead of "1""#, "return -1", "any number below zero is no end"),
    (r#""GETDEL""#, "local noted = redis.call('GET', beside)", "what was noted is noted again, or is of no use any more"),
    (r#""x" instead of """#, "local noted", "it begins with no value that is followed by what parts the two"),
    (r#""0" instead of "1""#, "noted:sub(1, #value + 1)", "a text begins at its first character in either case"),
    (r#""1" instead of "2""#, "tonumber(noted:sub(#value + 2))", "a number may have a line's end in front of it"),
];
const SET_TO_WHAT_IT_IS: &str = "a ttl that is as long already is set to what it is";
const FAR_FUTURE: &str = "no server's clock can be set to the year 2311: those that tests shift count nanoseconds in 63 bits";

/// The tests that see the scripts, those that fail soonest first.
const TESTS: &[Sight] = &[
    Sight { scripts: "", program: "redis", tests: &["conformance::"] },
    Sight { scripts: "", program: "redis", tests: &["store::"] },
    Sight { scripts: "", program: "redis", tests: &["faults::"] },
    Sight { scripts: "set-nx-", program: "redis", tests: &["plain::"] },
    Sight { scripts: "set-nx-", program: "redis", tests: &["store::"] },
    Sight { scripts: "set-nx-", program: "redis", tests: &["set_nx::"] },
    Sight { scripts: "timestamp", program: "schemes", tests: &["timestamps::"] },
    Sight { scripts: "timestamp", program: "redis", tests: &["php::", "getset::"] },
];
/// A test program, or those of its tests whose names contain one of `tests`. `scripts` is the
/// beginning of the names of the scripts that it sees; if that is empty, it sees those that no
/// other entry names.
struct Sight {
    scripts: &'static str,
    program: &'static str,
    tests: &'static [&'static str],
}

impl Sight {
    fn sees(&self, script: &str) -> bool {
        match self.scripts {
            "" => !TESTS.iter().any(|other| !other.scripts.is_empty() && script.starts_with(other.scripts)),
            scripts => script.starts_with(scripts),
        }
    }
}

/// Longer than all of a file's tests take together.
const LIMIT: Duration = Duration::from_secs(120);
/// How often a program is run whose failures do not come again.
const ROUNDS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Caught(&'static str),
    TimedOut,
    Explained(&'static str),
    Survived,
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let (flags, words): (Vec<_>, Vec<_>) = args.into_iter().partition(|arg| arg.starts_with("--"));
    let root = PathBuf::from(words.first().expect("mutate-scripts ROOT [--list] [TEXT...]"));
    let mutants = chosen(&root, &words[1..]);
    if flags.iter().any(|flag| flag == "--list") {
        for mutant in &mutants {
            println!("{mutant}");
        }
        return ExitCode::SUCCESS;
    }
    read_scripts_at_run_time(&root);
    let tests = build(&root);
    let started = Instant::now();
    let tests: Vec<_> =
        tests.into_iter().filter(|(sight, _)| mutants.iter().any(|mutant| sight.sees(&mutant.to_string()))).collect();
    for (sight, program) in &tests {
        assert_eq!(judge(sight, program), None, "{} fails without any mutant", sight.program);
    }
    println!("{} mutants; all tests pass without one in {:.0?}", mutants.len(), started.elapsed());
    let outcomes: Vec<Outcome> = mutants.iter().map(|mutant| try_out(mutant, &tests)).collect();
    let count = |wanted: fn(&Outcome) -> bool| outcomes.iter().filter(|outcome| wanted(outcome)).count();
    let survived = count(|outcome| *outcome == Outcome::Survived);
    println!(
        "{} mutants in {:.0?}: {} caught, {} timed out, {} explained, {survived} survived",
        outcomes.len(),
        started.elapsed(),
        count(|outcome| matches!(outcome, Outcome::Caught(_))),
        count(|outcome| *outcome == Outcome::TimedOut),
        count(|outcome| matches!(outcome, Outcome::Explained(_))),
    );
    if survived == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn chosen(root: &Path, words: &[String]) -> Vec<Mutant> {
    let mut scripts: Vec<PathBuf> = fs::read_dir(root.join("crates/tenure-redis/src/scripts"))
        .expect("the scripts are where they were")
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "lua"))
        .collect();
    scripts.sort();
    let all = scripts.iter().flat_map(|path| of_script(path)).collect::<Vec<_>>();
    for (change, code, _) in EXPLAINED {
        let known = |mutant: &Mutant| is_about(&mutant.to_string(), change, code);
        assert!(all.iter().any(known), "no mutant any more for the explanation of {change:?} in {code:?}");
    }
    all.into_iter().filter(|mutant| words.is_empty() || words.iter().any(|word| mutant.to_string().contains(word))).collect()
}

fn is_about(mutant: &str, change: &str, code: &str) -> bool {
    mutant.contains(change) && mutant.contains(code)
}

/// Has the copy's store take its scripts from the disk; the store itself has them built in, and no switch for this.
fn read_scripts_at_run_time(root: &Path) {
    const BUILT_IN: &str = r#"concat!($(include_str!(concat!("scripts/", $file)), "\n"),+)"#;
    const READ: &str = r#"&*Box::leak([$(std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/scripts/", $file))
            .expect("the script is there"), "\n".to_owned()),+].concat().into_boxed_str())"#;
    let path = root.join("crates/tenure-redis/src/scripts.rs");
    let source = fs::read_to_string(&path).expect("scripts.rs is where it was");
    if source.contains(READ) {
        return;
    }
    assert!(source.contains(BUILT_IN), "{} is not as this tool knows it", path.display());
    fs::write(path, source.replace(BUILT_IN, READ)).unwrap();
}

/// Builds the tests in the copy; the programs, in the order of [`TESTS`].
fn build(root: &Path) -> Vec<(&'static Sight, PathBuf)> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root).args(["test", "--no-run", "--locked", "--message-format=json"]);
    cargo.args(["-p", "tenure-redis", "-p", "tenure-cli"]);
    let programs: BTreeSet<&str> = TESTS.iter().map(|sight| sight.program).collect();
    cargo.args(programs.into_iter().flat_map(|program| ["--test", program]));
    let built = cargo.stderr(Stdio::inherit()).output().expect("cargo runs");
    assert!(built.status.success(), "the tests cannot be built");
    let programs: Vec<(String, PathBuf)> = String::from_utf8_lossy(&built.stdout).lines().filter_map(program).collect();
    let find = |sight: &'static Sight| {
        let program = programs.iter().find(|(name, _)| name == sight.program);
        (sight, program.expect("every test is a program").1.clone())
    };
    TESTS.iter().map(find).collect()
}

/// The name and the path of the test that a message of cargo's is about.
fn program(message: &str) -> Option<(String, PathBuf)> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let path = message["executable"].as_str()?;
    Some((message["target"]["name"].as_str()?.to_owned(), path.into()))
}

/// How a test program ended.
enum Ended {
    Passed,
    /// These failed; none are named when it ended in another way.
    Failed(Vec<String>),
    Hung,
}

/// Runs those tests of a program whose names contain one of `tests`. The program and its servers
/// are one process group, so that nothing is left of one that hangs.
fn run(program: &Path, tests: &[&str]) -> Ended {
    let mut said = tempfile::tempfile().unwrap();
    let mut command = Command::new(program);
    // So that the first failure ends it: that option of the test harness is not stable.
    command.process_group(0).env("RUSTC_BOOTSTRAP", "1").args(["-Zunstable-options", "--fail-fast"]);
    command.args(tests);
    command.stdin(Stdio::null()).stdout(said.try_clone().unwrap()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the test starts");
    let started = Instant::now();
    let group = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    let status = loop {
        match child.try_wait().unwrap() {
            None if started.elapsed() < LIMIT => std::thread::sleep(Duration::from_millis(20)),
            status => break status,
        }
    };
    // The first failure ends the program in the middle of other tests: their servers are still there.
    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    let Some(status) = status else {
        child.wait().unwrap();
        return Ended::Hung;
    };
    if status.success() {
        return Ended::Passed;
    }
    let mut output = String::new();
    said.rewind().unwrap();
    said.read_to_string(&mut output).unwrap();
    let failed = |line: &str| Some(line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.to_owned());
    Ended::Failed(output.lines().filter_map(failed).collect())
}

/// Runs a program on a mutant. Returns its outcome; `None` if the tests pass. A failure counts if
/// the same test fails again by itself: on a busy machine one may fail for want of time.
fn judge(sight: &'static Sight, program: &Path) -> Option<Outcome> {
    for _ in 0..ROUNDS {
        match run(program, sight.tests) {
            Ended::Passed => return None,
            Ended::Hung => return Some(Outcome::TimedOut),
            Ended::Failed(tests) => {
                let again = |test: &String| !matches!(run(program, &[test, "--exact"]), Ended::Passed);
                if tests.is_empty() || tests.iter().any(again) {
                    return Some(Outcome::Caught(sight.program));
                }
            }
        }
    }
    None
}

fn try_out(mutant: &Mutant, tests: &[(&'static Sight, PathBuf)]) -> Outcome {
    let started = Instant::now();
    fs::write(&mutant.path, &mutant.mutated).unwrap();
    let text = mutant.to_string();
    let by = tests.iter().filter(|(sight, _)| sight.sees(&text)).find_map(|(sight, program)| judge(sight, program));
    fs::write(&mutant.path, &mutant.original).unwrap();
    let about = EXPLAINED.iter().find(|(change, code, _)| is_about(&text, change, code));
    let explained = || about.map(|(_, _, why)| Outcome::Explained(why));
    let outcome = by.or_else(explained).unwrap_or(Outcome::Survived);
    println!("{outcome:?} in {:.0?}: {text}", started.elapsed());
    outcome
}
