//! Resources that are used up, at each place where the command may meet it: it says so, and leaves nothing taken.
use std::fs::{self, OpenOptions};
use std::process::{Command, Stdio};

use crate::common::{Ended, Place, Running, keepers, wait_for, watched};
use tenure_testkit::{RedisServer, Spawned, some_of};

/// A command that takes a lock or looks at one, and the code with which it ends when nothing is wrong. `x` is its name.
struct Case {
    words: &'static [&'static str],
    /// Whether the name stays taken afterwards.
    leaves: bool,
    /// Whether somebody holds the name before, by the token `t`.
    held: bool,
}

const CASES: [Case; 6] = [
    Case { words: &["run", "--ttl", "10s", "x", "--", "true"], leaves: false, held: false },
    Case { words: &["run", "--ttl", "10s", "-v", "--write", "-a", "y", "x", "--", "true"], leaves: false, held: false },
    Case { words: &["acquire", "--ttl", "10s", "x"], leaves: true, held: false },
    Case { words: &["acquire", "--ttl", "10s", "--watch-pid", "SCRIPT", "x"], leaves: false, held: false },
    Case { words: &["release", "x", "--token", "t"], leaves: false, held: true },
    Case { words: &["show", "x"], leaves: true, held: true },
];

/// Exit codes of a command that lacks something: no store, file or thread (69, 74), nothing to run (126), no
/// configuration (78), no file to watch (64).
const REFUSALS: [i32; 5] = [69, 74, 126, 78, 64];

/// One case in one store.
struct Bench {
    place: Place,
    store: String,
}

impl Bench {
    fn sqlite() -> Self {
        let place = Place::new();
        let bench = Self { store: format!("sqlite:{}", place.path("locks.db").display()), place };
        // The file is there: that making it may fail is another matter.
        assert_eq!(bench.place.output(&["run", "--store", &bench.store, "x", "--", "true"]).code, 0);
        bench
    }

    fn redis(server: &RedisServer) -> Self {
        // By name, so that it has to be looked up.
        Self { place: Place::new(), store: format!("redis://localhost:{}", server.port()) }
    }

    fn tenure(&self, words: &[&str]) -> Ended {
        let mut command = self.place.tenure(words);
        Ended::from(Spawned::output(command.env("TENURE_STORE", &self.store)).unwrap())
    }

    /// Both names are free, or `x` is held as the case wants it.
    fn prepare(&self, case: &Case) {
        // A token of the caller's own may be the value of any client.
        for name in ["x", "y"] {
            self.tenure(&["break", "-q", "--foreign", name]);
        }
        if case.held {
            assert_eq!(self.tenure(&["acquire", "-n", "--ttl", "10s", "--token", "t", "x"]).code, 0);
        }
    }

    /// Runs `case` through `wrap`, which has it lack something, and checks what it says and leaves.
    fn lacking(&self, what: &str, case: &Case, wrap: impl Fn(&mut Command)) -> Ended {
        self.prepare(case);
        let script = watched();
        let pid = script.pid().to_string();
        let words: Vec<&str> = case.words.iter().map(|word| if *word == "SCRIPT" { &*pid } else { word }).collect();
        let mut command = Command::new("env");
        self.place.settle(&mut command);
        // The libraries that cargo's tests look for first are not ours: each would be many more files that cannot be opened.
        command.env("TENURE_STORE", &self.store).env_remove("LD_LIBRARY_PATH").stdin(Stdio::null());
        wrap(&mut command);
        command.arg(env!("CARGO_BIN_EXE_tenure")).args(&words);
        // The keeper of a lease may keep our pipes, too.
        let end = |name: &str| fs::File::create(self.place.path(name)).unwrap();
        let mut running = Spawned::spawn(command.stdout(end("out")).stderr(end("err"))).unwrap();
        // The tracer ends with the keeper, which ends with the script.
        wait_for("the end, or a lease", || {
            running.try_wait().unwrap().is_some() || self.place.read("out").contains("TENURE_EXPIRES_AT")
        });
        drop(script);
        let status = Running(running).status();
        wait_for("the end of the keeper", || keepers(&self.place).is_empty());
        let ended = Ended { code: status.code().unwrap_or(-1), out: self.place.read("out"), err: self.place.read("err") };
        self.judge(&format!("{what}, {:?} at {}", case.words, self.store), case, &ended);
        ended
    }

