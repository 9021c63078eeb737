//! Events while a command runs under a lock.
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{Ended, Place, Running, full_pipe, is_dead, is_stopped, until_it_waits, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

#[test]
fn secrets_stay_with_us() {
    let place = Place::new();
    std::fs::write(place.path("p"), "pw").unwrap();
    let store = format!("sqlite:{}", place.path("s.db").display());
    let mut command = place.tenure(&["run", "--store", &store, "x", "--", "env"]);
    command.env("TENURE_PASSWORD", "s3cret").env("TENURE_PASSWORD_FILE", "p").env("TENURE_STORE", "redis://:s3cret@h");
    command.env("TENURE_SENTINEL_PASSWORD", "s3cret");
    let ended = Ended::from(command.output().unwrap());
    assert_eq!(ended.code, 0, "{ended:?}");
    for hidden in ["s3cret", "TENURE_PASSWORD", "TENURE_SENTINEL_PASSWORD"] {
        assert!(!ended.out.contains(hidden), "{hidden} reached the command");
    }
    assert!(ended.out.contains(&format!("TENURE_STORE={store}\n")), "the store in use: {}", ended.out);
}

/// A tenure in the command asks the same store, from wherever it is started.
#[test]
fn the_command_gets_the_store() {
    let place = Place::new();
    let inner =
        "cd / && \"$TENURE\" show -o json \"$TENURE_NAME\" && \"$TENURE\" renew \"$TENURE_NAME\" --token \"$TENURE_TOKEN\"";
    for store in [&["--store", "sqlite:here.db"][..], &[]] {
        let ended = place.output(&[&["run"], store, &["x", "--", "sh", "-c", inner]].concat());
        assert_eq!(ended.code, 0, "{ended:?}");
        assert!(ended.out.contains("\"name\":\"x\""), "the inner command looks elsewhere: {ended:?}");
    }
    place.write_config(&format!("store = \"sqlite:{}\"", place.path("there.db").display()));
    let ended = place.output(&["run", "x", "--", "sh", "-c", inner]);
    assert!(ended.code == 0 && ended.out.contains("\"name\":\"x\""), "{ended:?}");
}

#[test]
fn signals_are_forwarded() {
    let place = Place::new();
    for (signal, name) in [
        (Signal::SIGINT, "INT"),
        (Signal::SIGTERM, "TERM"),
        (Signal::SIGHUP, "HUP"),
        (Signal::SIGQUIT, "QUIT"),
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGUSR2, "USR2"),
    ] {
        let code = format!("trap 'kill $!; exit 7' {name}; sleep 60 & echo up > up-{name}; wait");
        let running = place.spawn(&["run", "x", "--", "bash", "-c", &code]);
        place.line(&format!("up-{name}"));
        running.signal(signal);
        assert_eq!(running.end().code, 7, "{name}");
        assert!(place.is_free("x"));
    }
}

#[test]
fn what_nohup_ignores_stays_ignored() {
    let place = Place::new();
    let mut nohup = place.shell("bash", "trap '' HUP; exec \"$TENURE\" run x -- sh -c 'echo $$ > up; read line < fifo'");
    nix::unistd::mkfifo(&place.path("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let running = Running::start(&mut nohup);
    let child = place.pid("up");
    running.signal(Signal::SIGHUP);
    kill(child, Signal::SIGHUP).unwrap();
    std::fs::write(place.path("fifo"), "go\n").unwrap();
    assert_eq!(running.end().code, 0);
}

#[test]
fn signals_end_a_wait_and_leave_nothing() {
    let place = Place::new();
    let held = place.output(&["acquire", "--ttl", "60s", "x"]);
    assert_eq!(held.code, 0);
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGHUP, 129), (Signal::SIGUSR1, 138)] {
        let mut waiting = Running::start(&mut place.tenure(&["run", "-v", "x", "--", "touch", "ran"]));
        until_it_waits(&mut waiting);
        waiting.signal(signal);
        assert_eq!(crate::common::code(waiting.status()), code);
    }
    assert_eq!(place.output(&["break", "x"]).code, 0);
    assert!(place.is_free("x") && !place.path("ran").exists());
}

/// A command with a grandchild, both of which ignore TERM.
const STUBBORN: &str =
    "trap '' TERM; (trap '' TERM; echo $BASHPID > grandchild; while :; do sleep 60; done) & echo $$ > child; wait; wait";

#[test]
fn a_lost_lock_ends_the_whole_group_in_time() {
    let place = Place::new();
    let args = ["run", "--ttl", "6s", "--kill-after", "200ms", "x", "--", "bash", "-c", STUBBORN];
    let running = place.spawn(&args);
    let (child, grandchild) = (place.pid("child"), place.pid("grandchild"));
    assert_eq!(place.output(&["break", "x"]).code, 0);
    let broken = Instant::now();
    let ended = running.end();
    // A third of the ttl until the next renewal, then TERM and KILL.
    assert!(broken.elapsed() < Duration::from_secs(4), "took {:?}", broken.elapsed());
    assert_eq!(ended.code, 79, "{ended:?}");
    assert!(is_dead(child) && is_dead(grandchild));
    assert!(ended.err.contains("no longer ours") && ended.err.contains("was killed"), "{}", ended.err);
}

