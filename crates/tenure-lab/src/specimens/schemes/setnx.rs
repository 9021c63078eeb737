//! `SETNX` and `SET NX PX` with a value that says nothing.

use super::{FIXED, TTL, delete, nothing};
use crate::specimens::command::{Command, LOCK, OK, ONE, Value};
use crate::specimens::program::{Client, Next, Scheme, Turn, call, won_until};

/// `SETNX`, then `EXPIRE`, then `DEL`.
pub(in crate::specimens) const SETNX_EXPIRE: Scheme = Scheme::new("SETNX, then EXPIRE, then DEL", setnx_expire, delete);

fn setnx_expire(_: &mut Client, turn: Turn) -> Next {
    match turn.line {
        0 => call(1, Command::SetNx(LOCK, FIXED)),
        1 if turn.reply == ONE => call(2, Command::Expire(LOCK, TTL)),
        1 => Next::Busy,
        _ => won_until(turn.sent + TTL),
    }
}

/// Both in one script, then `DEL`.
pub(in crate::specimens) const SCRIPT: Scheme = Scheme::new("SETNX and EXPIRE in one script, then DEL", script, delete);

fn script(_: &mut Client, turn: Turn) -> Next {
    match turn.line {
        0 => call(1, Command::SetNxExpire(LOCK, FIXED, TTL)),
        _ if turn.reply == ONE => won_until(turn.sent + TTL),
        _ => Next::Busy,
    }
}

/// `SET NX PX`, then `DEL`.
pub(in crate::specimens) const SET_NX: Scheme = Scheme::new("SET NX PX with a fixed value, then DEL", set_nx, delete);

fn set_nx(_: &mut Client, turn: Turn) -> Next {
    match turn.line {
        0 => call(1, Command::SetNxPx(LOCK, FIXED, TTL)),
        _ if turn.reply == OK => won_until(turn.sent + TTL),
        _ => Next::Busy,
    }
}

/// A ttl below a second in a unit of whole seconds.
pub(in crate::specimens) const ROUNDED_TO_ZERO: Scheme =
    Scheme::new("SETNX, then EXPIRE in whole seconds", rounded_to_zero, delete);

fn rounded_to_zero(_: &mut Client, turn: Turn) -> Next {
    match turn.line {
        0 => call(1, Command::SetNx(LOCK, FIXED)),
        1 if turn.reply == ONE => call(2, Command::ExpireNow(LOCK)),
        1 => Next::Busy,
        _ => won_until(turn.sent + TTL),
    }
}

/// An error is taken for "held by another", and nothing is cleared up.
pub(in crate::specimens) const ERROR_IS_BUSY: Scheme =
    Scheme::new("SET NX PX; an error means \"held by another\"", error_is_busy, delete);

fn error_is_busy(client: &mut Client, turn: Turn) -> Next {
    match (turn.line, turn.reply) {
        (1, Value::Broken) => Next::Busy,
        _ => set_nx(client, turn),
    }
}

/// The guard's drop is compiled out.
pub(in crate::specimens) const DROP_DOES_NOTHING: Scheme =
    Scheme::new("SET NX PX; dropping the guard does nothing", set_nx, nothing);
