//! Fences, and counts of re-entry.

use tenure_testkit::register::Comparison;

use super::{TTL, delete_if_mine, takes_by, token_of};
use crate::broken::command::{Command, LOCK, Value};
use crate::broken::program::{Client, Next, Scheme, Turn, call, won};

pub(crate) const INCR_FENCE: Scheme = Scheme {
    resource: Some(Comparison::Order),
    ..Scheme::new("a token, and a fence from INCR", take_with_fence, delete_if_mine)
};

/// A fence that is the owner's number and not a later holder's larger one.
pub(crate) const UNORDERED_FENCE: Scheme =
    Scheme::new("a token, and the owner's number as the fence", take_with_id, delete_if_mine);

pub(crate) const EQUAL_FENCE: Scheme = Scheme {
    resource: Some(Comparison::Equality),
    ..Scheme::new("a fence that the resource compares for equality", take_with_fence, delete_if_mine)
};

pub(crate) const REENTRANT: Scheme =
    Scheme::new("", take_twice, delete_if_mine).renewed_by("a re-entrant lock that counts by HINCRBY", give_up_inner);

fn take_with_fence(client: &mut Client, turn: Turn) -> Next {
    match (turn.line, turn.reply) {
        (0, _) => call(1, Command::SetNxPxIncr(LOCK, token_of(client, turn), TTL)),
        (_, Value::Int(fence)) if fence > 0 => Next::Won { until: Some(turn.sent + TTL), fence: Some(fence) },
        _ => Next::Busy,
    }
}

fn take_with_id(client: &mut Client, turn: Turn) -> Next {
    match takes_by(turn, Command::SetNxPx(LOCK, token_of(client, turn), TTL)) {
        // The first to come has the largest of the numbers that were dealt out.
        Next::Won { until, .. } => Next::Won { until, fence: Some(30 - 10 * i16::from(client.who)) },
        next => next,
    }
}

/// Holds twice before it counts as taken here: the outer hold and one inside it.
fn take_twice(client: &mut Client, turn: Turn) -> Next {
    let count = Command::Count(LOCK, token_of(client, turn), 1, 3 * TTL);
    match (turn.line, turn.reply) {
        (0, _) => call(1, count),
        (1, Value::Int(_)) => call(2, count),
        (2, Value::Int(_)) => won(),
        _ => Next::Busy,
    }
}

/// Ends the inner hold, once, and goes on with the outer one.
fn give_up_inner(client: &mut Client, turn: Turn) -> Next {
    const ENDED: Value = Value::Word("inner hold ended");
    match (turn.line, turn.reply) {
        (0, _) if client.seen == ENDED => Next::Renewed(None),
        (0, _) | (1, Value::Broken) => {
            client.seen = ENDED;
            call(1, Command::Count(LOCK, client.mine, -1, 3 * TTL))
        }
        _ => Next::Renewed(None),
    }
}