#[test]
fn a_reader_of_stderr_that_has_stopped_does_not_save_the_command() {
    let place = Place::new();
    let fill = "trap '' TERM; echo $$ > child; head -c 200000 /dev/zero >&2 & while :; do sleep 60; done";
    let args = ["run", "--ttl", "12s", "--kill-after", "500ms", "--max-hold", "6s", "x", "--", "bash", "-c", fill];
    let mut running = place.spawn(&args);
    let child = place.pid("child");
    assert_eq!(running.status().code(), Some(79));
    assert!(is_dead(child));
}

#[test]
fn a_fixed_lease_ends_the_command_before_the_name_is_free() {
    let place = Place::new();
    let running = place.spawn(&["run", "--no-renew", "--ttl", "6s", "x", "--", "sh", "-c", "echo $$ > child; exec sleep 60"]);
    let child = place.pid("child");
    let waiting = place.output(&["run", "x", "--", "sh", "-c", "kill -0 $(cat child) 2>/dev/null && echo overlap"]);
    assert_eq!(waiting.out, "", "two at a time");
    let ended = running.end();
    assert!(ended.code == 79 && ended.err.contains("--no-renew"), "{ended:?}");
    assert!(!ended.err.contains("answer to its renewals"), "the store is blamed: {ended:?}");
    assert!(is_dead(child));
}

#[test]
fn max_hold_is_a_loss_and_frees_the_name() {
    let place = Place::new();
    let started = Instant::now();
    let ended = place.output(&["run", "--max-hold", "300ms", "x", "--", "sleep", "60"]);
    assert_eq!(ended.code, 79);
    assert!(started.elapsed() < Duration::from_secs(10) && ended.err.contains("longest hold"), "{ended:?}");
    assert!(place.is_free("x"));
}

#[test]
fn a_lock_that_went_away_meanwhile_is_79() {
    let place = Place::new();
    let ended = place.output(&["run", "x", "--", "sh", "-c", "\"$TENURE\" break x 2>/dev/null"]);
    assert_eq!(ended.code, 79);
    assert!(ended.err.contains("lost"), "{ended:?}");
}

#[test]
fn what_is_left_in_the_background_is_told() {
    let place = Place::new();
    let ended = place.output(&["run", "x", "--", "sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $! > left"]);
    assert_eq!(ended.code, 0);
    assert!(ended.err.contains("no longer protected"), "{ended:?}");
    assert!(place.is_free("x"));
    let left = place.pid("left");
    assert!(!is_dead(left), "it is notified, not killed");
    kill(left, Signal::SIGKILL).unwrap();
}

#[test]
fn tstp_stops_both_and_a_late_continuation_kills() {
    let place = Place::new();
    for late in [false, true] {
        let up = format!("up-{late}");
        // A shell of its own session would be needed to continue us; here the test is the parent in the same session.
        let code = format!("trap 'exit 5' USR1; echo $$ > {up}; while :; do sleep 0.01; echo >> ticks-{late}; done");
        let ttl = if late { "3s" } else { "60s" };
        let mut command = place.tenure(&["run", "--ttl", ttl, "x", "--", "bash", "-c", &code]);
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let running = Running::start(&mut command);
        let child: Pid = place.pid(&up);
        running.signal(Signal::SIGTSTP);
        wait_for("both to stop", || is_stopped(child) && is_stopped(running.pid()));
        if late {
            wait_for("the end of the lease", || place.is_free("x"));
            let ticks = place.read("ticks-true").len();
            running.signal(Signal::SIGCONT);
            assert_eq!(running.end().code, 79);
            assert_eq!(place.read("ticks-true").len(), ticks, "it ran on without the lock");
        } else {
            running.signal(Signal::SIGCONT);
            wait_for("the command to go on", || !is_stopped(child));
            running.signal(Signal::SIGUSR1);
            assert_eq!(running.end().code, 5);
        }
    }
}

#[test]
fn a_lost_lock_ends_a_nested_command_with_all_it_started() {
    let place = Place::new();
    let stubborn = "trap '' TERM; (trap '' TERM; echo $BASHPID > grandchild; exec sleep 60) & \
                    (setsid bash -c 'trap \"\" TERM; echo $$ > away; exec sleep 60') & echo $$ > child; sleep 60; wait";
    let tenure = env!("CARGO_BIN_EXE_tenure");
    let inner = [tenure, "run", "--ttl", "60s", "inner", "--", "bash", "-c", stubborn];
    let mut command = place.tenure(&[&["run", "--ttl", "6s", "outer", "--"], &inner[..]].concat());
    let mut running = Running::of(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let started = [place.pid("child"), place.pid("grandchild"), place.pid("away")];
    assert_eq!(place.output(&["break", "outer"]).code, 0);
    assert_eq!(running.status().code(), Some(79));
    for pid in started {
        assert!(is_dead(pid), "{pid} lives on without the lock");
    }
}

#[test]
fn children_that_we_were_born_with_are_left_alone() {
    let place = Place::new();
    let code = "sleep 60 >/dev/null 2>&1 & echo $! > stranger; exec \"$TENURE\" run --max-hold 300ms x -- sleep 60";
    let ended = Ended::from(place.shell("bash", code).output().unwrap());
    assert_eq!(ended.code, 79, "{ended:?}");
    let stranger = place.pid("stranger");
    assert!(!is_dead(stranger), "killed for a lock that it never had");
    kill(stranger, Signal::SIGKILL).unwrap();
}

/// Clock ticks that a process has computed for.
fn ticks(pid: Pid) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<u64> = stat.rsplit_once(") ").unwrap().1.split(' ').map(|field| field.parse().unwrap_or(0)).collect();
    fields[11] + fields[12]
}

