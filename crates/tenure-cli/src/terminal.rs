//! Who has the terminal.

use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, stderr, stdin, stdout};

use nix::sys::signal::{SigSet, SigmaskHow};
use rustix::fs::{FileType, fstat};
use rustix::process::Pid;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// The controlling terminal, while a child is run on it.
#[derive(Debug, Default)]
pub(crate) struct Terminal {
    /// Its modes before the child got it.
    before: Option<Termios>,
    /// The group that has got it.
    given: Option<Pid>,
}

impl Terminal {
    /// Whether a child should have the terminal from its start.
    ///
    /// Not at the head of a pipeline: the pager behind us reads the keyboard. A child that wants
    /// the terminal all the same is stopped by it, and gets it then.
    pub(crate) fn is_wanted() -> bool {
        stdin().is_terminal() && !is_pipe() && is_ours(stdin())
    }

    /// The terminal, with its modes of now.
    pub(crate) fn remembered() -> Self {
        Self { before: tcgetattr(stdin()).ok(), given: None }
    }

    /// Notes that `group` takes the terminal by itself.
    pub(crate) fn expect(&mut self, group: Pid) {
        self.given = Some(group);
    }

    /// Gives the terminal to `group`, if it is ours to give.
    pub(crate) fn give(&mut self, group: Pid) -> bool {
        let Some(tty) = controlling() else { return false };
        if !is_ours(&tty) {
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
            come_to_front_on(&tty);
        }
    }

    /// Undoes what a child that was killed had no time to undo, e.g. raw mode.
    pub(crate) fn restore(&self) {
        let (Some(before), Some(tty)) = (&self.before, controlling()) else { return };
        if is_ours(&tty) {
            let _ = tcsetattr(&tty, OptionalActions::Now, before);
        }
    }
}

/// From now on we may write to the terminal while the command has it, even under `stty tostop`: a
/// stopped tenure renews nothing.
pub(crate) fn write_from_background() {
    let mut blocked = SigSet::empty();
    blocked.add(nix::sys::signal::SIGTTOU);
    let _ = blocked.thread_block();
}

/// Makes our own group the one in front on stdin.
pub(crate) fn come_to_front() {
    come_to_front_on(stdin());
}

fn come_to_front_on(tty: impl std::os::fd::AsFd) {
    if let Some(group) = own_group() {
        set_front(tty, group);
    }
}

/// Whether our own group is the one that the keys of the terminal reach.
pub(crate) fn are_in_front() -> bool {
    controlling().is_some_and(is_ours)
}

/// Whether a shell is there to continue us after a stop.
pub(crate) fn has_shell() -> bool {
    i32::try_from(std::process::id()).is_ok_and(|pid| is_continued(pid, Kin::of))
}

/// The kernel's rule for orphaned groups, followed up the ancestors.
fn is_continued(pid: i32, kin: impl Fn(i32) -> Option<Kin>) -> bool {
    let Some(own) = kin(pid) else { return false };
    let mut pid = own.parent;
    while let Some(ancestor) = kin(pid) {
        // The first process of the machine is in no session of its own either, and continues
        // nobody.
        if ancestor.session != own.session || (pid, ancestor.group) == (1, 0) {
            return false;
        }
        if ancestor.group != own.group {
            return true;
        }
        pid = ancestor.parent;
    }
    false
}

/// Parent, group and session of a process as the kernel numbers them: a group or a session that
/// began outside our PID namespace is 0.
#[derive(Debug, Clone, Copy)]
struct Kin {
    parent: i32,
    group: i32,
    session: i32,
}

impl Kin {
    fn of(pid: i32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name of the program, in brackets, may itself hold spaces and brackets.
        let (_, after) = stat.rsplit_once(") ")?;
        let mut fields = after.split(' ').skip(1).map(|field| field.parse().ok());
        let (parent, group, session) = (fields.next()??, fields.next()??, fields.next()??);
        Some(Self { parent, group, session })
    }
}

/// When a process was started, in ticks since boot.
pub(crate) fn started(pid: Pid) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

/// The parent of a process.
pub(crate) fn parent_of(pid: Pid) -> Option<Pid> {
    Pid::from_raw(Kin::of(pid.as_raw_nonzero().get())?.parent)
}

/// Our own process group, if it began in our PID namespace: rustix's `getpgrp` takes that for
/// granted.
pub(crate) fn own_group() -> Option<Pid> {
    Pid::from_raw(nix::unistd::getpgrp().as_raw())
}

/// Whether our own group is the one in front on `tty`.
fn is_ours(tty: impl std::os::fd::AsFd) -> bool {
    tcgetpgrp(tty).is_ok_and(|front| Some(front) == own_group())
}

fn is_pipe() -> bool {
    fstat(stdout()).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo)
}

/// Whether somebody sits there whom we can ask.
pub(crate) fn can_ask() -> bool {
    stdin().is_terminal() && stderr().is_terminal()
}

/// Whether we have a controlling terminal. One that was hung up is there no more.
pub(crate) fn is_there() -> bool {
    controlling().is_some()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A family from the youngest up: group and session of each.
    fn continued(family: &[(i32, i32)]) -> bool {
        let kin = |pid: i32| {
            let oldest = i32::try_from(family.len()).ok()?;
            let &(group, session) = family.get(usize::try_from(oldest - pid).ok()?)?;
            Some(Kin { parent: pid - 1, group, session })
        };
        is_continued(i32::try_from(family.len()).unwrap(), kin)
    }

    #[test]
    fn a_shell_is_an_ancestor_of_our_session_in_another_group() {
        assert!(continued(&[(9, 5), (5, 5), (0, 0)]), "a job of a shell");
        assert!(continued(&[(9, 5), (9, 5), (5, 5), (0, 0)]), "a job that is a script");
        assert!(!continued(&[(9, 9), (5, 5), (0, 0)]), "a session of its own");
        assert!(!continued(&[(5, 5), (5, 5), (0, 0)]), "in the group of the session's first");
    }

    #[test]
    fn a_session_may_have_begun_outside_our_namespace() {
        assert!(continued(&[(9, 0), (4, 0), (0, 0)]), "a job of what a container's first process started");
        assert!(continued(&[(9, 0), (1, 0)]), "the first process of the container is a shell");
        assert!(!continued(&[(9, 0), (0, 0)]), "the machine's first process");
        assert!(!continued(&[(0, 0), (0, 0)]));
    }
}
