//! Nothing that a process of tests has started outlives it, however it ends.
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tenure_testkit::{Program, RedisServer, Signal, Spawned, Worker, is_alive, signal, wait_until};

/// How soon what is left has to be gone.
const SOON: Duration = Duration::from_secs(10);
/// The role of the process that is killed, and of one that is not.
const ROLE: &str = "TENURE_GUARDIAN_TEST";

/// This test binary in a role, as `program` with `words` starts it.
fn start(mut command: Command, role: &str) -> (Spawned, Started) {
    command.env(ROLE, role).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = Spawned::spawn(&mut command).unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
    let told = lines.find_map(|line| line.strip_prefix("started ").map(str::to_owned)).unwrap();
    let mut words = told.split(' ');
    let dir = PathBuf::from(words.next().unwrap());
    let started = Started { dir, pids: words.map(|pid| pid.parse().unwrap()).collect() };
    assert!(started.is_there(), "{started:?}");
    (process, started)
}

/// Directory and processes that a process has started, by its own report.
#[derive(Debug)]
struct Started {
    dir: PathBuf,
    pids: Vec<u32>,
}

impl Started {
    fn is_there(&self) -> bool {
        self.dir.exists() && self.pids.iter().all(|pid| is_alive(*pid))
    }

    fn is_gone(&self) -> bool {
        !self.dir.exists() && !self.pids.iter().any(|pid| is_alive(*pid))
    }
}

fn this_binary() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "guardian::role", "--nocapture"]);
    command
}

/// Not a case: the process that is killed begins here.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let server = RedisServer::start();
    let worker = Worker::start(Program::this_test().on("memory:"));
    signal(worker.pid(), Signal::Stop).unwrap();
    // A shell, and what it has started in a session of its own.
    let mut shell =
        Spawned::spawn(Command::new("sh").args(["-c", "setsid sleep 600 & echo $!; wait"]).stdout(Stdio::piped())).unwrap();
    let mut grandchild = String::new();
    BufReader::new(shell.stdout.take().unwrap()).read_line(&mut grandchild).unwrap();
    let pids = format!("{} {} {} {} {}", server.pid(), worker.pid(), shell.pid(), grandchild.trim(), std::process::id());
    println!("\nstarted {} {pids}", server.dir().display());
    std::io::stdout().flush().unwrap();
    if role == "ends" {
        // As a server in a static: nobody drops it.
        std::mem::forget((server, worker, shell));
        let _ = std::io::stdin().read_line(&mut String::new());
        return;
    }
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn what_a_killed_process_has_started_ends_with_it() {
    for how in [Signal::Kill, Signal::Int, Signal::Term] {
        let (mut process, started) = start(this_binary(), "stays");
        process.signal(how).unwrap();
        process.wait().unwrap();
        wait_until(SOON, &format!("the end after {how:?} of {started:?}"), || started.is_gone());
    }
}

#[test]
fn what_a_process_that_ended_has_forgotten_ends_with_it() {
    let (mut process, started) = start(this_binary(), "ends");
    process.stdin.take().unwrap().write_all(b"\n").unwrap();
    process.wait().unwrap();
    wait_until(SOON, &format!("the end of {started:?}"), || started.is_gone());
}

#[test]
fn a_process_that_cargo_has_started_ends_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let cargo = dir.path().join("cargo");
    symlink(which("sh"), &cargo).unwrap();
    let binary = std::env::current_exe().unwrap();
    let mut command = Command::new(cargo);
    // The shell must not become the program itself.
    command.arg("-c").arg("\"$0\" \"$@\"; exit").arg(binary).args(["--exact", "guardian::role", "--nocapture"]);
    let (mut process, started) = start(command, "stays");
    signal(process.pid(), Signal::Kill).unwrap();
    process.wait().unwrap();
    wait_until(SOON, &format!("the end of {started:?}"), || started.is_gone());
}

fn which(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|path| Path::new(path).exists()).unwrap()
}
