//! Leases that one process takes and others renew, release, show and break.
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Ended, Place, Running, full_pipe, is_dead, is_printing, keepers, until_it_waits, wait_for, watched};
use nix::sys::signal::{Signal, kill};

fn value<'a>(printed: &'a str, key: &str) -> &'a str {
    printed.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap_or_else(|| panic!("no {key} in {printed}"))
}

#[test]
fn what_acquire_prints_can_be_evaluated() {
    let place = Place::new();
    let code = "eval \"$(\"$TENURE\" acquire \"it's \\$(mine)\")\" && echo \"$TENURE_NAME\" && \
                \"$TENURE\" release \"$TENURE_NAME\" --token \"$TENURE_TOKEN\"";
    let ended = Ended::from(place.shell("bash", code).output().unwrap());
    assert_eq!((ended.code, ended.out.as_str()), (0, "it's $(mine)\n"), "{}", ended.err);
}

#[test]
fn a_script_without_its_lease_does_not_go_on() {
    let place = Place::new();
    assert_eq!(place.output(&["acquire", "x"]).code, 0);
    for (flags, code) in [
        ("-n x", 75),
        ("--ttl nonsense y", 64),
        ("--bogus y", 64),
        ("--store redis://127.0.0.1:1 y", 69),
        ("--watch-pid 0 y", 64),
    ] {
        let script = format!("eval \"$($TENURE acquire {flags})\" || exit; echo went on");
        let output = place.shell("sh", &script).output().unwrap();
        assert_eq!((output.status.code(), &*output.stdout), (Some(code), &b""[..]), "{flags}");
        let json = place.output(&[&["acquire", "-o", "json"], &*flags.split(' ').collect::<Vec<_>>()].concat());
        assert_eq!((json.code, &*json.out), (code, ""), "{flags}");
    }
}

#[test]
fn acquire_as_json() {
    let place = Place::new();
    let printed = place.output(&["acquire", "-o", "json", "--no-label", "--ttl", "7s", "x"]).out;
    let lease: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((lease["name"].as_str(), lease["ttl_ms"].as_u64()), (Some("x"), Some(7000)));
    let random = lease["token"].as_str().unwrap().trim_start_matches('.');
    assert!(random.len() == 32 && random.bytes().all(|b| b.is_ascii_hexdigit()), "{random}");
    assert!(lease["fence"].is_string() && lease["expires_at"].is_u64());
}

#[test]
fn a_lease_that_cannot_be_printed_is_given_up() {
    let place = Place::new();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = place.tenure(&["acquire", "x"]);
    let ended = command.stdout(full).output().unwrap();
    assert_eq!(ended.status.code(), Some(74));
    assert!(place.is_free("x"));
    let mut script = watched();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let pid = script.pid().to_string();
    let mut command = place.tenure(&["acquire", "--watch-pid", &pid, "x"]);
    assert_eq!(command.stdout(full).output().unwrap().status.code(), Some(74));
    assert!(place.is_free("x") && keepers(&place).is_empty());
    assert!(script.0.try_wait().unwrap().is_none(), "a script that was given nothing was notified of a loss");
}

#[test]
fn a_keeper_ends_with_the_process_it_watches() {
    let place = Place::new();
    let script = watched();
    let pid = script.pid().to_string();
    let args = ["acquire", "--token", "job-7", "--watch-pid", &pid, "--ttl", "3s", "--kill-after", "100ms", "x"];
    let printed = place.output(&args);
    assert_eq!((printed.code, printed.err.as_str()), (0, ""));
    assert_eq!(value(&printed.out, "TENURE_TOKEN"), "job-7");
    assert_eq!(keepers(&place).len(), 1);
    // The same token in another store is another lease.
    assert_eq!(place.output(&["release", "--store", "sqlite:other.db", "x", "--token", "job-7"]).code, 79);
    // It outlives its first lease.
    let waited = place.output(&["run", "-w", "4s", "x", "--", "true"]);
    assert_eq!(waited.code, 75, "{waited:?}");
    drop(script);
    let ended = Instant::now();
    assert_eq!(place.output(&["run", "-w", "10s", "x", "--", "true"]).code, 0);
    // At once, not after its ttl.
    assert!(ended.elapsed() < Duration::from_secs(1), "took {:?}", ended.elapsed());
    wait_for("the end of the keeper", || keepers(&place).is_empty());
}

