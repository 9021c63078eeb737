//! `SETNX`, `EXPIRE`, and the adoption of keys that have no expiry; a PHP class that many have
//! copied.

use super::{TTL, delete_if_mine, get_then_delete};
use crate::broken::command::{Command, LOCK, ONE, Value};
use crate::broken::program::{Client, Next, Scheme, Turn, call, won_until};

pub(crate) const PHP: Scheme =
    Scheme::new("SETNX, EXPIRE; keys without expiry are adopted; GET, then DEL", take, get_then_delete);

pub(crate) const PROLONGED: Scheme = PHP.renewed_by("SETNX, EXPIRE, adoption; prolonged by GET, then EXPIRE", get_then_expire);

/// With its release mended to compare-and-delete in one step: the value itself is no identity.
pub(crate) const MENDED_RELEASE: Scheme =
    Scheme::new("SETNX, EXPIRE, adoption; compare-and-delete of start + expiry", wait, delete_if_mine);

/// As the class has it, with a timeout, and a client of Redis that throws when no reply comes.
pub(crate) const WAITING: Scheme = Scheme::new("SETNX, EXPIRE, adoption; GET, then DEL", wait_or_throw, get_then_delete);

/// A client that has adopted remembers it here.
pub(crate) const ADOPTED: Value = Value::Word("adopted");

/// Of this client the key was found without expiry, or gone.
pub(crate) const GONE: Value = Value::Word("gone");

fn take(client: &mut Client, turn: Turn) -> Next {
    match (turn.line, turn.reply) {
        (0, _) => {
            client.mine = Value::At(turn.wall + TTL);
            call(1, Command::SetNx(LOCK, client.mine))
        }
        (1, ONE) => call(4, Command::Expire(LOCK, TTL)),
        (1, _) => call(2, Command::Ttl(LOCK)),
        (2, Value::Int(ttl)) if ttl < 0 => {
            client.seen = if ttl == -1 { ADOPTED } else { GONE };
            call(4, Command::SetPx(LOCK, client.mine, TTL))
        }
        (2, _) => Next::Busy,
        _ => won_until(turn.sent + TTL),
    }
}

/// With a timeout: tries again, with the value of its beginning.
fn wait(client: &mut Client, turn: Turn) -> Next {
    match (turn.line, turn.reply) {
        (2, Value::Int(ttl)) if ttl >= 0 => call(1, Command::SetNx(LOCK, client.mine)),
        _ => take(client, turn),
    }
}

fn wait_or_throw(client: &mut Client, turn: Turn) -> Next {
    if turn.reply == Value::Broken { Next::Busy } else { wait(client, turn) }
}

fn get_then_expire(client: &mut Client, turn: Turn) -> Next {
    match turn.line {
        0 => call(1, Command::Get(LOCK)),
        1 if turn.reply == client.mine => call(2, Command::Expire(LOCK, TTL)),
        2 if turn.reply == ONE => Next::Renewed(Some(turn.sent + TTL)),
        _ => Next::Gone,
    }
}
