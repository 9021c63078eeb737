//! `SET NX PX` with a token: compare before you delete, and renew while you work.

use super::{FIXED, TTL, delete_if_mine, get_then_delete, renews_by, takes_by, token_of};
use crate::broken::command::{Command, LOCK, OK, ONE, Value};
use crate::broken::program::{Client, Next, Scheme, Turn, call, call_on_another, won, won_until};

const ABOUT: &str = "SET NX PX with a token, compare-and-delete in a script";

pub(crate) const TOKEN: Scheme = Scheme::new(ABOUT, take, delete_if_mine);

/// As [`TOKEN`], renewed in a script as well, a holder that is valid no longer than its lease and
/// clears up what it asked for unheard.
pub(crate) const CAREFUL: Scheme = Scheme::new(ABOUT, take_or_clear, delete_until_heard)
    .renewed_by("a token, compare-and-delete and renewal in scripts, validity ends with the lease", renew_if_mine);

/// As [`TOKEN`], but the release looks and then deletes.
pub(crate) const TWO_STEPS: Scheme = Scheme::new("SET NX PX with a token; GET, then DEL", take, get_then_delete);

/// As [`TOKEN`], but the holder looks at no clock.
pub(crate) const LONG_WORK: Scheme = Scheme::new(ABOUT, take_and_work, delete_if_mine);

pub(crate) const REPEATING: Scheme =
    Scheme::new("SET NX PX with address and thread number, compare-and-delete in a script", take_as_thread, delete_if_mine);

pub(crate) const BLIND_EXPIRE: Scheme =
    TOKEN.renewed_by("a token, renewed by EXPIRE without a comparison", |_, turn| renews_by(turn, Command::Expire(LOCK, TTL)));

pub(crate) const NO_SLACK: Scheme =
    LONG_WORK.renewed_by("a token, renewed by EXPIRE at the moment the lease ends", |_, turn| match turn.line {
        0 => call(1, Command::Expire(LOCK, TTL)),
        _ => Next::Renewed(None),
    });

pub(crate) const SET_XX: Scheme = TOKEN.renewed_by("a token, renewed by SET XX without a comparison", |client, turn| {
    renews_by(turn, Command::SetXxPx(LOCK, client.mine, TTL))
});

pub(crate) const SET_AGAIN: Scheme = TOKEN.renewed_by("a token, renewed by SET", |client, turn| match turn.line {
    0 => call(1, Command::SetPx(LOCK, client.mine, TTL)),
    _ => Next::Renewed(Some(turn.sent + TTL)),
});

pub(crate) const FROM_THE_REPLY: Scheme =
    Scheme::new("a token, and a lease that counts from the reply", take_from_the_reply, delete_if_mine);

pub(crate) const ERRORS_ARE_LOGGED: Scheme =
    LONG_WORK.renewed_by("a token, renewed; errors are logged, and the holder is not notified", renew_or_log);

pub(crate) const FAULT_IS_LOSS: Scheme = TOKEN.renewed_by("a token, renewed; an error counts as a loss", |client, turn| {
    renews_by(turn, Command::ExpireIf(LOCK, client.mine, TTL))
});

pub(crate) const WORKS_ON: Scheme = Scheme { works_on: true, about: "a token; released without waiting for the work", ..TOKEN };

pub(crate) const WAIT_ELSEWHERE: Scheme = Scheme::new("a token, and WAIT 1 on another connection", take_and_wait, delete_if_mine);

pub(crate) const WATCH: Scheme =
    Scheme::new("a token; WATCH, GET, MULTI, SET or DEL, EXEC on one connection", take_watching, watch_release);

/// The same with a release over a pool, which gives another connection for each command.
pub(crate) const POOLED_RELEASE: Scheme =
    Scheme::new("a token; WATCH, GET, MULTI, DEL, EXEC over a pool", take_watching, |client, turn| match turn.line {
        0 => call_on_another(1, Command::Watch(LOCK)),
        _ => watch_release(client, turn),
    });

pub(crate) const POOLED_ACQUIRE: Scheme =
    Scheme::new("a token; WATCH, GET, MULTI, SET, EXEC over a pool", take_pooled, watch_release);

fn take(client: &mut Client, turn: Turn) -> Next {
    takes_by(turn, Command::SetNxPx(LOCK, token_of(client, turn), TTL))
}

/// Gives up a request without an answer before it does anything else.
fn take_or_clear(client: &mut Client, turn: Turn) -> Next {
    match (turn.line, turn.reply) {
        (1 | 2, Value::Broken) => call(2, Command::DelIf(LOCK, client.mine)),
        (2, _) => Next::Busy,
        _ => take(client, turn),
    }
}

fn delete_until_heard(client: &mut Client, turn: Turn) -> Next {
    match (turn.line, turn.reply) {
        (1, Value::Broken) => call(1, Command::DelIf(LOCK, client.mine)),
        _ => delete_if_mine(client, turn),
    }
}

fn take_and_work(client: &mut Client, turn: Turn) -> Next {
    match take(client, turn) {
        Next::Won { .. } => won(),
        next => next,
    }
}

fn take_from_the_reply(client: &mut Client, turn: Turn) -> Next {
    match take(client, turn) {
        Next::Won { .. } => won_until(turn.now + TTL),
        next => next,
    }
}

fn take_as_thread(client: &mut Client, turn: Turn) -> Next {
    client.mine = FIXED;
    takes_by(turn, Command::SetNxPx(LOCK, FIXED, TTL))
}

fn take_and_wait(client: &mut Client, turn: Turn) -> Next {
    match (turn.line, turn.reply) {
        (1, OK) => call_on_another(2, Command::Wait),
        (2, ONE) => won_until(client.renewed + TTL),
        (2, _) => Next::Busy,
        (0, _) => {
            client.renewed = turn.now;
            take(client, turn)
        }
        _ => take(client, turn),
    }
}

fn renew_if_mine(client: &mut Client, turn: Turn) -> Next {
    match (turn.line, turn.reply) {
        // Whether it ran or not: the lease stands as it was was_valid.
        (1, Value::Broken) => Next::Renewed(client.hold.and_then(|hold| hold.until)),
        _ => renews_by(turn, Command::ExpireIf(LOCK, client.mine, TTL)),
    }
}

fn renew_or_log(client: &mut Client, turn: Turn) -> Next {
    match (turn.line, turn.reply) {
        (0, _) => call(1, Command::ExpireIf(LOCK, client.mine, TTL)),
        (_, ONE | Value::Broken) => Next::Renewed(None),
        _ => Next::Gone,
    }
}

fn take_watching(client: &mut Client, turn: Turn) -> Next {
    let mine = token_of(client, turn);
    match (turn.line, turn.reply) {
        (0, _) => call(1, Command::Watch(LOCK)),
        (1, _) => call(2, Command::Get(LOCK)),
        (2, Value::Nil) => call(3, Command::ExecSetPx(LOCK, mine, TTL)),
        (3, OK) => won_until(turn.sent + TTL),
        _ => Next::Busy,
    }
}

fn take_pooled(client: &mut Client, turn: Turn) -> Next {
    match (turn.line, take_watching(client, turn)) {
        (0, Next::Call(_, then, watch)) => call_on_another(then, watch),
        (_, next) => next,
    }
}

fn watch_release(client: &mut Client, turn: Turn) -> Next {
    match turn.line {
        0 => call(1, Command::Watch(LOCK)),
        1 => call(2, Command::Get(LOCK)),
        2 if turn.reply == client.mine => call(3, Command::ExecDel(LOCK)),
        _ => Next::Freed,
    }
}
