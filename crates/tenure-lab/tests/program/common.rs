//! A directory for each test, and the program in it.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use tenure_testkit::process::children;
use tenure_testkit::{Signal, Spawned, guardian, is_alive, wait_until};

/// The longest any event is waited for.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Place(tempfile::TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        guardian::watch_over_us().unwrap();
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The program in this place, without anything of the caller's environment that it looks at.
    pub(crate) fn program(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-lab"));
        for name in ["TENURE_STORE", "TENURE_PASSWORD", "TENURE_PASSWORD_FILE", "TENURE_SENTINEL_PASSWORD"] {
            command.env_remove(name);
        }
        command.args(args).current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    pub(crate) fn output(&self, args: &[&str]) -> Ended {
        Ended::of(&mut self.program(args))
    }

    /// The output of a command that runs rows. On a busy machine one may be late: what the rows show is tested elsewhere.
    pub(crate) fn rows(&self, args: &[&str]) -> Ended {
        in_time(|| self.output(args), |ended| ended.code == 1)
    }
}

/// Runs a command up to three times, until it was not late.
pub(crate) fn in_time(mut run: impl FnMut() -> Ended, is_late: impl Fn(&Ended) -> bool) -> Ended {
    (0..2).map(|_| run()).find(|ended| !is_late(ended)).unwrap_or_else(run)
}

/// Whether a benchmark so short has lost a lease, as on a busy machine.
pub(crate) fn has_lost(ended: &Ended) -> bool {
    ended.err.contains("a lock was lost in the middle")
}

/// A finished command.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    pub(crate) fn of(command: &mut Command) -> Self {
        let Output { status, stdout, stderr } = Spawned::output(command).unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self { code: status.code().unwrap_or_else(|| panic!("ended by {status}")), out: text(stdout), err: text(stderr) }
    }
}

pub(crate) fn wait_for(what: &str, is_so: impl FnMut() -> bool) {
    wait_until(PATIENCE, what, is_so);
}

/// Ends a run by a signal, and waits for the end of all that it started.
pub(crate) fn end_with_all(mut running: Spawned, signal: Signal) {
    let all = children(running.pid());
    running.signal(signal).unwrap();
    running.wait_exit(PATIENCE);
    wait_for("the end of all that it started", || !all.iter().any(|pid| is_alive(*pid)));
}
