//! Helpers that the tests of the command share: a place of their own, and waiting for events.
#![allow(dead_code, reason = "every test file uses a part of it")]

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};
use std::sync::Once;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tenure_testkit::{Spawned, guardian};
use tokio::signal::unix::SignalKind;

/// The longest any event is waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A directory with a lock file and a configuration of its own.
pub(crate) struct Place(tempfile::TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        guardian::watch_over_us().unwrap();
        hear_signals();
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The command in this place, without anything of the caller's environment that it looks at.
    pub(crate) fn tenure(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        self.settle(&mut command);
        command.args(args).stdin(Stdio::null());
        command
    }

    /// Has `command` find its locks and its configuration here.
    pub(crate) fn settle(&self, command: &mut Command) {
        for name in ["STORE", "PASSWORD", "PASSWORD_FILE", "NAME", "TOKEN", "FENCE", "EXPIRES_AT"] {
            command.env_remove(format!("TENURE_{name}"));
        }
        command.env_remove("RUST_LOG");
        command.env("XDG_STATE_HOME", self.path("state")).env("XDG_CONFIG_HOME", self.path("config"));
        command.env("XDG_RUNTIME_DIR", self.0.path());
        command.env("TENURE", env!("CARGO_BIN_EXE_tenure"));
        command.current_dir(self.0.path());
    }

    /// A shell in this place that runs `code`.
    pub(crate) fn shell(&self, shell: &str, code: &str) -> Command {
        let mut command = Command::new(shell);
        self.settle(command.args(["-c", code]).stdin(Stdio::null()));
        command
    }

    pub(crate) fn output(&self, args: &[&str]) -> Ended {
        Ended::from(Spawned::output(&mut self.tenure(args)).unwrap())
    }

    /// Starts the command and lets it run.
    pub(crate) fn spawn(&self, args: &[&str]) -> Running {
        Running::start(&mut self.tenure(args))
    }

    pub(crate) fn write_config(&self, text: &str) {
        std::fs::create_dir_all(self.path("config/tenure")).unwrap();
        std::fs::write(self.path("config/tenure/config.toml"), text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Waits for a file with a whole line in it, and returns its text without the last line break.
    pub(crate) fn line(&self, name: &str) -> String {
        let mut text = String::new();
        wait_for(&format!("a line in {name}"), || {
            text = self.read(name);
            text.ends_with('\n')
        });
        text.trim_end().to_owned()
    }

    pub(crate) fn pid(&self, name: &str) -> Pid {
        Pid::from_raw(self.line(name).parse().unwrap())
    }

    pub(crate) fn is_free(&self, name: &str) -> bool {
        self.output(&["show", "-o", "json", name]).out.trim() == "[]"
    }
}

/// Makes the commands that we start react to signals, though we were started with these signals ignored.
///
/// A shell starts background jobs with the keys' signals ignored, and nohup with HUP ignored. An ignored signal stays ignored in
/// the children. A signal with a handler does not: it has its default effect there.
fn hear_signals() {
    static ONCE: Once = Once::new();
    // On a thread of its own: the test may run in a runtime.
    ONCE.call_once(|| std::thread::spawn(hear_ignored_signals).join().unwrap());
}

fn hear_ignored_signals() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let _in_it = runtime.enter();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM] {
        if ignored >> (signal as i32 - 1) & 1 == 1 {
            // It stays heard when nobody listens any more.
            drop(tokio::signal::unix::signal(SignalKind::from_raw(signal as i32)).unwrap());
        }
    }
}

/// A finished command.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self { code: code(output.status), out: text(output.stdout), err: text(output.stderr) }
    }
}

impl Ended {
    /// Checks that it ended with this code, and said so in one line of ours.
    #[track_caller]
    pub(crate) fn says(&self, code: i32, why: &str) {
        assert_eq!(self.code, code, "{self:?}");
        assert_one_line(self);
        assert!(self.err.contains(why), "{why}: {self:?}");
    }

    /// The same without the line of a wait. On a busy machine a short one may last for a second, and then says for whom.
    pub(crate) fn without_wait(mut self) -> Self {
        self.err = self.err.split_inclusive('\n').filter(|line| !line.starts_with("tenure: waiting for")).collect();
        self
    }
}

