//! Our clients beside those of others: what the others do that no client of ours can help.

use std::collections::BTreeSet;

use super::case::Setting;
use super::command::{Command, LOCK, OK, ONE, Value};
use super::program::Tick;
use super::server::{AtLock, UNENDED};
use super::world::World;

/// A mistake of one of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Mistake {
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
pub(crate) struct Beside {
    /// Who wrote what is there.
    writer: Option<u8>,
    /// When each of them last wrote.
    wrote: [Tick; 3],
    /// The mistakes of the others.
    pub(crate) mistakes: BTreeSet<Mistake>,
    /// One of ours has taken a key that had no end.
    pub(crate) adopted: bool,
}

impl World {
    /// Keeps account of a command that was executed at `now` of the server, and found `before`.
    pub(crate) fn judge(&mut self, setting: &Setting, who: u8, command: Command, reply: Value, before: AtLock, now: Tick) {
        let found = before.value;
        let after = self.server.at_lock(now).version;
        let written = after != before.version;
        if setting.is_other(who) {
            let foreign = found != Value::Nil && self.beside.writer != Some(who);
            let flaw = match (command, reply) {
                (Command::SetPx(LOCK, ..) | Command::ExecSetPx(LOCK, ..), OK) => Some(Mistake::WroteOver),
                (Command::GetSet(LOCK, _), _) if !found.is_past(self.now) => Some(Mistake::WroteOver),
                (Command::Del(LOCK) | Command::ExecDel(LOCK), ONE) => Some(Mistake::Deleted),
                (Command::Expire(LOCK, _), ONE) if self.was_stopped(who, now) => Some(Mistake::Stopped),
                _ => None,
            };
            self.beside.mistakes.extend(flaw.filter(|_| foreign));
            if written && self.server.stamped_for().is_some() {
                self.beside.mistakes.insert(Mistake::Equal);
            }
        } else if written && before.endless {
            self.beside.adopted = true;
        }
        if written {
            self.beside.writer = after.map(|_| who);
            self.beside.wrote[usize::from(who)] = now;
        }
    }

    /// Whether its key was anybody's at `now`: its value had passed, and it stood without an end
    /// for long enough.
    fn was_stopped(&self, who: u8, now: Tick) -> bool {
        let who = usize::from(who);
        matches!(self.clients[who].mine, Value::At(end) if now >= end) && now >= self.beside.wrote[who] + UNENDED
    }
}