#[test]
fn a_keeper_that_still_waits_ends_with_its_starter() {
    let place = Place::new();
    let script = watched();
    let pid = script.pid().to_string();
    assert_eq!(place.output(&["acquire", "--ttl", "60s", "x"]).code, 0);
    for (signal, code) in [(Signal::SIGTERM, Some(143)), (Signal::SIGINT, Some(130)), (Signal::SIGKILL, None)] {
        let mut waiting = Running::start(&mut place.tenure(&["acquire", "-v", "--watch-pid", &pid, "x"]));
        let mut said = until_it_waits(&mut waiting);
        waiting.signal(signal);
        let status = waiting.status();
        assert_eq!(code.map(|_| crate::common::code(status)), code);
        // Its end closes the last copy of the stream.
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut said, &mut rest).unwrap();
    }
    let waiting = Running::start(&mut place.tenure(&["acquire", "-w", "20ms", "--watch-pid", &pid, "x"]));
    let ended = waiting.end().without_wait();
    assert_eq!(ended.code, 75);
    crate::common::assert_one_line(&ended);
    assert!(!is_dead(script.pid()));
}

/// Has `x` kept for as long as `script` lives; the keeper.
fn kept(place: &Place, script: &Running, flags: &[&str]) -> nix::unistd::Pid {
    let pid = script.pid().to_string();
    // A keeper that may only tell keeps stderr open: nobody may wait for its end.
    let words = ["acquire", "--ttl", "3s", "--kill-after", "100ms", "--watch-pid", &pid];
    let mut acquire = place.tenure(&[&words, flags, &["x"]].concat());
    assert!(acquire.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success());
    keepers(place)[0]
}

#[test]
fn a_keeper_that_is_told_to_end_ends_the_work_first() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        let place = Place::new();
        let code = "trap 'echo told > told' TERM; echo > up; while [ ! -e go ]; do sleep 0.01; done";
        let script = Running::start(&mut place.shell("bash", code));
        place.line("up");
        let keeper = kept(&place, &script, &[]);
        kill(keeper, Signal::SIGUSR1).unwrap();
        kill(keeper, Signal::SIGUSR2).unwrap();
        kill(keeper, signal).unwrap();
        assert_eq!(place.line("told"), "told");
        assert!(!place.is_free("x") && !is_dead(keeper), "released while the work goes on");
        std::fs::write(place.path("go"), "").unwrap();
        wait_for("the end of the keeper", || is_dead(keeper));
        assert!(place.is_free("x"));
    }
}

