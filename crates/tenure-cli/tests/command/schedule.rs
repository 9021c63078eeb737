//! `tenure run --once-per`: one run in each period, on hosts whose clocks differ.

use std::time::{Duration, Instant};

use fastrand::Rng;
use nix::sys::signal::Signal;
use tenure_testkit::{RedisServer, some_of};

use crate::common::{Place, Running, assert_one_line, joined, script};

const HOSTS: u32 = 5;
const TICKS: u32 = 10;
/// A minute of the hosts takes this long here.
const MINUTE: Duration = Duration::from_millis(300);
/// A tick every ten minutes.
const PERIOD: Duration = MINUTE.saturating_mul(10);

/// Writes when it begins. It takes half a minute.
const JOB: &str = "echo $TICK >> runs; sleep 0.15";

/// A host at one tick.
struct Turn {
    tick: u32,
    was_killed: bool,
    has_run: bool,
    /// From the tick of its own clock on.
    took: Duration,
}

/// A host's part of a schedule: at each tick of its own clock it starts the job, as cron does.
///
/// The clock of a host says when its cron starts the command, and nothing else: the command reads the
/// boot-time clock alone, which nobody sets. So a clock that is late is a start that is late.
fn host(place: &Place, url: &str, host: u32, began: Instant, mut kills: Option<Rng>) -> Vec<Turn> {
    // Two minutes between the first clock and the last.
    let shift = MINUTE * 2 * host / (HOSTS - 1);
    let (period, mut turns) = (format!("{}ms", PERIOD.as_millis()), Vec::new());
    for tick in 0..TICKS {
        let at = began + PERIOD * tick + shift;
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        let mut command = place.tenure(&["run", "-q", "--store", url, "--once-per", &period, "report"]);
        command.args(["--", "sh", "-c", JOB]).env("TICK", tick.to_string());
        let mut running = Running::start(&mut command);
        let after = kills.as_mut().and_then(|random| (random.u32(..4) == 0).then(|| random.u64(..100)));
        let code = if let Some(after) = after {
            std::thread::sleep(Duration::from_millis(after));
            running.signal(Signal::SIGKILL);
            running.end_by_signal().code()
        } else {
            let (code, took) = (running.status().code(), at.elapsed());
            // An answer or a renewal came too late.
            assert!(![Some(69), Some(79)].contains(&code), "host {host}, tick {tick}: {code:?}, it took {took:?}");
            assert!([Some(0), Some(75)].contains(&code), "host {host}, tick {tick}: {code:?}");
            code
        };
        turns.push(Turn { tick, was_killed: code.is_none(), has_run: code == Some(0), took: at.elapsed() });
    }
    turns
}

/// Runs a schedule, and looks how often each tick ran.
fn schedule(url: &str, began: Instant, seed: Option<u64>) {
    let place = Place::new();
    let random = |host: u32| seed.map(|seed| Rng::with_seed(seed + u64::from(host)));
    let turns: Vec<Turn> = std::thread::scope(|scope| {
        let place = &place;
        let hosts: Vec<_> = (0..HOSTS).map(|at| scope.spawn(move || host(place, url, at, began, random(at)))).collect();
        hosts.into_iter().flat_map(joined).collect()
    });
    let killed: Vec<u32> = turns.iter().filter(|turn| turn.was_killed).map(|turn| turn.tick).collect();
    let runs: Vec<u32> = place.read("runs").lines().map(|tick| tick.parse().unwrap()).collect();
    for tick in 0..TICKS {
        let times = runs.iter().filter(|run| **run == tick).count();
        let is_right = times == 1 || (times == 0 && killed.contains(&tick));
        // A host that is late for a tick may run it twice, and takes the next one from the others.
        let ran = turns.iter().filter(|turn| (turn.has_run || turn.was_killed) && (turn.tick == tick || turn.tick + 1 == tick));
        let late = ran.map(|turn| turn.took).max().unwrap_or_default();
        assert!(is_right || late < MINUTE * 2, "tick {tick} ran {times} times: a host took {late:?}");
        assert!(is_right, "tick {tick} ran {times} times: {runs:?}, killed at {killed:?}");
    }
    assert!(seed.is_none() || killed.len() > 1, "hardly anybody was killed: {killed:?}");
}

