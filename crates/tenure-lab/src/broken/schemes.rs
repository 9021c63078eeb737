//! The schemes, as they are written where people learn them.

pub(crate) mod counted;
pub(crate) mod getset;
pub(crate) mod memcached;
pub(crate) mod ours;
pub(crate) mod php;
pub(crate) mod redisson;
pub(crate) mod row;
pub(crate) mod setnx;
pub(crate) mod shared;
pub(crate) mod token;
pub(crate) mod waiting;
pub(crate) mod zookeeper;

use super::command::{Command, LOCK, OK, ONE, Value};
use super::program::{Client, Next, Tick, Turn, call, won_until};

/// How long a lease is, in steps.
pub(crate) const TTL: Tick = 2;

/// The value of all clients that write no token.
pub(crate) const FIXED: Value = Value::Word("1");

/// Remembered by a client that came to give up and found another's value.
pub(crate) const NOT_MINE: Value = Value::Word("not mine");

/// Takes with one command: it holds for a lease if that has won.
fn takes_by(turn: Turn, command: Command) -> Next {
    match (turn.line, turn.reply) {
        (0, _) => call(1, command),
        (_, OK | ONE) => won_until(turn.sent + TTL),
        _ => Next::Busy,
    }
}

/// Renews with one command: it holds for another lease if that found something.
fn renews_by(turn: Turn, command: Command) -> Next {
    match (turn.line, turn.reply) {
        (0, _) => call(1, command),
        (_, OK | ONE) => Next::Renewed(Some(turn.sent + TTL)),
        _ => Next::Gone,
    }
}

/// Gives up with one command, whatever comes of it.
fn frees_by(turn: Turn, command: Command) -> Next {
    if turn.line == 0 { call(1, command) } else { Next::Freed }
}

/// A new token for each take.
fn token_of(client: &mut Client, turn: Turn) -> Value {
    if turn.line == 0 {
        client.mine = client.token();
    }
    client.mine
}

/// `DEL key`, without a comparison.
fn delete(_: &mut Client, turn: Turn) -> Next {
    frees_by(turn, Command::Del(LOCK))
}

/// Nothing: the key is left to its ttl, or to nobody.
fn nothing(_: &mut Client, _: Turn) -> Next {
    Next::Freed
}

/// A script: compare and delete.
fn delete_if_mine(client: &mut Client, turn: Turn) -> Next {
    frees_by(turn, Command::DelIf(LOCK, client.mine))
}

/// `GET`, and if it is mine, `DEL`: two steps.
fn get_then_delete(client: &mut Client, turn: Turn) -> Next {
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
