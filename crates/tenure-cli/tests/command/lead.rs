//! `tenure lead`: one leader at a time, and a new one soon, whatever ends the old one.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tenure_testkit::{Proxy, RedisServer};

use crate::common::{Place, Running, is_dead, joined, wait_for};

/// Leads, and writes its fence into a file for as long as it does.
const ACTS: &str = "echo $$ > pid; while :; do echo $TENURE_FENCE >> acts; sleep 0.05; done";

/// Also one that says it cannot be run, as of a wrapper whose program is on a mount that is late.
#[test]
fn a_command_that_fails_at_once_is_run_ever_more_seldom() {
    let place = Place::new();
    let fails = "date +%s%N >> runs; exit $((124 + $(wc -l < runs)))";
    let leading = place.spawn(&["lead", "x", "--", "sh", "-c", fails]);
    wait_for("a third run", || place.read("runs").lines().count() >= 3);
    // It does not lead without a command. The pause is of 4 s, and the signal is not for the command.
    wait_for("the pause", || place.is_free("x"));
    leading.signal(Signal::SIGTERM);
    let ended = leading.end();
    assert!(ended.code == 128 + 15 && ended.err.contains("campaigning for"), "{ended:?}");
    let runs: Vec<u64> = place.read("runs").lines().map(|at| at.parse().unwrap()).collect();
    let pauses: Vec<u64> = runs.windows(2).map(|two| (two[1] - two[0]) / 1_000_000).collect();
    assert!(runs.len() == 3 && pauses[0] >= 1_000 && pauses[1] >= 2_000, "{pauses:?}");
}

#[test]
fn a_signal_ends_the_command_and_the_candidate() {
    let place = Place::new();
    let leading = place.spawn(&["lead", "x", "--", "sh", "-c", "trap 'exit 9' TERM; echo > up; while :; do sleep 0.05; done"]);
    let waiting = place.spawn(&["lead", "x", "--", "true"]);
    place.line("up");
    waiting.signal(Signal::SIGINT);
    assert_eq!(waiting.end().code, 130);
    leading.signal(Signal::SIGTERM);
    assert_eq!(leading.end().code, 9);
    assert!(place.is_free("x"));
}

#[test]
fn a_leader_that_was_broken_campaigns_again() {
    let place = Place::new();
    let leading = place.spawn(&["lead", "--ttl", "6s", "x", "--", "sh", "-c", ACTS]);
    place.line("acts");
    let first = place.pid("pid");
    assert_eq!(place.output(&["break", "x"]).code, 0);
    wait_for("the command to end", || is_dead(first));
    wait_for("it to act again", || {
        let acts = place.read("acts");
        acts.ends_with('\n') && acts.lines().last() != acts.lines().next()
    });
    leading.signal(Signal::SIGTERM);
    assert_eq!(leading.end().code, 128 + 15);
    let fences: Vec<u64> = place.read("acts").lines().map(|fence| fence.parse().unwrap()).collect();
    assert!(fences.is_sorted() && fences.first() < fences.last(), "{fences:?}");
}

/// A service that goes to the background, and a process of it in a group of its own.
#[test]
fn what_a_command_leaves_behind_is_ended_before_the_next_leads() {
    let place = Place::new();
    let leaves = "(while :; do echo $$ > left; sleep 0.02; done) & echo $! > inside; \
                  setsid sh -c 'echo $$ > outside; exec sleep 60' & while ! [ -s left -a -s outside ]; do sleep 0.02; done";
    let first = place.spawn(&["lead", "x", "--", "sh", "-c", leaves]);
    // Alive, if one of them is.
    let looks = "for pid in $(cat inside outside); do kill -0 $pid && echo alive >> seen; done; echo over >> seen; sleep 60";
    wait_for("the first to lead", || place.read("outside").ends_with('\n'));
    let second = place.spawn(&["lead", "x", "--", "sh", "-c", looks]);
    assert_eq!(place.line("seen"), "over");
    assert!(is_dead(place.pid("inside")) && is_dead(place.pid("outside")));
    for candidate in [first, second] {
        candidate.signal(Signal::SIGTERM);
        assert_eq!(candidate.end().code, 128 + 15);
    }
}

