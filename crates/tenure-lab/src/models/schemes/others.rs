//! Our clients beside those of others: what the others do that no client of ours can help.

use std::collections::BTreeSet;

use super::command::{Command, OK, ONE, Value};
use super::rules::{Tick, UNENDED};
use super::server::{AtLock, Server};

/// A mistake of one of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Mistake {
    /// Wrote over what was another's, and had not ended.
    WroteOver,
    /// Deleted what was another's.
    Deleted,
    /// Was stopped between `SETNX` and `EXPIRE` until its key was anybody's, and gave another's its
    /// ttl.
    Stopped,
    /// Wrote the very value that one of ours had written.
    Equal,
}

/// The history of the lock, by which others are judged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Others {
    /// Who wrote what is there.
    writer: Option<u8>,
    /// When each of them last wrote.
    wrote: [Tick; 3],
    pub(super) mistakes: BTreeSet<Mistake>,
    /// One of ours has taken a key that had no end.
    pub(super) adopted: bool,
}

/// A command that was executed.
pub(super) struct Ran {
    pub(super) who: u8,
    /// It is one of the others.
    pub(super) theirs: bool,
    /// The value that it remembers.
    pub(super) mine: Value,
    pub(super) command: Command,
    pub(super) reply: Value,
    /// The lock as it was found, and whether that had ended by the clocks of clients.
    pub(super) before: AtLock,
    pub(super) past: bool,
    /// By the server's clock.
    pub(super) now: Tick,
}

impl Others {
    /// Keeps account of a command that `server` has executed.
    pub(super) fn judge(&mut self, ran: &Ran, server: &Server) {
        let &Ran { who, before, now, .. } = ran;
        let after = server.at_lock(now).version;
        let written = after != before.version;
        if ran.theirs {
            let foreign = before.value != Value::Nil && self.writer != Some(who);
            let mistake = match (ran.command, ran.reply) {
                (Command::SetPx(_) | Command::ExecSetPx(_), OK) => Some(Mistake::WroteOver),
                (Command::GetSet(_), _) if !ran.past => Some(Mistake::WroteOver),
                (Command::Del | Command::ExecDel, ONE) => Some(Mistake::Deleted),
                (Command::Expire, ONE) if self.was_stopped(ran) => Some(Mistake::Stopped),
                _ => None,
            };
            self.mistakes.extend(mistake.filter(|_| foreign));
            if written && server.stamped_for().is_some() {
                self.mistakes.insert(Mistake::Equal);
            }
        } else if written && before.endless {
            self.adopted = true;
        }
        if written {
            self.writer = after.map(|_| who);
            self.wrote[usize::from(who)] = now;
        }
    }

    /// Whether its key was anybody's: its value had passed, and it stood without an end for long
    /// enough.
    fn was_stopped(&self, ran: &Ran) -> bool {
        matches!(ran.mine, Value::At(end) if ran.now >= end) && ran.now >= self.wrote[usize::from(ran.who)] + UNENDED
    }
}
