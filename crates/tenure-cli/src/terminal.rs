//! Who has the terminal.

use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, stdin, stdout};

use nix::sys::signal::{SigSet, SigmaskHow};
use rustix::fs::{FileType, fstat};
use rustix::process::{Pid, getpgrp, getsid};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// The controlling terminal, while a child is run on it.
#[derive(Debug, Default)]
pub(crate) struct Terminal {
    /// As it was when the child got it.
    before: Option<Termios>,
    /// The group that has got it.
    given: Option<Pid>,
}

impl Terminal {
    /// Whether a child should have the terminal from its start.
    ///
    /// Not at the head of a pipeline: the pager behind us reads the keyboard. A child that wants the terminal all the same is
    /// stopped by it, and gets it then.
    pub(crate) fn is_wanted() -> bool {
        stdin().is_terminal() && !is_pipe() && tcgetpgrp(stdin()).is_ok_and(|front| front == getpgrp())
    }

    /// Notes that `group` takes the terminal by itself.
    pub(crate) fn expect(&mut self, group: Pid) {
        self.before = tcgetattr(stdin()).ok();
        self.given = Some(group);
    }

    /// Gives the terminal to `group`, if it is ours to give.
    pub(crate) fn give(&mut self, group: Pid) -> bool {
        let Some(tty) = controlling() else { return false };
        if !tcgetpgrp(&tty).is_ok_and(|front| front == getpgrp()) {
            return false;
        }
        if self.before.is_none() {
            self.before = tcgetattr(&tty).ok();
        }
        self.given = Some(group);
        set_front(&tty, group)
    }

    /// Whether the child's group was given the terminal.
    pub(crate) fn was_given(&self) -> bool {
        self.given.is_some()
    }

    /// Takes the terminal back from the child's group, if it still has it.
    pub(crate) fn take_back(&self) {
        let Some(group) = self.given else { return };
        let Some(tty) = controlling() else { return };
        if tcgetpgrp(&tty).is_ok_and(|front| front == group) {
            set_front(&tty, getpgrp());
        }
    }

    /// Undoes what a child that was killed had no time to undo, e.g. raw mode.
    pub(crate) fn restore(&self) {
        let (Some(before), Some(tty)) = (&self.before, controlling()) else { return };
        if tcgetpgrp(&tty).is_ok_and(|front| front == getpgrp()) {
            let _ = tcsetattr(&tty, OptionalActions::Now, before);
        }
    }
}

/// From now on we may write to the terminal while the command has it, even under `stty tostop`: a stopped tenure renews nothing.
pub(crate) fn write_from_background() {
    let mut blocked = SigSet::empty();
    blocked.add(nix::sys::signal::SIGTTOU);
    let _ = blocked.thread_block();
}

/// Makes our own group the one in front on stdin.
pub(crate) fn come_to_front() {
    set_front(stdin(), getpgrp());
}

/// Whether our own group is the one that the keys of the terminal reach.
pub(crate) fn are_in_front() -> bool {
    controlling().is_some_and(|tty| tcgetpgrp(&tty).is_ok_and(|front| front == getpgrp()))
}

/// Whether a shell is there to continue us after a stop: the kernel's rule for orphaned groups, followed up our ancestors.
pub(crate) fn has_shell() -> bool {
    let (Ok(session), group) = (getsid(None), getpgrp()) else { return false };
    let mut parent = rustix::process::getppid();
    while let Some(pid) = parent {
        if getsid(Some(pid)) != Ok(session) {
            return false;
        }
        if rustix::process::getpgid(Some(pid)) != Ok(group) {
            return true;
        }
        parent = parent_of(pid);
    }
    false
}

/// The parent of a process.
pub(crate) fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program, in brackets, may itself hold spaces and brackets.
    let (_, after) = stat.rsplit_once(") ")?;
    Pid::from_raw(after.split(' ').nth(1)?.parse().ok()?)
}

fn is_pipe() -> bool {
    fstat(stdout()).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo)
}

fn controlling() -> Option<File> {
    OpenOptions::new().read(true).write(true).open("/dev/tty").ok()
}

/// `tcsetpgrp`, which stops a caller who is in the background unless SIGTTOU is blocked.
fn set_front(tty: impl std::os::fd::AsFd, group: Pid) -> bool {
    let mut blocked = SigSet::empty();
    blocked.add(nix::sys::signal::SIGTTOU);
    let Ok(before) = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK) else { return false };
    let done = tcsetpgrp(tty, group).is_ok();
    let _ = before.thread_set_mask();
    done
}
