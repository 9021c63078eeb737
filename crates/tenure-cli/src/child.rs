//! The command and its process group.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, pipe};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process_group, test_kill_process_group, wait};

use crate::exit::{CANNOT_RUN, Failure, by_signal};
use crate::variables::Variables;
use crate::{config, exec, myself, terminal};

/// A running command: the leader of a process group of its own.
#[derive(Debug)]
pub(crate) struct Child {
    group: Pid,
    ended: Option<u8>,
    died_of: Option<i32>,
    /// Children that we had before, of a program that became us by `exec`: they are not the
    /// command's.
    strangers: Vec<Pid>,
    ours: Children,
}

/// Change of the leader's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It is gone; this is the exit code that says how.
    Ended(u8),
    /// It was stopped by this signal.
    Stopped(i32),
}

impl Child {
    /// Starts the command, after a call of `arm` with its group. Must be called from the main thread: the
    /// child dies with the thread that started it.
    pub(crate) fn spawn(
        command: &[OsString],
        variables: &Variables,
        store: &OsStr,
        front: bool,
        arm: impl FnOnce(Pid),
    ) -> Result<Self, Failure> {
        // A process that the command leaves behind becomes our child. So we can tell when the last
        // of its group is gone.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        let ours = Children::new();
        let strangers = ours.look();
        let mut child = myself::command();
        let cannot_start = |error: io::Error| {
            let command = command.first().map(|c| c.to_string_lossy()).unwrap_or_default();
            Failure::new(CANNOT_RUN, format!("cannot start {command:?}, {error}"))
        };
        // It waits at its end of the pipe, until we close ours.
        let (gate, opener) = pipe().map_err(cannot_start)?;
        fcntl_setfd(&gate, FdFlags::empty()).map_err(|error| cannot_start(error.into()))?;
        child.args(exec::arguments(front, gate.as_raw_fd(), command)).process_group(0);
        set(&mut child, variables);
        // So that a tenure in it asks the same store.
        child.env(config::STORE, store);
        let child = child.spawn().map_err(cannot_start)?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let group = group.ok_or_else(|| Failure::new(CANNOT_RUN, "the command got no process id"))?;
        // To arm the guardian takes a descriptor.
        drop(gate);
        arm(group);
        drop(opener);
        Ok(Self { group, ended: None, died_of: None, strangers, ours })
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

    /// Processes that the command started outside its group and left to us. Their own children come
    /// to us when they end.
    pub(crate) fn strays(&mut self) -> Vec<Pid> {
        self.look();
        let mut strays = self.ours.look();
        strays.retain(|pid| *pid != self.group && !self.strangers.contains(pid));
        strays
    }
}

/// Collects children that have ended. Only while no command runs: its end would be collected as well.
pub(crate) fn collect() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

/// Tells the command what it holds, and none of our secrets.
fn set(command: &mut Command, variables: &Variables) {
    for (variable, value) in variables.values() {
        match value {
            Some(value) => command.env(variable, value),
            None => command.env_remove(variable),
        };
    }
    for secret in config::SECRETS {
        command.env_remove(secret);
    }
}

/// The kernel's list of the children of our main thread, which are all: it starts the command, and what other processes and threads
/// leave becomes its own. It stays open, as there may be no descriptor to spare later. `None` for a kernel without these lists.
#[derive(Debug)]
struct Children(Option<File>);

impl Children {
    fn new() -> Self {
        Self(File::open("/proc/thread-self/children").ok())
    }

    /// Those that we have not collected yet cannot be mistaken for others.
    fn look(&self) -> Vec<Pid> {
        let mut list = String::new();
        let read = self.0.as_ref().is_some_and(|mut file| file.rewind().is_ok() && file.read_to_string(&mut list).is_ok());
        if read { list.split_whitespace().filter_map(to_pid).collect() } else { search_children() }
    }
}

fn search_children() -> Vec<Pid> {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let pids = names.filter_map(|name| to_pid(name.to_str()?));
    pids.filter(|pid| terminal::parent_of(*pid) == Some(getpid())).collect()
}

fn to_pid(text: &str) -> Option<Pid> {
    Pid::from_raw(text.parse().ok()?)
}
