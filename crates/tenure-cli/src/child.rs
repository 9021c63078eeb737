//! The command and its process group.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, test_kill_process_group, wait};

use crate::exit::{CANNOT_RUN, Failure, by_signal};
use crate::{config, exec};

/// A running command: the leader of a process group of its own.
#[derive(Debug)]
pub(crate) struct Child {
    group: Pid,
    ended: Option<u8>,
    died_of: Option<i32>,
}

/// What became of the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It is gone; this is the exit code that says how.
    Ended(u8),
    /// It was stopped by this signal.
    Stopped(i32),
}

impl Child {
    /// Starts the command. Must be called from the main thread: the child dies with the thread that started it.
    pub(crate) fn spawn(command: &[OsString], variables: Variables, front: bool) -> Result<Self, Failure> {
        // Whoever the command leaves behind becomes our child, so that we can tell when the last of its group is gone.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        let mut child = Command::new(myself());
        child.args(exec::arguments(front, command)).process_group(0);
        variables.set(&mut child);
        let child = child.spawn().map_err(|error| {
            let command = command.first().map(|c| c.to_string_lossy()).unwrap_or_default();
            Failure::new(CANNOT_RUN, format!("cannot start {command:?}, {error}; the lock was released"))
        })?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let group = group.ok_or_else(|| Failure::new(CANNOT_RUN, "the command got no process id; the lock was released"))?;
        Ok(Self { group, ended: None, died_of: None })
    }

    /// The process group.
    pub(crate) fn group(&self) -> Pid {
        self.group
    }

    /// How the leader ended, if it has.
    pub(crate) fn ended(&self) -> Option<u8> {
        self.ended
    }

    /// The signal that ended the leader, if one did.
    pub(crate) fn died_of(&self) -> Option<i32> {
        self.died_of
    }

    /// Collects what the kernel has to tell and says the last of it that is about the leader.
    pub(crate) fn look(&mut self) -> Option<Change> {
        let mut change = None;
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            if pid != self.group || self.ended.is_some() {
                continue;
            }
            if let Some(signal) = status.stopping_signal() {
                change = Some(Change::Stopped(signal));
                continue;
            }
            let by_itself = status.exit_status().and_then(|code| u8::try_from(code).ok());
            let Some(code) = by_itself.or_else(|| status.terminating_signal().map(by_signal)) else { continue };
            self.ended = Some(code);
            self.died_of = status.terminating_signal();
            change = Some(Change::Ended(code));
        }
        change
    }

    /// Sends a signal to the whole group.
    pub(crate) fn signal(&self, signal: Signal) {
        // A group that is gone needs none.
        let _ = kill_process_group(self.group, signal);
    }

    /// Whether any process of the group is left.
    pub(crate) fn is_left(&mut self) -> bool {
        self.look();
        test_kill_process_group(self.group) != Err(rustix::io::Errno::SRCH)
    }
}

/// What the command is told about the lock.
#[derive(Debug)]
pub(crate) struct Variables {
    pub(crate) name: String,
    pub(crate) token: String,
    pub(crate) fence: Option<String>,
    pub(crate) expires_at: u64,
}

impl Variables {
    fn set(self, command: &mut Command) {
        command.env("TENURE_NAME", self.name);
        command.env("TENURE_TOKEN", self.token);
        command.env("TENURE_EXPIRES_AT", self.expires_at.to_string());
        match self.fence {
            Some(fence) => command.env("TENURE_FENCE", fence),
            None => command.env_remove("TENURE_FENCE"),
        };
        for secret in config::SECRETS {
            command.env_remove(secret);
        }
        if std::env::var_os(config::STORE).is_some_and(|url| config::has_password(&url)) {
            command.env_remove(config::STORE);
        }
    }
}

/// The file of this program, also after it was replaced by a newer one.
pub(crate) fn myself() -> std::path::PathBuf {
    let link = Path::new("/proc/self/exe");
    if cfg!(target_os = "linux") && link.exists() {
        link.into()
    } else {
        std::env::current_exe().unwrap_or_else(|_| "tenure".into())
    }
}
