//! The command and its process group.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process_group, test_kill_process_group, wait};

use crate::exit::{CANNOT_RUN, Failure, by_signal};
use crate::{config, exec, terminal};

/// A running command: the leader of a process group of its own.
#[derive(Debug)]
pub(crate) struct Child {
    group: Pid,
    ended: Option<u8>,
    died_of: Option<i32>,
    /// Children that we had before, from whoever became us by `exec`: they are not the command's.
    strangers: Vec<Pid>,
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
    pub(crate) fn spawn(command: &[OsString], variables: &Variables, front: bool) -> Result<Self, Failure> {
        // Whoever the command leaves behind becomes our child, so that we can tell when the last of its group is gone.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        let strangers = children();
        let mut child = self::command();
        child.args(exec::arguments(front, command)).process_group(0);
        variables.set(&mut child);
        let child = child.spawn().map_err(|error| {
            let command = command.first().map(|c| c.to_string_lossy()).unwrap_or_default();
            Failure::new(CANNOT_RUN, format!("cannot start {command:?}, {error}"))
        })?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let group = group.ok_or_else(|| Failure::new(CANNOT_RUN, "the command got no process id"))?;
        Ok(Self { group, ended: None, died_of: None, strangers })
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

    /// What the command started outside its group and left to us. What those have started comes to us when they end.
    pub(crate) fn strays(&mut self) -> Vec<Pid> {
        self.look();
        let mut strays = children();
        strays.retain(|pid| *pid != self.group && !self.strangers.contains(pid));
        strays
    }
}

/// What is told about one lease.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) name: String,
    pub(crate) token: String,
    pub(crate) fence: Option<String>,
    pub(crate) expires_at: u64,
}

/// What the command is told about what it holds, sorted by name.
#[derive(Debug)]
pub(crate) struct Variables(pub(crate) Vec<Lease>);

impl Variables {
    /// The variables with their values: a line for each name, and the earliest end. No fences where one has none.
    pub(crate) fn values(&self) -> [(&'static str, Option<String>); 4] {
        let lines = |of: fn(&Lease) -> Option<&str>| Some(self.0.iter().map(of).collect::<Option<Vec<_>>>()?.join("\n"));
        let ends = self.0.iter().map(|lease| lease.expires_at).min();
        [
            ("TENURE_NAME", lines(|lease| Some(&lease.name))),
            ("TENURE_TOKEN", lines(|lease| Some(&lease.token))),
            ("TENURE_FENCE", lines(|lease| lease.fence.as_deref())),
            ("TENURE_EXPIRES_AT", ends.map(|ends| ends.to_string())),
        ]
    }

    fn set(&self, command: &mut Command) {
        for (variable, value) in self.values() {
            match value {
                Some(value) => command.env(variable, value),
                None => command.env_remove(variable),
            };
        }
        for secret in config::SECRETS {
            command.env_remove(secret);
        }
        if env::var_os(config::STORE).is_some_and(|url| config::has_password(&url)) {
            command.env_remove(config::STORE);
        }
    }
}

/// Our children. Those that we have not collected yet cannot be mistaken for others.
fn children() -> Vec<Pid> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists: Option<Vec<String>> = tasks.map(|task| fs::read_to_string(task.path().join("children")).ok()).collect();
    match lists {
        Some(lists) => lists.iter().flat_map(|list| list.split_whitespace()).filter_map(to_pid).collect(),
        // A kernel without these lists, or a thread that has ended meanwhile.
        None => search_children(),
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

/// This program once more, under its own name.
pub(crate) fn command() -> Command {
    let mut command = Command::new(myself());
    command.arg0("tenure");
    command
}

/// The file of this program, also after it was replaced by a newer one.
fn myself() -> PathBuf {
    let link = Path::new("/proc/self/exe");
    let path = env::current_exe();
    if !cfg!(target_os = "linux") || !link.exists() {
        return path.unwrap_or_else(|_| "tenure".into());
    }
    // By its path, so that `ps` shows its name; unless another file is there by now.
    path.ok().filter(|path| is_same_file(path, link)).unwrap_or_else(|| link.into())
}

fn is_same_file(a: &Path, b: &Path) -> bool {
    let id = |path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    id(a).is_some_and(|a| Some(a) == id(b))
}
