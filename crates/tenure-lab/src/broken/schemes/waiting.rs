//! Locks whose takers wait: for a message, or in a queue at the server.

use super::{TTL, delete_if_mine, frees_by, token_of};
use crate::broken::command::{Command, LOCK, OK, ONE, Value};
use crate::broken::program::{Client, Next, Scheme, Turn, call, call_on_another, won_until};

pub(crate) const MESSAGES_ONLY: Scheme =
    Scheme::new("a waiter that waits for a message and nothing else", take_or_listen, delete_and_publish);

/// The same, and it polls once more when it has subscribed. One message goes to all who wait.
pub(crate) const SUBSCRIBED: Scheme = Scheme::new(
    "a waiter that subscribes, polls once more, and waits for a message that goes to all",
    take_or_subscribe,
    delete_and_publish,
);

pub(crate) const FAIR: Scheme =
    Scheme::new("a fair queue whose places end by the clock of each client that comes", take_in_turn, delete_if_mine);

/// Of this client a message was waited for.
pub(crate) const LISTENED: Value = Value::Word("listened");

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
    frees_by(turn, Command::DelIfPublish(LOCK, client.mine))
}

fn take_in_turn(client: &mut Client, turn: Turn) -> Next {
    let member = token_of(client, turn);
    let look = Command::TakeInTurn { key: LOCK, member, at: turn.wall, ttl: TTL, patience: TTL };
    match (turn.line, turn.reply) {
        (0, _) => call(1, look),
        (_, ONE) => won_until(turn.sent + TTL),
        _ => Next::Look(1, look),
    }
}