    fn judge(&self, what: &str, case: &Case, ended: &Ended) {
        if ended.err.contains("error while loading shared libraries") {
            // Before the command began.
            return;
        }
        for line in ended.err.lines() {
            assert!(line.starts_with("tenure: "), "{what}: {ended:?}");
        }
        let done = ended.code == 0;
        assert!(done || REFUSALS.contains(&ended.code), "{what}: {ended:?}");
        assert!(done || !ended.err.is_empty(), "{what}: not a word of why: {ended:?}");
        let may_stay = case.held && !done || case.leaves && done || ended.err.contains("may stay taken");
        for name in ["x", "y"] {
            let shown = self.tenure(&["show", "-o", "json", name]);
            assert!(may_stay || shown.out.trim() == "[]", "{what}: {name} is still taken: {ended:?}, {shown:?}");
        }
        assert!(!ended.err.contains("may stay taken"), "{what}: the store was there to release it: {ended:?}");
    }
}

/// Every case in every store.
fn everywhere(test: impl Fn(&Bench, &Case)) {
    let server = RedisServer::start();
    for bench in [Bench::sqlite(), Bench::redis(&server)] {
        for case in &CASES {
            test(&bench, case);
        }
    }
}

#[test]
fn too_few_descriptors() {
    everywhere(|bench, case| {
        let mut codes = Vec::new();
        for limit in (4..64).step_by(15 / some_of(5)) {
            let wrap = |command: &mut Command| {
                command.args(["prlimit", &format!("--nofile={limit}")]);
            };
            codes.push(bench.lacking(&format!("{limit} descriptors"), case, wrap).code);
        }
        assert!(codes.first() != Some(&0) && codes.last() == Some(&0), "{codes:?}");
    });
}

/// Has the n-th call of a kind fail in each thread, for every fifth n that is reached, or every n with `--all`; of more than `most` calls
/// each 23rd. So many are looks at the processes of the machine, which are alike. Returns how many have failed.
fn each_call(case: &Case, bench: &Bench, calls: &str, error: &str, most: usize) -> usize {
    let trace = bench.place.path("trace");
    let step = 5 / some_of(5);
    for (failed, n) in (1..=most).step_by(step).chain((most..4_000).step_by(23 * step)).enumerate() {
        let inject = format!("inject={calls}:error={error}:when={n}");
        let wrap = |command: &mut Command| {
            command
                .args(["strace", "-f", "-qq", "-e", "signal=none", "-e", &format!("trace={calls}"), "-e", &inject, "-o"])
                .arg(&trace);
        };
        bench.lacking(&inject, case, wrap);
        if !fs::read_to_string(&trace).unwrap().contains("(INJECTED)") {
            return failed;
        }
    }
    panic!("the calls of {calls} in {:?} have no end", case.words);
}

#[test]
fn each_file_that_cannot_be_opened() {
    everywhere(|bench, case| assert!(each_call(case, bench, "openat", "EMFILE", 80) > 0));
}

#[test]
fn each_socket_pipe_or_timer_that_cannot_be_made() {
    // Each by itself: the n-th of every kind would fail at once.
    let calls = ["socket", "socketpair", "pipe2", "eventfd2", "epoll_create1", "timerfd_create", "pidfd_open", "accept4"];
    everywhere(|bench, case| {
        let met: usize = calls.iter().map(|call| each_call(case, bench, call, "EMFILE", 40)).sum();
        assert!(met >= 3, "{met} calls in {:?} at {}", case.words, bench.store);
    });
}

#[test]
fn each_process_or_thread_that_cannot_be_started() {
    everywhere(|bench, case| {
        let met = each_call(case, bench, "clone,clone3,vfork,fork", "EAGAIN", 20);
        // A command that opens a lock file has a thread for it, and a command that runs something has a process.
        assert!(met > 0 || !bench.store.starts_with("sqlite"), "{:?} at {}", case.words, bench.store);
    });
}