#[test]
fn tstp_with_a_command_that_does_not_stop_for_it() {
    for code in ["trap '' TSTP; echo $$ > child; exec sleep 60", "echo $$ > child; kill -STOP $$; exec sleep 60"] {
        let place = Place::new();
        // With a shell above us that could continue us, and without.
        for grouped in [true, false] {
            let _ = std::fs::remove_file(place.path("child"));
            let mut command = if grouped {
                let mut command = place.tenure(&[]);
                std::os::unix::process::CommandExt::process_group(&mut command, 0);
                command
            } else {
                // It becomes what it runs.
                let mut command = std::process::Command::new("setsid");
                place.settle(&mut command);
                command.arg(env!("CARGO_BIN_EXE_tenure")).stdin(Stdio::null());
                command
            };
            command.args(["run", "--ttl", "3s", "--kill-after", "100ms", "x", "--", "sh", "-c", code]);
            let running = Running::start(&mut command);
            let child = place.pid("child");
            if code.contains("STOP") {
                wait_for("the command to stop", || is_stopped(child));
            }
            running.signal(Signal::SIGTSTP);
            if grouped {
                wait_for("both to stop", || is_stopped(child) && is_stopped(running.pid()));
                running.signal(Signal::SIGCONT);
                wait_for("the command to go on", || !is_stopped(child));
            }
            std::thread::sleep(Duration::from_millis(600));
            let before = ticks(running.pid());
            // It renews: another waits in vain for longer than the ttl.
            assert_eq!(place.output(&["run", "-w", "3200ms", "x", "--", "true"]).code, 75, "{code}");
            let used = ticks(running.pid()) - before;
            assert!(used < 96, "{used} ticks of computing in 3.2 s");
            kill(child, Signal::SIGKILL).unwrap();
            assert_eq!(running.end().code, 137);
        }
    }
}

#[test]
fn blocked_signals_are_heard() {
    let place = Place::new();
    let block = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals)); \
                 os.execv(sys.argv[1], sys.argv[1:])";
    let mut command = std::process::Command::new("python3");
    place.settle(&mut command);
    let args = ["run", "--ttl", "60s", "x", "--", "sh", "-c", "echo > up; sleep 60"];
    command.args(["-c", block, env!("CARGO_BIN_EXE_tenure")]).args(args).stdin(Stdio::null());
    let running = Running::start(&mut command);
    place.line("up");
    running.signal(Signal::SIGTERM);
    let (sent, ended) = (Instant::now(), running.end());
    assert_eq!(ended.code, 143, "{ended:?}");
    assert!(sent.elapsed() < Duration::from_secs(5), "took {:?}", sent.elapsed());
}

#[test]
fn full_stderr_does_not_hold_up_the_command() {
    let place = Place::new();
    let (_reader, writer) = full_pipe();
    let mut command = place.tenure(&["run", "-v", "x", "--", "sh", "-c", "echo > up; sleep 60"]);
    let running = Running::of(command.stderr(writer).spawn().unwrap());
    place.line("up");
    drop(running);
}

#[test]
fn a_program_that_was_replaced_runs_on() {
    let place = Place::new();
    let copy = place.path("tenure");
    // By a process of its own, as a `script` is written.
    assert!(std::process::Command::new("cp").arg(env!("CARGO_BIN_EXE_tenure")).arg(&copy).status().unwrap().success());
    let mut command = std::process::Command::new(&copy);
    place.settle(&mut command);
    nix::unistd::mkfifo(&place.path("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let held = place.spawn(&["run", "x", "--", "sh", "-c", "echo > up; read line < fifo"]);
    place.line("up");
    let waiting = Running::start(command.args(["run", "x", "--", "echo", "ran"]).stdin(Stdio::null()));
    wait_for("the copy to run", || std::fs::read(format!("/proc/{}/comm", waiting.pid())).is_ok_and(|comm| comm == b"tenure\n"));
    std::fs::remove_file(&copy).unwrap();
    crate::common::script(&copy, "#!/bin/sh\necho another\n");
    std::fs::write(place.path("fifo"), "go\n").unwrap();
    assert_eq!(held.end().code, 0);
    let ended = waiting.end();
    assert_eq!((ended.code, ended.out.as_str()), (0, "ran\n"), "{ended:?}");
}