/// USR1, and a HUP for a service that reads its configuration anew. One whose command ends makes way, and campaigns again.
#[test]
fn signals_for_the_command_end_no_candidate() {
    let place = Place::new();
    let serves = "trap 'echo usr1 >> got' USR1; trap 'echo hup >> got' HUP; echo up >> got; \
                  until [ -e end ]; do sleep 0.02; done; exit 3";
    let leading = place.spawn(&["lead", "x", "--", "sh", "-c", serves]);
    assert_eq!(place.line("got"), "up");
    let mut waiting = place.spawn(&["lead", "x", "--", "sh", "-c", "echo next >> got; sleep 60"]);
    wait_for("the second to wait", || place.output(&["show", "x"]).out.contains("waiter 1"));
    for (signal, got) in [(Signal::SIGUSR1, "usr1\n"), (Signal::SIGHUP, "hup\n")] {
        leading.signal(signal);
        wait_for("the command to have it", || place.read("got").ends_with(got));
    }
    waiting.signal(Signal::SIGUSR1);
    std::fs::write(place.path("end"), "").unwrap();
    wait_for("the one that waited to lead", || place.read("got").ends_with("next\n"));
    wait_for("the first to wait behind it", || place.output(&["show", "x"]).out.contains("waiter 1"));
    waiting.signal(Signal::SIGTERM);
    assert_eq!(waiting.status().code(), Some(128 + 15));
    std::fs::remove_file(place.path("end")).unwrap();
    wait_for("the first to lead again", || place.read("got").ends_with("up\n"));
    leading.signal(Signal::SIGTERM);
    let ended = leading.end();
    let told = ["the command ended with 3 after", "campaigning for \"x\" again in 1s"];
    assert!(ended.code == 128 + 15 && told.iter().all(|word| ended.err.contains(word)), "{ended:?}");
    assert!(place.is_free("x"));
}

/// `tenure lead` without a terminal, as a service manager starts it.
fn daemon(place: &Place, args: &[&str]) -> Running {
    // The child of a test leads no group, so this becomes the command at once.
    let mut command = std::process::Command::new("setsid");
    place.settle(&mut command);
    command.arg(env!("CARGO_BIN_EXE_tenure")).args(args).stdin(std::process::Stdio::null());
    Running::start(&mut command)
}

/// A HUP for a service that reads its configuration anew. It comes when no command runs: to one that waits, and to one in the pause.
#[test]
fn a_hangup_without_a_terminal_ends_no_candidate() {
    let place = Place::new();
    let pausing = daemon(&place, &["lead", "x", "--", "sh", "-c", "echo >> runs; exit 1"]);
    // In the pause of 4 s.
    wait_for("a third run", || place.read("runs").lines().count() == 3 && place.is_free("x"));
    pausing.signal(Signal::SIGHUP);
    wait_for("a fourth run", || place.read("runs").lines().count() >= 4 && place.is_free("x"));
    pausing.signal(Signal::SIGTERM);
    assert_eq!(pausing.end().code, 128 + 15);
    // A wait of the configuration is for `run`.
    place.write_config("wait = \"100ms\"\n");
    assert_eq!(place.output(&["acquire", "--ttl", "10m", "y"]).code, 0);
    let mut waiting = daemon(&place, &["lead", "y", "--", "sh", "-c", "echo > up; sleep 60"]);
    wait_for("it to wait", || place.output(&["show", "y"]).out.contains("waiter 1"));
    waiting.signal(Signal::SIGHUP);
    assert_eq!(place.output(&["break", "y"]).code, 0);
    let mut ended = None;
    wait_for("it to lead, or to end", || {
        ended = waiting.0.try_wait().unwrap();
        ended.is_some() || place.read("up").ends_with('\n')
    });
    assert!(ended.is_none(), "{:?}", waiting.end());
    waiting.signal(Signal::SIGTERM);
    assert_eq!(waiting.end().code, 128 + 15);
}

/// The first process of a container gets every process whose parent has ended. Here nothing of its own runs yet.
#[test]
fn a_candidate_that_waits_collects_what_ends() {
    let place = Place::new();
    assert_eq!(place.output(&["acquire", "--ttl", "10m", "x"]).code, 0);
    let mut command = std::process::Command::new("unshare");
    place.settle(&mut command);
    command.args(["-rpf", "--mount-proc", "--kill-child=KILL", env!("CARGO_BIN_EXE_tenure"), "lead", "x", "--", "true"]);
    let container = Running::start(command.stdin(std::process::Stdio::null()));
    wait_for("it to wait", || place.output(&["show", "x"]).out.contains("waiter 1"));
    let first = crate::common::children(container.pid())[0].to_string();
    let leaves = "sh -c '{ until [ -e go ]; do sleep 0.02; done; } & echo $! > left'";
    let enter = ["-t", &first, "-U", "-p", "--preserve-credentials", "sh", "-c", leaves];
    let mut enter = std::process::Command::new("nsenter").args(enter).current_dir(place.path(".")).spawn().unwrap();
    assert!(enter.wait().unwrap().success());
    place.line("left");
    // Its guardian aside.
    let is_other =
        |pid: &nix::unistd::Pid| !std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default().starts_with(b"tenure\0");
    let left = || {
        let mut left = crate::common::children(nix::unistd::Pid::from_raw(first.parse().unwrap()));
        left.retain(is_other);
        left
    };
    assert_eq!(left().len(), 1, "the first process did not get it");
    std::fs::write(place.path("go"), "").unwrap();
    wait_for("it to be collected", || left().is_empty());
}

