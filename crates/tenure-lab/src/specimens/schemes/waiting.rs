//! Locks whose takers wait: for a message, or in a queue at the server.

use super::{TTL, delete_if_mine};
use crate::specimens::command::{Command, LOCK, OK, ONE, Value};
use crate::specimens::program::{Client, Next, Scheme, Turn, call, call_on_another, won_until};

/// A waiter that waits for a message and nothing else.
pub(in crate::specimens) const MESSAGES_ONLY: Scheme =
    Scheme::new("a waiter that waits for a message and nothing else", take_or_listen, delete_and_publish);

/// The same, and it looks once more when it has subscribed. One message goes to all who wait.
pub(in crate::specimens) const SUBSCRIBED: Scheme = Scheme::new(
    "a waiter that subscribes, looks once more, and waits for a message that goes to all",
    take_or_subscribe,
    delete_and_publish,
);

/// A queue whose places end by the clocks of those who come.
pub(in crate::specimens) const FAIR: Scheme =
    Scheme::new("a fair queue whose places end by the clock of whoever comes", take_in_turn, delete_if_mine);

/// Of this client a message was waited for.
pub(in crate::specimens) const LISTENED: Value = Value::Word("listened");

fn take(client: &mut Client, line: u8) -> Next {
    client.mine = client.token();
    call(line, Command::SetNxPx(LOCK, client.mine, TTL))
}

fn take_or_listen(client: &mut Client, turn: Turn) -> Next {
    match (turn.line, turn.reply) {
        (1, OK) => won_until(turn.sent + TTL),
        (1, _) => call_on_another(2, Command::Subscribe(LOCK)),
        (2, _) => Next::Listen(3),
        _ => take(client, 1),
    }
}

fn take_or_subscribe(client: &mut Client, turn: Turn) -> Next {
    match (turn.line, turn.reply) {
        (0, _) => take(client, 1),
        (1 | 3, OK) => won_until(turn.sent + TTL),
        (1, _) => call_on_another(2, Command::Subscribe(LOCK)),
        (3, _) => {
            client.seen = LISTENED;
            Next::Listen(2)
        }
        _ => take(client, 3),
    }
}

fn delete_and_publish(client: &mut Client, turn: Turn) -> Next {
    match turn.line {
        0 => call(1, Command::DelIfPublish(LOCK, client.mine)),
        _ => Next::Freed,
    }
}

fn take_in_turn(client: &mut Client, turn: Turn) -> Next {
    if turn.line == 0 {
        client.mine = client.token();
    }
    let look = Command::TakeInTurn { key: LOCK, member: client.mine, at: Value::At(turn.wall), ttl: TTL, patience: TTL };
    match (turn.line, turn.reply) {
        (0, _) => call(1, look),
        (_, ONE) => won_until(turn.sent + TTL),
        _ => Next::Look(1, look),
    }
}
