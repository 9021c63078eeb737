//! `SETNX`, `GET`, `GETSET` with a timestamp as the value, and no expiry at the server.

use super::{TTL, delete, frees_by, get_then_delete};
use crate::broken::command::{Command, LOCK, ONE, Value};
use crate::broken::program::{Client, Next, Scheme, Turn, call, won_until};

pub(crate) const GETSET: Scheme =
    Scheme::new("SETNX, GET, GETSET with a deadline as the value; DEL before one's deadline", take, delete_in_time);

pub(crate) const GETSET_COMPARED: Scheme =
    Scheme::new("SETNX, GET, GETSET with a deadline as the value; GET, then DEL", take, get_then_delete);

/// As [`GETSET_COMPARED`], by a client that tries its release again when no answer came.
pub(crate) const GETSET_AGAIN: Scheme =
    Scheme::new("SETNX, GET, GETSET; GET, then DEL, sent again when unanswered", take, get_then_delete_again);

/// The deadline is noted on the path over `GETSET` only, so one who won by `SETNX` never deletes.
pub(crate) const FORGETFUL: Scheme =
    Scheme::new("SETNX, GET, GETSET; the deadline is noted only on the way over GETSET", take, delete_if_noted);

pub(crate) const DEL_SETNX: Scheme =
    Scheme::new("a deadline as the value; an expired one is deleted, then SETNX", take_by_delete, delete);

/// Writes a time of grace into the key at the end of its job, without a comparison.
pub(crate) const STAMPS_AT_THE_END: Scheme =
    Scheme::new("SETNX, GET, GETSET; at its end the job writes a time into the key", take, |_, turn| {
        // No time of grace is left: the job took longer.
        frees_by(turn, Command::GetSet(LOCK, Value::At(turn.wall - 1)))
    });

/// It is valid until the deadline that was written, by one's own clock.
fn mine(client: &Client) -> Next {
    let Value::At(deadline) = client.mine else { return Next::Busy };
    won_until(deadline - client.skew - client.slept)
}

fn take(client: &mut Client, turn: Turn) -> Next {
    match turn.line {
        0 => {
            (client.mine, client.seen) = (Value::At(turn.wall + TTL), Value::Nil);
            call(1, Command::SetNx(LOCK, client.mine))
        }
        1 if turn.reply == ONE => mine(client),
        1 => call(2, Command::Get(LOCK)),
        2 if !turn.reply.is_past(turn.wall) => Next::Busy,
        2 => {
            (client.seen, client.mine) = (turn.reply, Value::At(turn.wall + TTL));
            call(3, Command::GetSet(LOCK, client.mine))
        }
        _ if turn.reply == client.seen || turn.reply.is_past(turn.wall) => mine(client),
        _ => Next::Busy,
    }
}

fn take_by_delete(client: &mut Client, turn: Turn) -> Next {
    match turn.line {
        2 if turn.reply.is_past(turn.wall) => call(3, Command::Del(LOCK)),
        3 => {
            client.mine = Value::At(turn.wall + TTL);
            call(4, Command::SetNx(LOCK, client.mine))
        }
        4 if turn.reply == ONE => mine(client),
        2 | 4 => Next::Busy,
        _ => take(client, turn),
    }
}

fn is_in_time(client: &Client, turn: Turn) -> bool {
    !client.mine.is_past(turn.wall)
}

fn delete_in_time(client: &mut Client, turn: Turn) -> Next {
    if turn.line == 0 && !is_in_time(client, turn) { Next::Freed } else { delete(client, turn) }
}

fn delete_if_noted(client: &mut Client, turn: Turn) -> Next {
    // `seen` is set on the way over GETSET.
    if turn.line == 0 && client.seen == Value::Nil { Next::Freed } else { delete_in_time(client, turn) }
}

fn get_then_delete_again(client: &mut Client, turn: Turn) -> Next {
    if turn.line > 0 && turn.reply == Value::Broken {
        return call(1, Command::Get(LOCK));
    }
    get_then_delete(client, turn)
}