/// It says so at once, and takes no turn from a host that has the command.
#[test]
fn a_candidate_without_its_command_does_not_wait() {
    let place = Place::new();
    assert_eq!(place.output(&["acquire", "--ttl", "10m", "x"]).code, 0);
    for (args, code) in [(&["x", "--", "./nothing"][..], 127), (&["--ttl", "1ms", "x", "--", "true"], 64)] {
        let ended = place.spawn(&[&["lead"], args].concat()).end();
        assert_eq!(ended.code, code, "{ended:?}");
    }
}

/// The release finds it out.
#[test]
fn a_command_whose_lead_was_broken_ended_as_it_did() {
    let place = Place::new();
    let breaks = format!("{} break x; echo >> runs; exit 0", env!("CARGO_BIN_EXE_tenure"));
    let leading = place.spawn(&["lead", "x", "--", "sh", "-c", &breaks]);
    wait_for("a second run", || place.read("runs").lines().count() == 2);
    leading.signal(Signal::SIGTERM);
    let ended = leading.end();
    assert!(ended.err.contains("was lost") && ended.err.contains("the command ended with 0 after"), "{ended:?}");
}

#[test]
fn a_name_is_followed() {
    let place = Place::new();
    for (output, free, led) in
        [("text", "x  nobody", "x  web.1  mutex, fence "), ("json", "\"holders\":[]", "\"owner\":\"web.1.")]
    {
        let mut following = place.spawn(&["show", "-w", "-o", output, "x"]);
        let mut lines = BufReader::new(following.0.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut next = || lines.next().expect("it does not follow any more");
        let first = next();
        assert!(first.contains(free), "{first}");
        let mut leading = place.spawn(&["lead", "--label", "web.1", "x", "--", "sh", "-c", "sleep 60"]);
        let second = next();
        assert!(second.contains(led), "{second}");
        leading.signal(Signal::SIGTERM);
        assert_eq!(leading.status().code(), Some(128 + 15));
        let third = next();
        assert!(third.contains(free), "{third}");
        drop(following);
    }
    for args in [&["show", "-w"][..], &["show", "-w", "--wait", "1s", "x"]] {
        assert_eq!(place.output(args).code, 64, "{args:?}");
    }
}

/// The note by which the store shows the fence was evicted. The holder is the same.
#[test]
fn a_fence_that_is_not_shown_for_a_moment_is_no_change() {
    let (place, server) = (Place::new(), RedisServer::start());
    let url = server.url();
    assert_eq!(place.output(&["acquire", "--store", &url, "--label", "web.1", "--ttl", "10m", "x"]).code, 0);
    let mut following = place.spawn(&["show", "-w", "--store", &url, "x"]);
    let mut lines = BufReader::new(following.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    let first = lines.next().unwrap();
    assert!(first.contains("web.1") && first.contains(", fence "), "{first}");
    let note = server.cli("KEYS *:s:x");
    assert_eq!(server.cli(&format!("DEL {note}")), "1");
    assert!(!place.output(&["show", "--store", &url, "-o", "json", "x"]).out.contains("\"fence\":\""));
    // It looks five times a second.
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(place.output(&["break", "--store", &url, "x"]).code, 0);
    assert_eq!(lines.next().unwrap(), "x  nobody");
}

/// As under `| head -1`. Nothing changes that it could print.
#[test]
fn who_follows_for_nobody_ends() {
    let place = Place::new();
    let mut following = place.spawn(&["show", "-w", "x"]);
    let mut first = String::new();
    BufReader::new(following.0.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert_eq!(first, "x  nobody\n");
    assert_eq!(following.status().code(), Some(128 + 13));
}

/// A fault that ends a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Killed,
    Stopped,
    Partitioned,
    Resigned,
}

/// A leader by a way of its own and another candidate, and then another leader. Twice, so that both have been in each place.
fn election(fault: Fault) {
    let (place, server) = (Place::new(), RedisServer::start());
    // Between the TERM for the command of a leader that is cut off and the next leader is a third of it.
    let ttl = Duration::from_secs(if fault == Fault::Partitioned { 6 } else { 3 });
    let ways = [(); 2].map(|()| Proxy::start(server.addr()));
    let candidate = |at: usize| {
        let (url, ttl) = (ways[at].url(), tenure::format_duration(ttl));
        let acts = "while :; do echo $0 $TENURE_FENCE >> acts; sleep 0.03; done";
        place.spawn(&["lead", "-q", "--store", &url, "--ttl", &ttl, "x", "--", "sh", "-c", acts, &at.to_string()])
    };
    // The last who acted, and its fence.
    let acted = || -> Option<(usize, u64)> {
        let acts = place.read("acts");
        let (at, fence) = acts.rsplit_once('\n')?.0.lines().last()?.split_once(' ')?;
        Some((at.parse().unwrap(), fence.parse().unwrap()))
    };
    let mut running = [candidate(0), candidate(1)];
    wait_for("a leader", || acted().is_some());
    for round in 0..2 {
        let (at, fence) = acted().unwrap();
        let began = Instant::now();
        match fault {
            Fault::Killed => running[at].signal(Signal::SIGKILL),
            Fault::Stopped => running[at].signal(Signal::SIGSTOP),
            Fault::Partitioned => ways[at].black_hole(),
            Fault::Resigned => running[at].signal(Signal::SIGTERM),
        }
        wait_for("a new leader to act", || acted().is_some_and(|(_, next)| next > fence));
        let (took, limit) = (began.elapsed(), if fault == Fault::Resigned { Duration::ZERO } else { ttl });
        assert!(took < limit + Duration::from_secs(1), "{fault:?}, round {round}: the next leader took {took:?}");
        match fault {
            Fault::Stopped => running[at].signal(Signal::SIGCONT),
            Fault::Partitioned => ways[at].heal(),
            Fault::Killed | Fault::Resigned => running[at] = candidate(at),
        }
    }
    drop(running);
    let acts = place.read("acts");
    let fences: Vec<u64> = acts.lines().map(|line| line.split_once(' ').unwrap().1.parse().unwrap()).collect();
    // The guardian of a stopped process ends its command. It may be late itself, and then a resource has to refuse.
    assert!(fences.is_sorted() || fault == Fault::Stopped, "two led at once: {fences:?}");
}

/// At the same time, because most of it is waiting for the ttl.
#[test]
fn a_leader_is_followed_in_time_whatever_ends_it() {
    std::thread::scope(|scope| {
        let faults = [Fault::Killed, Fault::Stopped, Fault::Partitioned, Fault::Resigned];
        faults.map(|fault| scope.spawn(move || election(fault))).into_iter().for_each(joined);
    });
}

/// At boot a candidate may come long before its store. It says so, and goes on.
#[test]
fn no_outage_ends_a_candidate() {
    let (place, server) = (Place::new(), RedisServer::start());
    let url = server.url();
    server.kill();
    let mut lead = place.tenure(&["lead", "--store", &url, "x", "--", "sh", "-c", "echo in > in; sleep 600"]);
    let mut lead = Running::of(lead.stderr(std::fs::File::create(place.path("said")).unwrap()).spawn().unwrap());
    // Longer than a first contact is tried elsewhere.
    wait_for("another report of the outage", || place.read("said").contains("trying again for "));
    assert!(lead.0.try_wait().unwrap().is_none(), "{}", place.read("said"));
    server.restart();
    assert_eq!(place.line("in"), "in");
    assert!(place.read("said").contains("the store answers now"), "{}", place.read("said"));
}

/// Two hosts with a file each lead both.
#[test]
fn a_private_file_is_told_where_hosts_are_meant() {
    let place = Place::new();
    let said = |args: &[&str]| {
        let ended = place.output(args);
        assert_eq!(ended.code, 0, "{ended:?}");
        (ended.err.contains("other hosts are not excluded"), ended.err.contains("locks.db"))
    };
    assert_eq!(said(&["run", "--once-per", "1h", "tick", "--", "true"]), (true, true));
    assert_eq!(said(&["run", "x", "--", "true"]), (false, false));
    assert_eq!(said(&["run", "-v", "x", "--", "true"]), (false, true));
    let own = format!("sqlite:{}", place.path("own.db").display());
    assert_eq!(said(&["run", "--store", &own, "--once-per", "1h", "tick", "--", "true"]), (false, false));
    let file = place.path("said");
    let mut lead = place.tenure(&["lead", "y", "--", "sleep", "600"]);
    let _lead = Running::of(lead.stderr(std::fs::File::create(&file).unwrap()).spawn().unwrap());
    wait_for("its line", || place.read("said").contains("other hosts are not excluded"));
}