#[allow(clippy::print_stdout, reason = "a failure needs the seed")]
#[test]
fn each_tick_runs_once_though_clocks_differ() {
    let server = RedisServer::start();
    let seed = std::env::var("TENURE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..1 << 48));
    println!("TENURE_SEED={seed} makes the same kills");
    let began = Instant::now() + Duration::from_millis(500);
    // Twenty schedules at once make 200 ticks.
    let schedules = u32::try_from(some_of(20)).unwrap();
    std::thread::scope(|scope| {
        let start = |at| {
            // Not all at the same moment.
            let began = began + PERIOD * at / schedules;
            let url = format!("{}?prefix=s{at}:", server.url());
            scope.spawn(move || schedule(&url, began, (at % 2 == 1).then_some(seed + u64::from(at) * 100)))
        };
        let running: Vec<_> = (0..schedules).map(start).collect();
        running.into_iter().for_each(joined);
    });
}

/// All hosts come at the same moment, and split the servers of a quorum, also while one of those is away. One host runs the job, and
/// the others hear that it does.
#[test]
fn a_tick_of_a_quorum_runs_though_all_come_at_once() {
    let servers = [RedisServer::start(), RedisServer::start(), RedisServer::start()];
    let addrs: Vec<_> = servers.iter().map(|server| server.addr().to_string()).collect();
    let (place, url) = (Place::new(), format!("quorum+redis://{}", addrs.join(",")));
    assert_eq!(place.output(&["admit", "--store", &url]).code, 0);
    for tick in 0..5 {
        if tick == 2 {
            servers[0].kill();
        }
        let name = format!("report{tick}");
        let start = || place.spawn(&["run", "-q", "--store", &url, "--once-per", "1m", &name, "--", "sh", "-c", "echo >> runs"]);
        let hosts: Vec<_> = (0..HOSTS).map(|_| start()).collect();
        let codes: Vec<i32> = hosts.into_iter().map(|host| host.end().code).collect();
        let with = |code| codes.iter().filter(|ended| **ended == code).count();
        assert_eq!((with(0), with(75)), (1, HOSTS as usize - 1), "tick {tick}: {codes:?}");
        assert_eq!(place.read("runs").lines().count(), tick + 1);
    }
}

/// Another host has it, and runs it.
#[test]
fn a_missing_command_uses_up_no_tick() {
    let place = Place::new();
    std::fs::write(place.path("plain"), "echo no").unwrap();
    script(&place.path("script"), "#! /no/such/interpreter -u\necho no");
    let (missing, plain) = (["no-such-command", "./no-such-command", "./script", ""], ["./plain", "."]);
    for (command, code) in missing.map(|command| (command, 127)).into_iter().chain(plain.map(|command| (command, 126))) {
        let ended = place.output(&["run", "--once-per", "1h", "report", "--", command]);
        assert_eq!((ended.code, ended.out.as_str()), (code, ""), "{command:?}: {ended:?}");
        assert_one_line(&ended);
    }
    // A job that fails has run. It is not run again by the next host.
    assert_eq!(place.output(&["run", "--once-per", "1h", "report", "--", "false"]).code, 1);
    let second = place.output(&["run", "--once-per", "1h", "report", "--", "echo", "twice"]);
    assert_eq!((second.code, second.out.as_str()), (75, ""), "{second:?}");
    assert!(second.err.contains("nobody"), "{second:?}");
    assert_eq!(place.output(&["run", "-E", "0", "--once-per", "1h", "report", "--", "false"]).code, 0);
}

/// One host is late for a tick, and another early for the next: both ticks run, and once.
#[test]
fn the_room_between_ticks_is_half_a_period_on_both_sides() {
    let place = Place::new();
    let (period, started) = (Duration::from_secs(10), Instant::now());
    let run = || place.output(&["run", "-q", "--once-per", "10s", "report", "--", "true"]).code;
    // Late for its tick by somewhat less than a quarter of the period.
    std::thread::sleep(period * 2 / 10);
    assert_eq!(run(), 0);
    // Early for the next by as much: its tick is a period after the first.
    std::thread::sleep((period * 8 / 10).saturating_sub(started.elapsed()));
    assert_eq!(run(), 0, "a host that was early for its tick did not run it");
    assert_eq!(run(), 75, "the tick ran twice");
}

/// A host dies when half of the period has passed, and its lease was renewed until then. The next comes at once.
#[test]
fn a_host_that_dies_late_costs_the_next_host_no_tick() {
    let place = Place::new();
    let command = |what| ["run", "-q", "--once-per", "16s", "report", "--", "sh", "-c", what];
    let started = Instant::now();
    let mut first = place.spawn(&command("echo > up; exec sleep 60"));
    place.line("up");
    std::thread::sleep(Duration::from_millis(8_300).saturating_sub(started.elapsed()));
    first.signal(Signal::SIGKILL);
    first.status();
    let next = place.output(&command("echo run"));
    assert_eq!((next.code, next.out.as_str()), (0, "run\n"), "{next:?}");
}

/// The period that a refusal names is one that works.
#[test]
fn the_shortest_period_works() {
    let place = Place::new();
    let refused = place.output(&["run", "--once-per", "500ms", "report", "--", "true"]);
    assert_eq!(refused.code, 64, "{refused:?}");
    let (_, shortest) = refused.err.trim().rsplit_once("the shortest period is ").expect("it names none");
    let ended = place.output(&["run", "--once-per", shortest, "report", "--", "true"]);
    assert_eq!(ended.code, 0, "{shortest}: {ended:?}");
}

#[test]
fn what_cannot_be_once_per_period_is_refused() {
    let place = Place::new();
    place.write_config("ttl = \"10s\"\nwait = \"1m\"\n");
    for flags in [
        &["--once-per", "0"][..],
        &["--once-per", "1h", "--wait", "1s"],
        &["--once-per", "1h", "--min-hold", "1s"],
        &["--once-per", "1h", "--restart"],
        &["--once-per", "1h", "--shared"],
        &["--once-per", "1h", "--permits", "1/5"],
        &["--once-per", "1h", "--no-wait"],
        &["--once-per", "1h", "--max-hold", "10m"],
        &["--once-per", "1m", "--ttl", "31s"],
        &["--once-per", "1ms"],
        // Half of it is more than a century.
        &["--once-per", "1000000d"],
    ] {
        let ended = place.output(&[&["run"], flags, &["report", "--", "echo", "run"]].concat());
        assert_eq!((ended.code, ended.out.as_str()), (64, ""), "{flags:?}: {ended:?}");
        if !ended.err.contains("Usage") {
            assert_one_line(&ended);
            assert!(ended.err.contains("--once-per"), "{flags:?}: {ended:?}");
        }
    }
    assert!(place.is_free("report"));
    // A usual ttl gives way, and a usual wait too.
    assert_eq!(place.output(&["run", "--once-per", "10s", "report", "--", "true"]).code, 0);
    assert_eq!(place.output(&["run", "--once-per", "10s", "report", "--", "true"]).code, 75);
}
