//! Objects of Redisson, with the holes that they have on one Redis. Its fair lock is
//! [`waiting::FAIR`](super::waiting::FAIR).

use super::shared::PERMITS;
use super::{TTL, frees_by, token_of};
use crate::broken::command::{Command, LOCK, ONE, Value};
use crate::broken::program::{Client, Next, Scheme, Turn, call, won};
use crate::broken::redisson::{Redisson, Task};

/// A writer that also read for a while. The watchdog has one entry for both holds of a thread, and
/// the end of the reading drops it.
pub(crate) const WRITE: Scheme = Scheme::new("", write_and_read, write_unlock).renewed_by(
    "an RReadWriteLock; the end of a reading ends the renewals of the same thread's writing",
    |client, turn| {
        if client.seen == READ { Next::Renewed(None) } else { watch(client, turn, Task::RenewWrite) }
    },
);

/// The same with an entry for each hold.
pub(crate) const WRITE_WATCHED: Scheme = Scheme::new("", write_and_read, write_unlock)
    .renewed_by("an RReadWriteLock that renews the reading and the writing of one thread each for itself", |client, turn| {
        watch(client, turn, Task::RenewWrite)
    });

/// Without a ttl, and without an owner.
pub(crate) const SEMAPHORE: Scheme = Scheme {
    free: Some(Value::Int(PERMITS as i16)),
    ..Scheme::new("an RSemaphore, the number of free permits: DECR, and INCR", take_permit, |_, turn| {
        frees_by(turn, Command::Incr(LOCK))
    })
};

/// The call ignores the lease that it is given, and its watchdog renews.
pub(crate) const FENCED_LEASE: Scheme =
    FIXED_LEASE.renewed_by("an RFencedLock whose lockAndGetToken(lease) is renewed all the same", |client, turn| {
        match watch(client, turn, Task::Renew) {
            // Its caller counts on the lease that it asked for.
            Next::Renewed(_) => Next::Renewed(client.hold.and_then(|hold| hold.until)),
            next => next,
        }
    });

/// The same without a watchdog.
pub(crate) const FIXED_LEASE: Scheme = Scheme {
    fixed: true,
    ..Scheme::new("an RFencedLock with a lease that nobody renews", take_with_token, |client, turn| {
        frees_by(turn, Command::Count(LOCK, client.mine, -1, TTL))
    })
};

/// Of this client: it has read, and reads no more.
const READ: Value = Value::Word("read");

fn script(client: &Client, task: Task) -> Command {
    Command::Redisson(Redisson { task, owner: client.mine, ttl: TTL })
}

/// Takes it to write, and reads for a while.
fn write_and_read(client: &mut Client, turn: Turn) -> Next {
    token_of(client, turn);
    match (turn.line, turn.reply) {
        (0, _) => call(1, script(client, Task::Write)),
        (1, ONE) => Next::WonAnd(2, script(client, Task::Read)),
        (1, _) => Next::Busy,
        (2, ONE) => call(3, script(client, Task::ReadUnlock)),
        (_, reply) => {
            if reply == ONE {
                client.seen = READ;
            }
            Next::Done
        }
    }
}

fn write_unlock(client: &mut Client, turn: Turn) -> Next {
    frees_by(turn, script(client, Task::WriteUnlock))
}

/// A round of the watchdog. Nobody is notified of a loss.
fn watch(client: &mut Client, turn: Turn, task: Task) -> Next {
    if turn.line == 0 { call(1, script(client, task)) } else { Next::Renewed(None) }
}

/// The first to come makes the permits.
fn take_permit(client: &mut Client, turn: Turn) -> Next {
    match (turn.line, turn.reply) {
        (0, _) => call(1, Command::SetNx(LOCK, Value::Int(PERMITS.into()))),
        (1, _) => call(2, script(client, Task::Permit)),
        (_, ONE) => won(),
        _ => Next::Busy,
    }
}

fn take_with_token(client: &mut Client, turn: Turn) -> Next {
    token_of(client, turn);
    match (turn.line, turn.reply) {
        (0, _) => call(1, script(client, Task::Fenced)),
        (_, Value::Int(token)) if token > 0 => Next::Won { until: Some(turn.sent + TTL), fence: Some(token) },
        _ => Next::Busy,
    }
}
