//! `SETNX` and `SET NX PX` with a value that says nothing.

use super::{FIXED, TTL, delete, nothing, takes_by};
use crate::broken::command::{Command, LOCK, ONE};
use crate::broken::program::{Client, Next, Scheme, Turn, call, won_until};

pub(crate) const SETNX_EXPIRE: Scheme =
    Scheme::new("SETNX, then EXPIRE, then DEL", |_, turn| setnx_then(turn, Command::Expire(LOCK, TTL)), delete);

pub(crate) const SCRIPT: Scheme = Scheme::new(
    "SETNX and EXPIRE in one script, then DEL",
    |_, turn| takes_by(turn, Command::SetNxExpire(LOCK, FIXED, TTL)),
    delete,
);

pub(crate) const SET_NX: Scheme = Scheme::new("SET NX PX with a fixed value, then DEL", set_nx, delete);

pub(crate) const ROUNDED_TO_ZERO: Scheme =
    Scheme::new("SETNX, then EXPIRE in whole seconds", |_, turn| setnx_then(turn, Command::ExpireNow(LOCK)), delete);

pub(crate) const ERROR_IS_BUSY: Scheme = Scheme::new("SET NX PX; an error means \"held by another\"", set_nx, delete);

pub(crate) const DROP_DOES_NOTHING: Scheme = Scheme::new("SET NX PX; dropping the guard does nothing", set_nx, nothing);

fn setnx_then(turn: Turn, expire: Command) -> Next {
    match (turn.line, turn.reply) {
        (0, _) => call(1, Command::SetNx(LOCK, FIXED)),
        (1, ONE) => call(2, expire),
        (1, _) => Next::Busy,
        _ => won_until(turn.sent + TTL),
    }
}

fn set_nx(_: &mut Client, turn: Turn) -> Next {
    takes_by(turn, Command::SetNxPx(LOCK, FIXED, TTL))
}
