//! The schemes beside ours, as they are written where people learn them.

use super::client::{Client, Next, Scheme, Turn, call};
use super::command::{Command, OK, ONE, Value};
use super::rules::TTL;

/// `SETNX`, `EXPIRE`, and the adoption of keys that have no expiry; a PHP class that many have
/// copied. It waits, and throws when no reply comes.
pub(super) const PHP: Scheme = Scheme { acquire: adopt, renew: None, release: get_then_delete, in_turn: false };

/// `SETNX`, `GET`, `GETSET` with a deadline as the value; `DEL` before one's deadline.
pub(super) const GETSET: Scheme = Scheme { acquire: take_over, renew: None, release: delete_in_time, in_turn: false };

/// A token; `WATCH`, `GET`, `MULTI`, `SET` or `DEL`, `EXEC` on one connection.
pub(super) const WATCH: Scheme = Scheme { acquire: take_watching, renew: None, release: release_watching, in_turn: false };

/// The same with a release over a pool, which gives another connection for each command.
pub(super) const POOLED: Scheme = Scheme {
    release: |client, turn| match turn.line {
        0 => Next::Call(1, 1, Command::Watch),
        _ => release_watching(client, turn),
    },
    ..WATCH
};

fn adopt(client: &mut Client, turn: Turn) -> Next {
    match (turn.line, turn.reply) {
        (_, Value::Broken) => Next::Busy,
        (0, _) => {
            client.mine = Value::At(turn.wall + TTL);
            call(1, Command::SetNx(client.mine))
        }
        (1, ONE) => call(4, Command::Expire),
        (1, _) => call(2, Command::Ttl),
        (2, Value::Int(ttl)) if ttl < 0 => call(4, Command::SetPx(client.mine)),
        // It tries again, with the value of its beginning.
        (2, _) => call(1, Command::SetNx(client.mine)),
        _ => Next::Won(turn.sent + TTL),
    }
}

fn get_then_delete(client: &mut Client, turn: Turn) -> Next {
    match turn.line {
        0 => call(1, Command::Get),
        1 if turn.reply == client.mine => call(2, Command::Del),
        _ => Next::Freed,
    }
}

fn take_over(client: &mut Client, turn: Turn) -> Next {
    match turn.line {
        0 => {
            (client.mine, client.seen) = (Value::At(turn.wall + TTL), Value::Nil);
            call(1, Command::SetNx(client.mine))
        }
        1 if turn.reply == ONE => client.won_until_mine(),
        1 => call(2, Command::Get),
        2 if !turn.reply.is_past(turn.wall) => Next::Busy,
        2 => {
            (client.seen, client.mine) = (turn.reply, Value::At(turn.wall + TTL));
            call(3, Command::GetSet(client.mine))
        }
        _ if turn.reply == client.seen || turn.reply.is_past(turn.wall) => client.won_until_mine(),
        _ => Next::Busy,
    }
}

fn delete_in_time(client: &mut Client, turn: Turn) -> Next {
    match turn.line {
        0 if !client.mine.is_past(turn.wall) => call(1, Command::Del),
        _ => Next::Freed,
    }
}

fn take_watching(client: &mut Client, turn: Turn) -> Next {
    match (turn.line, turn.reply) {
        (0, _) => {
            client.mine = Value::Token(client.who);
            call(1, Command::Watch)
        }
        (1, _) => call(2, Command::Get),
        (2, Value::Nil) => call(3, Command::ExecSetPx(client.mine)),
        (3, OK) => Next::Won(turn.sent + TTL),
        _ => Next::Busy,
    }
}

fn release_watching(client: &mut Client, turn: Turn) -> Next {
    match turn.line {
        0 => call(1, Command::Watch),
        1 => call(2, Command::Get),
        2 if turn.reply == client.mine => call(3, Command::ExecDel),
        _ => Next::Freed,
    }
}
