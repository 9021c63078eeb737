//! The schemes, as they are written where people learn them.

pub(super) mod counted;
pub(super) mod getset;
pub(super) mod ours;
pub(super) mod php;
pub(super) mod row;
pub(super) mod setnx;
pub(super) mod shared;
pub(super) mod token;
pub(super) mod waiting;

use super::command::{Command, LOCK, Value};
use super::program::{Client, Next, Tick, Turn, call};

/// How long a lease is, in steps.
pub(super) const TTL: Tick = 2;

/// `DEL key`, whoever holds it.
pub(super) fn delete(_: &mut Client, turn: Turn) -> Next {
    match turn.line {
        0 => call(1, Command::Del(LOCK)),
        _ => Next::Freed,
    }
}

/// Nothing: the key is left to its ttl, or to nobody.
pub(super) fn nothing(_: &mut Client, _: Turn) -> Next {
    Next::Freed
}

/// A script: compare and delete.
pub(super) fn delete_if_mine(client: &mut Client, turn: Turn) -> Next {
    match turn.line {
        0 => call(1, Command::DelIf(LOCK, client.mine)),
        _ => Next::Freed,
    }
}

/// `GET`, and if it is mine, `DEL`: two steps.
pub(super) fn get_then_delete(client: &mut Client, turn: Turn) -> Next {
    match turn.line {
        0 => call(1, Command::Get(LOCK)),
        1 if turn.reply == client.mine => call(2, Command::Del(LOCK)),
        1 => {
            client.seen = NOT_MINE;
            Next::Freed
        }
        _ => Next::Freed,
    }
}

/// Remembered by a client that came to give up and found another's value.
pub(super) const NOT_MINE: Value = Value::Word("not mine");

/// What everybody writes who writes no token.
pub(super) const FIXED: Value = Value::Word("1");
