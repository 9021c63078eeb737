//! Losses that nothing prevents on one Redis: each hole that GUARANTEES.md names and that can be provoked.

use std::time::Duration;

use tenure_testkit::RedisServer;
use tenure_testkit::history::Rule;

use crate::Item;
use crate::scenarios::fixtures::Redis;
use crate::scenarios::scheme::NATIVE;
use crate::scenarios::stage::{DOOR, Heir, NEXT, RENEWAL, Stage, now, terms};
use crate::scenarios::{broken, fenced};

#[rustfmt::skip]
pub(super) fn items() -> Vec<Item> {
    vec![
        broken("redis/12-data-lost-clock-back", "data lost, and the clock that serves next is behind", Rule::FenceOrder,
            NATIVE.clocked(clock_behind)),
        fenced("redis/12-data-lost-clock-back-seen", "data lost and the clock behind, and the next has seen the fence of the first",
            NATIVE.clocked(clock_behind_and_seen)),
        fenced("redis/12-data-back-by-a-primary", "data lost within 1 s by a failover that connections outlive, and that an error reports",
            NATIVE.plain(back_after_doubt)),
        broken("redis/12-data-back-in-a-moment", "data lost and back within 1 s, while connections stay", Rule::FenceOrder,
            NATIVE.plain(back_at_once)),
        fenced("redis/12-clocks-apart", "the server's clock is faster by a fifth, and nobody renews",
            NATIVE.clocked(clocks_apart)),
        broken("redis/14-two-primaries", "a replica is promoted while the old primary serves on", Rule::FenceOrder,
            NATIVE.plain(two_primaries)),
    ]
}

/// A client that has seen no fence of the old server gets one below those.
fn clock_behind(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, b) = (stage.near(), stage.far());
    let first = a.takes(DOOR);
    first.works(&stage.register);
    redis.server.shift_clock(-60_000);
    redis.server.restart_empty();
    stage.fault("the server is back empty, its clock a minute behind");
    let second = b.takes(DOOR);
    second.tries_to_work(&stage.register);
    second.refused();
    stage.expect(&second.releases(), "Released");
}

/// The fence that a client has seen is enough, whatever the clock says.
fn clock_behind_and_seen(stage: &mut Stage<'_>, redis: &Redis) {
    stage.is_taken_away(Heir::Waits, "the server is back empty, its clock a minute behind", || {
        redis.server.shift_clock(-60_000);
        redis.server.restart_empty();
    });
}

/// As [`back_at_once`], where the server has refused a command in between, as one does that is no primary.
fn back_after_doubt(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, b, server) = (stage.near(), stage.far(), &redis.server);
    let warm = b.takes("warm");
    let copy = server.cli("GET tenure:fence");
    stage.expect(&warm.releases(), "Released");
    let first = a.takes(DOOR);
    first.works(&stage.register);
    server.cli("REPLICAOF 127.0.0.1 1");
    stage.fault("the server is a replica");
    b.asks("other", terms().wait(Duration::ZERO)).failed("Unavailable");
    server.cli("REPLICAOF NO ONE");
    let since = now();
    server.cli("DEL door");
    server.cli(&format!("SET tenure:fence {copy}"));
    stage.fault("it is a primary again, and its data what it was before the grant");
    let second = b.takes(DOOR);
    second.tries_to_work(&stage.register);
    second.wrote();
    first.refused();
    stage.loss_due_since(since, RENEWAL);
    first.lost();
    stage.is_left(&second);
}

/// The counter falls back to what a connection has seen, which trusts it for a second.
fn back_at_once(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, b) = (stage.near(), stage.far());
    // Its process starts before that second.
    a.settles();
    let warm = b.takes("warm");
    let copy = redis.server.cli("GET tenure:fence");
    stage.expect(&warm.releases(), "Released");
    let _first = a.takes(DOOR);
    redis.server.cli("DEL door");
    redis.server.cli(&format!("SET tenure:fence {copy}"));
    stage.fault("the data is again what it was before the grant");
    let second = b.takes(DOOR);
    stage.is_left(&second);
}

/// The lease ends at the server before the holder's own clock says so. Fences keep their order.
fn clocks_apart(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, b) = (stage.near(), stage.far());
    let first = a.asks(DOOR, terms().fixed());
    first.granted();
    first.works(&stage.register);
    let second = b.asks(DOOR, terms());
    stage.fault("the server's clock runs faster by a fifth from now on");
    stage.grant_due(NEXT);
    let begun = now();
    while !second.is_granted() {
        let ahead = (now() - begun) / 5_000_000;
        redis.server.shift_clock(i64::try_from(ahead).expect("a short run"));
        std::thread::sleep(Duration::from_millis(5));
    }
    stage.holds_true(redis.clock_ahead() > 250, "the server's clock is where it was");
    second.works(&stage.register);
    first.refused();
    first.lost();
    stage.is_left(&second);
}

/// Each orders fences for itself, by its own clock once a second.
fn two_primaries(stage: &mut Stage<'_>, redis: &Redis) {
    let replica = RedisServer::replica_of(&redis.server);
    let (a, b) = (stage.near(), stage.actor(&replica.url()));
    // Its process starts, and connects, before that second.
    b.asks("other", terms().wait(Duration::ZERO)).failed("Unavailable");
    let first = a.takes(DOOR);
    replica.promote();
    replica.cli("DEL door");
    stage.fault("the replica is promoted, without the grant");
    let _second = b.takes(DOOR);
    stage.expect(&first.releases(), "Released");
    let again = a.takes(DOOR);
    stage.is_left(&again);
}
