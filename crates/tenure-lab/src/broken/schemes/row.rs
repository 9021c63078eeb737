//! A row of a table with a version and an end: an optimistic lock.

use super::{TTL, frees_by};
use crate::broken::command::{Command, LOCK, ONE, Value};
use crate::broken::engine::Engine;
use crate::broken::program::{Client, Next, Scheme, Turn, call, won_until};

pub(crate) const ROW: Scheme =
    Scheme::new("a row with a version; its end by the clock of the application", take, give_up).on(Engine::Table);

/// The same without reading the end of the lease.
pub(crate) const NO_LOOK: Scheme =
    Scheme::new("a row with a version; nobody looks at its end", take_any, give_up).on(Engine::Table);

/// The same without reading the number of rows that were updated.
pub(crate) const ROWS_UNCOUNTED: Scheme =
    Scheme::new("a row with a version; nobody counts the rows that were updated", take_uncounted, give_up).on(Engine::Table);

/// The same in a transaction: `now()` is when that began, also after it has waited.
pub(crate) const FROZEN_NOW: Scheme =
    Scheme::new("a row with a version; its end by the now() of a transaction", take_frozen, give_up).on(Engine::Table);

fn take(client: &mut Client, turn: Turn) -> Next {
    match (turn.line, turn.reply) {
        (0, _) => call(1, Command::Select(LOCK)),
        (1, row) if !row.is_past(turn.wall) => Next::Busy,
        _ => take_any(client, turn),
    }
}

fn take_any(client: &mut Client, turn: Turn) -> Next {
    match (turn.line, turn.reply) {
        (0, _) => call(1, Command::Select(LOCK)),
        (1, Value::Row { version, .. }) => {
            client.mine = Value::Int(version + 1);
            call(2, Command::Update { key: LOCK, version, ends: turn.wall + TTL })
        }
        (_, ONE) => won_until(turn.sent + TTL),
        _ => Next::Busy,
    }
}

fn take_uncounted(client: &mut Client, turn: Turn) -> Next {
    match turn.line {
        2 => won_until(turn.sent + TTL),
        _ => take(client, turn),
    }
}

/// The transaction begins with its first command.
fn take_frozen(client: &mut Client, turn: Turn) -> Next {
    match (turn.line, turn.reply) {
        (1, row @ Value::Row { version, .. }) if row.is_past(turn.wall) => {
            client.mine = Value::Int(version + 1);
            call(2, Command::Update { key: LOCK, version, ends: turn.sent + TTL })
        }
        _ => take(client, turn),
    }
}

fn give_up(client: &mut Client, turn: Turn) -> Next {
    let Value::Int(version) = client.mine else { return Next::Freed };
    frees_by(turn, Command::Update { key: LOCK, version, ends: turn.wall - 1 })
}
