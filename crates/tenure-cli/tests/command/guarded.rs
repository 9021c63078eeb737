//! A command whose `tenure` is stopped or killed: the guardian ends what is left.

use std::collections::BTreeSet;

use nix::sys::signal::Signal;
use nix::unistd::{Pid, getsid};

use crate::common::{Place, Running, children, is_dead, is_stopped, state, wait_for};

/// A command with a child in its group, and their numbers.
fn started(place: &Place, name: &str, ttl: &str) -> (Running, [Pid; 2]) {
    let script = "sleep 600 & echo $! > inner; echo $$ > leader; until [ -e go ]; do sleep 0.01; done; kill $!";
    let run = place.spawn(&["run", "--ttl", ttl, name, "--", "sh", "-c", script]);
    let pids = ["inner", "leader"].map(|file| place.pid(file));
    (run, pids)
}

/// The guardian of a `tenure`.
fn guardian(of: Pid) -> Option<Pid> {
    let line = format!("tenure\0__guard\0{of}\0");
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let mut found =
        processes.filter(|entry| std::fs::read(entry.path().join("cmdline")).is_ok_and(|words| words == line.as_bytes()));
    found.find_map(|entry| Some(Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)))
}

#[test]
fn a_stopped_tenure_keeps_no_command_beyond_its_lease() {
    let place = Place::new();
    let (run, group) = started(&place, "x", "2s");
    run.signal(Signal::SIGSTOP);
    wait_for("the end of the group", || group.iter().all(|pid| is_dead(*pid)));
    assert!(is_stopped(run.pid()), "it was to be ended by somebody else");
    run.signal(Signal::SIGCONT);
    assert_eq!(run.end().code, 79);
}

/// The kernel ends the command with its `tenure`, but not what the command has started. Signals for the jobs of a machine, by
/// `pkill -HUP tenure` say, reach the guardians as well. One that ended, or stopped, would leave its `tenure` alone without a word.
#[test]
fn no_signal_that_can_be_ignored_ends_a_guardian_and_a_killed_tenure_leaves_nothing_of_the_group() {
    let place = Place::new();
    let (run, group) = started(&place, "x", "10m");
    let guardian = guardian(run.pid()).expect("there is a guardian");
    for signal in Signal::iterator().filter(|signal| ![Signal::SIGKILL, Signal::SIGSTOP].contains(signal)) {
        nix::sys::signal::kill(guardian, signal).unwrap();
        assert!(!is_dead(guardian) && !is_stopped(guardian), "{signal}");
    }
    run.signal(Signal::SIGKILL);
    run.end_by_signal();
    wait_for("the end of the group", || group.iter().all(|pid| is_dead(*pid)));
    wait_for("the end of the guardian", || is_dead(guardian));
}

/// Has a process open nothing more.
fn spare_none(tenure: Pid) {
    let none = ["--nofile=0:", "--pid", &tenure.to_string()];
    assert!(std::process::Command::new("prlimit").args(none).status().unwrap().success());
}

/// Nothing else knows of what has left the group.
#[test]
fn a_tenure_without_a_descriptor_to_spare_ends_what_has_left_the_group() {
    let place = Place::new();
    let script = "(setsid sleep 600 > /dev/null 2>&1 & echo $! > stray); sleep 600";
    let run = place.spawn(&["run", "--ttl", "3s", "x", "--", "sh", "-c", script]);
    let stray = place.pid("stray");
    wait_for("its parent to leave it", || children(run.pid()).contains(&stray));
    spare_none(run.pid());
    assert_eq!(place.output(&["break", "x"]).code, 0);
    assert_eq!(run.end().code, 79);
    assert!(is_dead(stray));
}

/// It knows the command by the time of its start, which nobody can read then.
#[test]
fn a_tenure_without_a_descriptor_to_spare_is_guarded() {
    let place = Place::new();
    let (run, group) = started(&place, "x", "6s");
    let guardian = guardian(run.pid()).expect("there is a guardian");
    spare_none(run.pid());
    let orders = || std::fs::read(format!("/proc/{guardian}/fd/0")).unwrap();
    let before = orders();
    wait_for("another order", || orders() != before);
    run.signal(Signal::SIGKILL);
    run.end_by_signal();
    wait_for("the end of the group", || group.iter().all(|pid| is_dead(*pid)));
}

/// Nobody undoes what it does by an old word.
#[test]
fn a_guardian_that_was_stopped_obeys_the_newest_word() {
    let place = Place::new();
    let (run, group) = started(&place, "x", "2s");
    let guardian = guardian(run.pid()).expect("there is a guardian");
    nix::sys::signal::kill(guardian, Signal::SIGSTOP).unwrap();
    // Longer than the lease that it knows of.
    std::thread::sleep(std::time::Duration::from_secs(3));
    nix::sys::signal::kill(guardian, Signal::SIGCONT).unwrap();
    wait_for("the guardian to sleep again", || state(guardian) == Some('S'));
    assert!(!group.iter().any(|pid| is_dead(*pid)), "the lease is renewed");
    std::fs::write(place.path("go"), "").unwrap();
    assert_eq!(run.end().code, 0);
}

/// It has nothing of its caller's, so that nobody waits for it and nobody reads a secret there.
#[test]
fn a_guardian_is_alone() {
    let place = Place::new();
    let (run, _) = started(&place, "x", "10m");
    let guardian = guardian(run.pid()).expect("there is a guardian");
    // From before the command's start: what ends the caller's group, or its session, ends no guardian.
    assert_eq!(getsid(Some(guardian)), Ok(guardian));
    let read = |what: &str| std::fs::read(format!("/proc/{guardian}/{what}")).unwrap();
    wait_for("an idle guardian", || state(guardian) == Some('S'));
    assert_eq!((read("environ").len(), std::fs::read_link(format!("/proc/{guardian}/cwd")).unwrap()), (0, "/".into()));
    let open = std::fs::read_dir(format!("/proc/{guardian}/fd")).unwrap().flatten();
    let open: BTreeSet<String> = open.map(|fd| std::fs::read_link(fd.path()).unwrap().display().to_string()).collect();
    let known =
        |of: &String| ["/memfd:tenure-guardian", "pipe:", "/dev/null", "anon_inode:"].iter().any(|what| of.starts_with(what));
    assert!(open.iter().all(known), "{open:?}");
    assert!(open.iter().filter(|of| of.starts_with("pipe:")).count() <= 2, "a stream of the caller: {open:?}");
    std::fs::write(place.path("go"), "").unwrap();
    assert_eq!(run.end().code, 0);
    assert!(is_dead(guardian), "it outlives its tenure");
}
