//! Wall clocks that jump under a running process.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use tenure_testkit::{RedisServer, ShiftedClock, Spawned};

const MINUTE: i64 = 60_000;
/// Time that may pass between two readings, also on a busy machine.
const SLACK: i64 = 10_000;

fn server_time(server: &RedisServer) -> i64 {
    server.cli("TIME").lines().next().unwrap().parse().unwrap()
}

fn wall_time() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs().try_into().unwrap()
}

#[test]
fn a_server_clock_that_jumps_moves_the_ends_of_locks() {
    let server = RedisServer::builder().shifted_clock().start();
    let left = |server: &RedisServer| server.command(&["PTTL", "lock"]).int();
    server.cli("SET lock me PX 30000");
    server.shift_clock(-MINUTE);
    assert!((90_000 - SLACK..=90_000).contains(&left(&server)), "{}", left(&server));
    server.shift_clock(0);
    assert!((30_000 - SLACK..=30_000).contains(&left(&server)), "{}", left(&server));
    server.shift_clock(MINUTE);
    assert_eq!(server.cli("SET lock you NX"), "OK");
    server.restart();
    assert!((server_time(&server) - wall_time() - 60).abs() <= 10, "a new process has another clock");
}

#[test]
fn a_jump_leaves_the_monotonic_clock_alone() {
    let clock = ShiftedClock::new();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "clock::tell_how_the_clocks_went", "--ignored", "--nocapture"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    clock.apply(&mut command);
    let mut process = Spawned::spawn(&mut command).unwrap();
    let mut orders = process.child().stdin.take().unwrap();
    let mut lines = BufReader::new(process.child().stdout.take().unwrap()).lines().map(Result::unwrap);
    lines.find(|line| line == "ready").unwrap();
    clock.shift(MINUTE);
    orders.write_all(b"now\n").unwrap();
    let told = lines.find_map(|line| line.strip_prefix("went ").map(str::to_owned)).unwrap();
    let went: Vec<i64> = told.split(' ').map(|number| number.parse().unwrap()).collect();
    let [wall, monotonic, boot] = went[..] else { panic!("{told}") };
    assert!((MINUTE..MINUTE + SLACK).contains(&wall), "{told}");
    assert!((0..SLACK).contains(&monotonic), "{told}");
    assert!((0..SLACK).contains(&boot), "{told}");
}

/// The process of the case above: says by how many milliseconds its wall, monotonic and boot-time clocks went on between
/// "ready" and the next line it reads.
#[test]
#[ignore = "runs in a process of its own"]
fn tell_how_the_clocks_went() {
    let (wall, monotonic, boot) = (SystemTime::now(), Instant::now(), tenure::BootTime::now());
    println!("\nready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let wall = SystemTime::now().duration_since(wall).unwrap();
    let went = [wall, monotonic.elapsed(), tenure::BootTime::now().since(boot)];
    let [wall, monotonic, boot] = went.map(|went: Duration| went.as_millis());
    println!("\nwent {wall} {monotonic} {boot}");
}
