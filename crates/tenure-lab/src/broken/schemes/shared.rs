//! Locks that several may hold.

use super::{TTL, frees_by, renews_by, takes_by, token_of};
use crate::broken::command::{Command, LOCK, Value, ZERO};
use crate::broken::program::{Client, Next, Scheme, Turn, call, won};

/// How many may enter the semaphore.
pub(crate) const PERMITS: u8 = 2;

pub(crate) const CLIENT_CLOCK: Scheme =
    Scheme::new("a semaphore that forgets members by the clock of each client that comes", enter, |client, turn| {
        frees_by(turn, Command::Leave(LOCK, client.mine))
    });

pub(crate) const COUNTER: Scheme = Scheme {
    free: Some(ZERO),
    ..Scheme::new("a semaphore that is a counter: INCR, and DECR", count_in, |_, turn| frees_by(turn, Command::Decr(LOCK)))
};

pub(crate) const ONE_TTL: Scheme =
    Scheme::new("", read_or_write, |client, turn| frees_by(turn, Command::ReadUnlock(LOCK, client.mine)))
        .renewed_by("readers in one set, whose one ttl every reader prolongs", |_, turn| {
            renews_by(turn, Command::Expire(LOCK, TTL))
        });

fn enter(client: &mut Client, turn: Turn) -> Next {
    let member = token_of(client, turn);
    takes_by(turn, Command::Enter { key: LOCK, member, at: turn.wall, ttl: TTL, limit: PERMITS })
}

fn count_in(_: &mut Client, turn: Turn) -> Next {
    match (turn.line, turn.reply) {
        (0, _) => call(1, Command::Incr(LOCK)),
        (1, Value::Int(inside)) if inside <= i16::from(PERMITS) => won(),
        (1, _) => call(2, Command::Decr(LOCK)),
        _ => Next::Busy,
    }
}

/// The third client writes, the others read.
fn read_or_write(client: &mut Client, turn: Turn) -> Next {
    let command = if client.who == 2 { Command::WriteLock } else { Command::ReadLock };
    takes_by(turn, command(LOCK, token_of(client, turn), TTL))
}
