//! Locks that several may hold.

use super::TTL;
use crate::specimens::command::{Command, LOCK, ONE, Value};
use crate::specimens::program::{Client, Next, Scheme, Turn, call, won, won_until};

/// How many may enter the semaphore.
pub(in crate::specimens) const PERMITS: u8 = 2;

/// A semaphore that forgets members by the clock of whoever comes.
pub(in crate::specimens) const CLIENT_CLOCK: Scheme =
    Scheme::new("a semaphore that forgets members by the clock of whoever comes", enter, leave);

/// A semaphore that counts who is in, and keeps no leases.
pub(in crate::specimens) const COUNTER: Scheme =
    Scheme::new("a semaphore that is a counter: INCR, and DECR", count_in, count_out);

/// Readers in one set with one ttl, which every reader prolongs for all.
pub(in crate::specimens) const ONE_TTL: Scheme = Scheme::new("", read_or_write, leave_readers)
    .renewed_by("readers in one set, whose one ttl every reader prolongs", renew_all);

fn enter(client: &mut Client, turn: Turn) -> Next {
    match turn.line {
        0 => {
            client.mine = client.token();
            call(1, Command::Enter { key: LOCK, member: client.mine, at: Value::At(turn.wall), ttl: TTL, limit: PERMITS })
        }
        _ if turn.reply == ONE => won_until(turn.sent + TTL),
        _ => Next::Busy,
    }
}

fn leave(client: &mut Client, turn: Turn) -> Next {
    match turn.line {
        0 => call(1, Command::Leave(LOCK, client.mine)),
        _ => Next::Freed,
    }
}

fn count_in(_: &mut Client, turn: Turn) -> Next {
    match (turn.line, turn.reply) {
        (0, _) => call(1, Command::Incr(LOCK)),
        (1, Value::Int(inside)) if inside <= i16::from(PERMITS) => won(),
        (1, _) => call(2, Command::Decr(LOCK)),
        _ => Next::Busy,
    }
}

fn count_out(_: &mut Client, turn: Turn) -> Next {
    match turn.line {
        0 => call(1, Command::Decr(LOCK)),
        _ => Next::Freed,
    }
}

/// The third client writes, the others read.
fn read_or_write(client: &mut Client, turn: Turn) -> Next {
    match turn.line {
        0 => {
            client.mine = client.token();
            let command = if client.who == 2 { Command::WriteLock } else { Command::ReadLock };
            call(1, command(LOCK, client.mine, TTL))
        }
        _ if turn.reply == ONE => won_until(turn.sent + TTL),
        _ => Next::Busy,
    }
}

fn renew_all(_: &mut Client, turn: Turn) -> Next {
    match (turn.line, turn.reply) {
        (0, _) => call(1, Command::Expire(LOCK, TTL)),
        (_, ONE) => Next::Renewed(Some(turn.sent + TTL)),
        _ => Next::Gone,
    }
}

fn leave_readers(client: &mut Client, turn: Turn) -> Next {
    match turn.line {
        0 => call(1, Command::ReadUnlock(LOCK, client.mine)),
        _ => Next::Freed,
    }
}