#[test]
fn a_sandbox_without_timers_of_the_system() {
    everywhere(|bench, case| {
        let wrap = |command: &mut Command| {
            let none = ["-e", "trace=timerfd_create", "-e", "inject=timerfd_create:error=EPERM", "-o", "/dev/null"];
            command.args(["strace", "-f", "-qq", "-e", "signal=none"]).args(none);
        };
        assert_eq!(bench.lacking("no timerfd", case, wrap).code, 0);
    });
}

/// A variable of the command's environment is longer than the system allows.
#[test]
fn too_many_names_for_the_environment() {
    let server = RedisServer::start();
    for bench in [Bench::sqlite(), Bench::redis(&server)] {
        let names: Vec<String> = (0..900).map(|n| format!("-an{n}")).collect();
        let label = "l".repeat(128);
        let words: Vec<&str> = names.iter().map(String::as_str).chain(["x", "--", "true"]).collect();
        let ended = bench.tenure(&[&["run", "--ttl", "60s", "--label", &label][..], &words].concat());
        assert_eq!(ended.code, 126, "{ended:?}");
        assert!(ended.err.contains("too long") && ended.err.contains("nothing is held any more"), "{ended:?}");
        assert_eq!(bench.tenure(&["show", "-o", "json"]).out.trim(), "[]");
    }
}

#[test]
fn nowhere_to_write_to() {
    everywhere(|bench, case| {
        for ends in [">/dev/full", ">&-", "2>/dev/full", "2>&-", ">/dev/full 2>/dev/full", "<&- >&- 2>&-"] {
            bench.prepare(case);
            let script = watched();
            let words = case.words.join(" ").replace("SCRIPT", &script.pid().to_string());
            let mut shell = bench.place.shell("sh", &format!("\"$TENURE\" {words} {ends}"));
            shell.env("TENURE_STORE", &bench.store);
            let ended = Ended::from(Spawned::output(&mut shell).unwrap());
            drop(script);
            wait_for("the end of the keeper", || keepers(&bench.place).is_empty());
            let prints = ["acquire", "show"].contains(&case.words[0]) && ends.starts_with(">/dev/full");
            assert_eq!(ended.code, if prints { 74 } else { 0 }, "{words} {ends}: {ended:?}");
            let left = case.leaves && (case.held || !prints);
            assert_eq!(bench.tenure(&["show", "-o", "json", "x"]).out.trim() != "[]", left, "{words} {ends}: {ended:?}");
        }
    });
}

/// Memory that runs out ends any program at once. The command must not report another end, and nothing may hold for longer than a
/// ttl.
#[test]
fn too_little_memory() {
    let bench = Bench::sqlite();
    let (mut refused, mut done) = (0, 0);
    for megabytes in (4..80).step_by(5 / some_of(5)) {
        let place = &bench.place;
        let mut command = Command::new("prlimit");
        place.settle(&mut command);
        command.env("TENURE_STORE", &bench.store).arg(format!("--as={}", megabytes << 20)).stdin(Stdio::null());
        command.arg(env!("CARGO_BIN_EXE_tenure")).args("run --ttl 1s --kill-after 100ms -w 500ms x -- true".split(' '));
        let output = OpenOptions::new().append(true).create(true).open(place.path("said")).unwrap();
        let status = Spawned::spawn(command.stdout(Stdio::null()).stderr(output)).unwrap().wait().unwrap();
        let said = place.read("said");
        // The standard library panics if a new thread gets no stack for its signals.
        let panics = said.lines().filter(|line| line.contains("panicked") && !line.contains("stack_overflow.rs")).count();
        assert_eq!(panics, 0, "{megabytes} MB: {said}");
        match status.code() {
            Some(0) => done += 1,
            _ => refused += 1,
        }
        if status.code().is_some_and(|code| code == 0 || REFUSALS.contains(&code)) {
            assert!(
                place.output(&["show", "-o", "json", "--store", &bench.store, "x"]).out.trim() == "[]",
                "{megabytes} MB: {said}"
            );
        } else {
            let freed = bench.tenure(&["run", "-w", "3s", "x", "--", "true"]);
            assert_eq!(freed.code, 0, "{megabytes} MB: {freed:?}");
        }
    }
    assert!(refused > 0 && done > 0, "{refused} {done}");
}