#[test]
fn a_kept_lease_that_ends_covers_the_end_of_the_work() {
    let place = Place::new();
    let code =
        "trap 'echo told > told; while [ ! -e go ]; do sleep 0.01; done; exit' TERM; echo > up; while :; do sleep 0.01; done";
    let script = Running::start(&mut place.shell("bash", code));
    place.line("up");
    let pid = script.pid().to_string();
    let ended = place.output(&["acquire", "--ttl", "20s", "--max-hold", "2s", "--watch-pid", &pid, "x"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(place.line("told"), "told");
    assert_eq!(place.output(&["run", "-w", "300ms", "x", "--", "true"]).code, 75, "released while the work is being stopped");
    std::fs::write(place.path("go"), "").unwrap();
    assert_eq!(place.output(&["run", "-w", "5s", "x", "--", "true"]).code, 0, "free once the work has ended");
}

#[test]
fn a_keeper_that_may_only_tell_outlives_a_signal() {
    let place = Place::new();
    let mut script = watched();
    let said = std::fs::File::create(place.path("said")).unwrap();
    let pid = script.pid().to_string();
    let mut command =
        place.tenure(&["acquire", "--watch-pid", &pid, "--on-lost", "none", "--ttl", "3s", "--kill-after", "100ms", "x"]);
    assert!(command.stdout(Stdio::null()).stderr(said).status().unwrap().success());
    kill(keepers(&place)[0], Signal::SIGTERM).unwrap();
    // Longer than the ttl: it goes on renewing.
    assert_eq!(place.output(&["run", "-w", "4s", "x", "--", "true"]).code, 75);
    assert_eq!(place.output(&["break", "x"]).code, 0);
    wait_for("a report of the loss", || place.read("said").contains("is lost"));
    assert!(script.0.try_wait().unwrap().is_none());
    drop(script);
    wait_for("the end of the keeper", || keepers(&place).is_empty());
}

#[test]
fn a_starter_that_is_ended_before_it_has_printed_leaves_nothing() {
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let place = Place::new();
        let mut script = watched();
        let pid = script.pid().to_string();
        // The starter hangs in its print.
        let (reader, writer) = full_pipe();
        let mut command = place.tenure(&["acquire", "--watch-pid", &pid, "--ttl", "60s", "x"]);
        let mut starter = Running::of(command.stdout(writer).stderr(Stdio::null()).spawn().unwrap());
        drop(command);
        wait_for("the lease to be printed", || is_printing(starter.pid()));
        starter.signal(signal);
        if signal == Signal::SIGTERM {
            // The signal takes effect when the print is over: what was printed stands.
            drop(reader);
        }
        starter.status();
        wait_for("the end of the keeper", || keepers(&place).is_empty());
        assert!(place.is_free("x") && script.0.try_wait().unwrap().is_none());
    }
}

#[test]
fn a_standing_reader_of_stderr_does_not_save_the_script() {
    let place = Place::new();
    let mut script = watched();
    let pid = script.pid().to_string();
    // A terminal whose output was stopped, full to the brim.
    let pty = nix::pty::openpty(None, None).unwrap();
    let end = std::fs::File::from(pty.slave);
    let mut command = place.tenure(&["acquire", "--watch-pid", &pid, "--ttl", "6s", "x"]);
    let status = command.stdout(Stdio::null()).stderr(end.try_clone().unwrap()).status().unwrap();
    assert!(status.success());
    let keeper = keepers(&place)[0];
    nix::sys::termios::tcflow(&end, nix::sys::termios::FlowArg::TCOOFF).unwrap();
    assert_eq!(place.output(&["break", "x"]).code, 0);
    let told = Instant::now();
    assert_eq!(script.status().signal(), Some(15));
    assert!(told.elapsed() < Duration::from_secs(5), "took {:?}", told.elapsed());
    wait_for("the end of the keeper", || is_dead(keeper));
}

#[test]
fn a_keeper_has_nothing_of_its_caller_but_an_open_password() {
    let place = Place::new();
    let script = watched();
    let code = "exec 9>held; flock 9; TENURE_PASSWORD_FILE=<(echo s3cret) \"$TENURE\" acquire --watch-pid $0 x";
    let mut shell = place.shell("bash", code);
    let status = shell.arg(script.pid().to_string()).stdout(Stdio::null()).status().unwrap();
    assert!(status.success(), "{status}");
    let keeper = keepers(&place)[0];
    let free = Command::new("flock").args(["-n", "held", "true"]).current_dir(place.path(".")).status().unwrap();
    assert!(free.success(), "the keeper has the caller's descriptor");
    assert_eq!(std::fs::read_to_string(format!("/proc/{keeper}/comm")).unwrap(), "tenure\n");
    assert!(std::fs::read(format!("/proc/{keeper}/cmdline")).unwrap().starts_with(b"tenure\0__keep\0"));
    wait_for("the keeper to leave", || std::fs::read_link(format!("/proc/{keeper}/cwd")).unwrap() == std::path::Path::new("/"));
}
