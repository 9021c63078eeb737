//! Locks on memcached: `add`, and `gets` with `cas`.

use super::{NOT_MINE, TTL, token_of};
use crate::broken::command::Value;
use crate::broken::engine::Engine;
use crate::broken::memcached::{Memcached, STORED};
use crate::broken::program::{Client, Next, Scheme, Turn, call, won_until};

pub(crate) const ADD: Scheme =
    Scheme::new("memcached: add with a token and an exptime; get, then delete", add, get_then_delete).on(Engine::Memcached);

/// The item has no exptime: its deadline frees it.
pub(crate) const CAS: Scheme =
    Scheme::new("memcached: gets and cas of an item with owner and deadline, by the clock of the application", swap, swap_back)
        .on(Engine::Memcached);

fn add(client: &mut Client, turn: Turn) -> Next {
    match (turn.line, turn.reply) {
        (0, _) => call(1, Memcached::Add(token_of(client, turn), Some(TTL)).command()),
        (_, STORED) => won_until(turn.sent + TTL),
        _ => Next::Busy,
    }
}

fn get_then_delete(client: &mut Client, turn: Turn) -> Next {
    match turn.line {
        0 => call(1, Memcached::Get.command()),
        1 if turn.reply == client.mine => call(2, Memcached::Delete.command()),
        1 => {
            client.seen = NOT_MINE;
            Next::Freed
        }
        _ => Next::Freed,
    }
}

/// An item of this client, with a lease that ends then.
fn item(client: &Client, ends: i16) -> Value {
    Value::Record { who: client.who, take: client.takes, ends }
}

fn swap(client: &mut Client, turn: Turn) -> Next {
    match (turn.line, turn.reply) {
        (0, _) => call(1, Memcached::Gets.command()),
        (1, found) => {
            client.mine = item(client, turn.wall + TTL);
            match found {
                Value::Nil => call(2, Memcached::Add(client.mine, None).command()),
                other if other.is_past(turn.wall) => call(2, Memcached::Cas(client.mine).command()),
                _ => Next::Busy,
            }
        }
        (_, STORED) => mine(client),
        _ => Next::Busy,
    }
}

/// It is valid until the deadline that was written, by one's own clock.
fn mine(client: &Client) -> Next {
    let Value::Record { ends, .. } = client.mine else { return Next::Busy };
    won_until(ends - client.skew - client.slept)
}

fn swap_back(client: &mut Client, turn: Turn) -> Next {
    match turn.line {
        0 => call(1, Memcached::Gets.command()),
        1 if turn.reply == client.mine => call(2, Memcached::Cas(item(client, turn.wall - 1)).command()),
        _ => Next::Freed,
    }
}
