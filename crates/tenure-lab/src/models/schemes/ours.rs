//! Our own client in three schemes of others.

use super::client::{Client, Next, Scheme, Turn, call};
use super::command::{Command, OK, ONE, Task, Value, ZERO};
use super::rules::{TTL, Tick};

/// `scheme=php` and `scheme=getset`, which differ in what the value says.
pub(super) const STAMPED: Scheme = Scheme { acquire: take, renew: Some(renew), release, in_turn: false };

/// `scheme=watch`, as far as a name goes that nobody waits for.
pub(super) const WATCH: Scheme =
    Scheme { acquire: take_watching, renew: Some(renew_watching), release: release_watching, in_turn: true };

fn script(line: u8, client: &Client, turn: Turn, task: Task) -> Next {
    call(line, Command::Script(task, client.mine, turn.wall))
}

/// Whether a script has done it. Where nothing stands beside the value, that is the owner from now
/// on.
fn is_done(client: &mut Client, reply: Value) -> bool {
    if matches!(reply, Value::At(_)) {
        client.mine = reply;
    }
    matches!(reply, ONE | Value::At(_))
}

/// Repeats a request without an answer, once, by the same owner; then gives it up.
fn take(client: &mut Client, turn: Turn) -> Next {
    match (turn.line, turn.reply) {
        (0, _) => {
            (client.mine, client.renewed) = (Value::Token(client.who), turn.now);
            if turn.rules.one_step { script(1, client, turn, Task::Take) } else { call(4, Command::Get) }
        }
        (4, Value::At(end)) if end > turn.wall => Next::Busy,
        (4, _) => script(1, client, turn, Task::Put),
        (1, Value::Broken) => script(2, client, turn, Task::Take),
        (2, Value::Word(_)) | (2 | 3, Value::Broken) => script(3, client, turn, Task::Release),
        (1 | 2, reply) if is_done(client, reply) => Next::Won(client.renewed + TTL),
        _ => Next::Busy,
    }
}

/// A renewal that was not heard changes nothing, nor does one that is heard when the lease may have
/// ended.
fn renewed(client: &Client, turn: Turn, done: bool, since: Tick) -> Next {
    let before = client.hold;
    let over = before.is_some_and(|until| until <= turn.now);
    match turn.reply {
        Value::Broken => Next::Renewed(before),
        _ if done && over => Next::Renewed(before),
        _ if done => Next::Renewed(before.max(Some(since + TTL))),
        _ => Next::Gone,
    }
}

fn renew(client: &mut Client, turn: Turn) -> Next {
    if turn.line == 0 {
        return script(1, client, turn, Task::Renew);
    }
    let done = is_done(client, turn.reply);
    renewed(client, turn, done, turn.sent)
}

fn release(client: &mut Client, turn: Turn) -> Next {
    match (turn.line, turn.reply) {
        (0, _) | (_, Value::Broken) => script(1, client, turn, Task::Release),
        _ => Next::Freed,
    }
}

/// Remembered by a client whose first connection is gone; it goes on with the other.
const RECONNECTED: Value = Value::Int(1);

fn on_its_connection(client: &Client, line: u8, command: Command) -> Next {
    Next::Call(u8::from(client.seen == RECONNECTED), line, command)
}

/// A look and a write: `write` says what a value is replaced by, or that nothing is to be done.
fn transact(client: &mut Client, turn: Turn, write: impl Fn(&Client, Value) -> Option<Command>) -> Result<Value, Next> {
    if turn.reply == Value::Broken {
        client.seen = if client.seen == RECONNECTED { ZERO } else { RECONNECTED };
        // The rule left out: the write is sent again as it was.
        if turn.line == 3
            && !turn.rules.looks_again
            && let Some(command) = write(client, Value::Nil).or(write(client, client.mine))
        {
            return Err(on_its_connection(client, 3, command));
        }
        return Err(on_its_connection(client, 1, Command::Watch));
    }
    match (turn.line, turn.reply) {
        (0, _) | (3, Value::Nil) => Err(on_its_connection(client, 1, Command::Watch)),
        (1, _) => Err(on_its_connection(client, 2, Command::Get)),
        (2, found) => match write(client, found) {
            Some(command) => Err(on_its_connection(client, 3, command)),
            None => Ok(ZERO),
        },
        (_, done) => Ok(done),
    }
}

fn take_watching(client: &mut Client, turn: Turn) -> Next {
    if turn.line == 0 {
        (client.mine, client.renewed) = (Value::Token(client.who), turn.now);
    }
    // What it finds its own is that of its own command, which was not heard.
    let free = |client: &Client, found| (found == Value::Nil || found == client.mine).then_some(Command::ExecSetPx(client.mine));
    match transact(client, turn, free) {
        Ok(OK) => Next::Won(client.renewed + TTL),
        Ok(_) => Next::Busy,
        Err(next) => next,
    }
}

fn renew_watching(client: &mut Client, turn: Turn) -> Next {
    if turn.line == 0 {
        client.renewed = turn.now;
    }
    let mine = |client: &Client, found| (found == client.mine).then_some(Command::ExecSetPx(client.mine));
    match transact(client, turn, mine) {
        Ok(done) => renewed(client, turn, done == OK, client.renewed),
        Err(next) => next,
    }
}

fn release_watching(client: &mut Client, turn: Turn) -> Next {
    let mine = |client: &Client, found| (found == client.mine).then_some(Command::ExecDel);
    match transact(client, turn, mine) {
        Ok(_) => Next::Freed,
        Err(next) => next,
    }
}