/// Exit code as a shell reports it. No signal but the interrupt may end the command.
pub(crate) fn code(status: ExitStatus) -> i32 {
    let interrupted = (status.signal() == Some(2)).then_some(130);
    status.code().or(interrupted).unwrap_or_else(|| panic!("ended by {status}"))
}

/// A command that runs; killed when dropped, and when this process is.
pub(crate) struct Running(pub(crate) Spawned);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self::of(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    pub(crate) fn of(child: Child) -> Self {
        Self(Spawned::new(child))
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.0.id().try_into().unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Waits for its end, whatever that is.
    pub(crate) fn end_by_signal(mut self) -> ExitStatus {
        self.status()
    }

    /// Waits for its end and collects what it said. Its streams must not be kept open by others.
    pub(crate) fn end(mut self) -> Ended {
        let status = self.status();
        let (mut out, mut err) = (String::new(), String::new());
        self.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        self.0.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        Ended { code: code(status), out, err }
    }

    /// Waits for its end.
    pub(crate) fn status(&mut self) -> ExitStatus {
        let mut status = None;
        wait_for("the end of the command", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

/// Waits until `what` is so, or fails the test.
pub(crate) fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a command says that it waits. The rest of what it says can be read then.
pub(crate) fn until_it_waits(running: &mut Running) -> BufReader<ChildStderr> {
    let (mut line, mut said) = (String::new(), BufReader::new(running.0.stderr.take().unwrap()));
    while !line.contains("waiting") {
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "{line}");
    }
    said
}

/// A pipe without room: who writes to it waits for a reader.
pub(crate) fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_SETPIPE_SZ(4096)).unwrap();
    (&writer).write_all(&[0; 4096]).unwrap();
    (reader, writer)
}

/// Whether a process waits in a call about its standard output.
pub(crate) fn is_printing(pid: Pid) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    call.split(' ').nth(1) == Some("0x1")
}

/// A process to be watched. A request to stop ends it at once, so the tests see whether there was one.
pub(crate) fn watched() -> Running {
    Running::start(Command::new("sleep").arg("600").stdin(Stdio::null()))
}

/// The result of a thread. Its panic has said why: a second message would hide that it was only late.
pub(crate) fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The state letter of a process as the kernel shows it; `None` once it is gone.
pub(crate) fn state(pid: Pid) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Gone, or dead and not yet collected by its parent.
pub(crate) fn is_dead(pid: Pid) -> bool {
    matches!(state(pid), None | Some('Z' | 'X'))
}

/// The processes that keep a lease from this place.
pub(crate) fn keepers(place: &Place) -> Vec<Pid> {
    let here = format!("XDG_STATE_HOME={}", place.path("state").display());
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let is_keeper = |path: PathBuf| {
        let words = std::fs::read(path.join("cmdline")).unwrap_or_default();
        let variables = std::fs::read(path.join("environ")).unwrap_or_default();
        words.split(|b| *b == 0).nth(1) == Some(b"__keep") && variables.split(|b| *b == 0).any(|line| line == here.as_bytes())
    };
    let keepers = processes.filter(|entry| is_keeper(entry.path()));
    keepers.map(|entry| Pid::from_raw(entry.file_name().to_str().unwrap().parse().unwrap())).collect()
}

pub(crate) fn is_stopped(pid: Pid) -> bool {
    tenure_testkit::process::is_stopped(pid.as_raw().unsigned_abs())
}

/// Checks that a failure was reported in one line of ours, beside the one about the file of this user alone.
pub(crate) fn assert_one_line(ended: &Ended) {
    let lines: Vec<&str> = ended.err.lines().filter(|line| !line.contains("other hosts are not excluded")).collect();
    assert!(lines.len() == 1 && lines[0].starts_with("tenure: "), "not one line of ours: {ended:?}");
}

/// A file with a program in it. By a process of its own: what this one has open for writing while another test starts a process
/// cannot be executed.
pub(crate) fn script(path: &Path, text: &str) {
    let write = r#"printf %s "$1" > "$0" && chmod 755 "$0""#;
    assert!(Command::new("sh").args(["-c", write]).arg(path).arg(text).status().unwrap().success());
}

/// Processes that `parent` has started, and that are there.
pub(crate) fn children(parent: Pid) -> Vec<Pid> {
    let tasks = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
        .map(Pid::from_raw)
        .collect()
}
