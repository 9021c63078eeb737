//! Data that is lost, so that another can take what somebody holds: the fence keeps the first from writing.

use super::fault::Fault;
use crate::Item;
use crate::scenarios::fixtures::{Redis, Switch};
use crate::scenarios::scheme::{NATIVE, Scheme};
use crate::scenarios::stage::{DOOR, Heir, OPERATION, RENEWAL, SLACK, SOON, Stage, now, terms};
use tenure_testkit::{RedisServer, Signal, wait_until};

pub(super) fn items() -> Vec<Item> {
    [in_scheme(NATIVE), with_ttl(NATIVE), ours()].concat()
}

/// The rows of every scheme.
pub(super) fn in_scheme(on: Scheme) -> Vec<Item> {
    let of = on.rows();
    vec![
        of.fenced("11-killed-without-persistence", "kill -9 of a server that writes nothing down", on.plain(killed_and_empty)),
        of.fenced("29-flushed", "FLUSHALL", on.plain(flushed)),
        of.fenced("29-deleted", "a foreign client deletes the name without comparing", on.plain(deleted)),
    ]
}

/// The row of a scheme in which any value may be another's.
pub(super) fn with_ttl(on: Scheme) -> Vec<Item> {
    let of = on.rows();
    vec![of.fenced("29-overwritten", "a foreign client writes the name over", on.plain(overwritten))]
}

/// The rows that would show no more in another scheme.
fn ours() -> Vec<Item> {
    let (on, of) = (NATIVE, NATIVE.rows());
    vec![
        of.fenced("11-older-copy", "the server comes back with data from before the grant", on.plain(older_copy)),
        of.fenced("13-replica-promoted", "a replica that has not the grant takes over", on.plain(replica_promoted)),
        of.fenced("27-evicted", "the server evicts the name, and with it the counter or not", on.plain(evicted)),
    ]
}

pub(crate) const EMPTIED: Fault = Fault::once("the server was killed and is back empty", |redis| redis.server.restart_empty());

pub(crate) const FLUSHED: Fault = Fault::once("FLUSHALL", |redis| drop(redis.server.cli("FLUSHALL")));

pub(crate) const DELETED: Fault = Fault::once("DEL", |redis| drop(redis.server.command(&["DEL", &redis.key(DOOR)])));

pub(crate) const OVERWRITTEN: Fault = Fault::once("SET other PX 100", |redis| {
    // Where the lock is a hash, as a client has it that shares those: another type of key is no lock there, and is refused.
    const WRITES: &str = "if redis.call('TYPE', KEYS[1]).ok == 'hash' then
        redis.call('DEL', KEYS[1])
        redis.call('HSET', KEYS[1], 'other', '1')
        return redis.call('PEXPIRE', KEYS[1], '100')
    end
    return redis.call('SET', KEYS[1], 'other', 'PX', '100')";
    redis.server.command(&["EVAL", WRITES, "1", &redis.key(DOOR)]);
});

fn killed_and_empty(stage: &mut Stage<'_>, redis: &Redis) {
    stage.is_taken_away(Heir::Comes, EMPTIED.what, || (EMPTIED.begin)(redis));
}

fn older_copy(stage: &mut Stage<'_>, redis: &Redis) {
    let other = stage.far();
    stage.warms_up(&other);
    let copy = redis.server.snapshot();
    stage.is_taken_away(Heir::Waits, "the server is back with data from before the grant", || redis.server.restart_with(&copy));
}

/// Clients reach the new primary where the old one was.
fn replica_promoted(stage: &mut Stage<'_>, redis: &Redis) {
    let replica = RedisServer::replica_of(&redis.server);
    let switch = Switch::start(redis.server.addr());
    let url = redis.scheme.url(&switch.url());
    let (a, b) = (stage.actor(&url), stage.actor(&url));
    tenure_testkit::signal(replica.pid(), Signal::Stop).expect("the replica runs");
    // Else its kernel has the writes, and it reads them when it goes on.
    redis.server.cli("CLIENT KILL TYPE replica");
    let first = a.takes(DOOR);
    first.works(&stage.register);
    let second = b.asks(DOOR, terms());
    stage.some_time();
    let since = now();
    redis.server.kill();
    stage.fault("the primary is killed");
    replica.cont();
    replica.promote();
    switch.to(replica.addr());
    stage.fault("its replica, which has not the grant, takes over");
    stage.loss_due_since(since, RENEWAL);
    stage.grant_due_since(since, SOON + OPERATION);
    let granted = second.granted();
    second.works(&stage.register);
    stage.is_stale(&first, granted);
    first.lost();
    second.renewed(now());
    stage.expect(&second.releases(), "Released");
    wait_until(SLACK, "the name to be free", || replica.command(&["EXISTS", &redis.key(DOOR)]) == 0);
}

fn evicted(stage: &mut Stage<'_>, redis: &Redis) {
    let evicted = EVICTED[stage.rng.usize(0..3)];
    let heir = [Heir::Waits, Heir::Comes][stage.rng.usize(0..2)];
    stage.is_taken_away(heir, evicted.what, || (evicted.begin)(redis));
}

pub(crate) const EVICTED: [Fault; 3] = [
    Fault::once("the name is evicted (volatile-ttl)", |redis| evict(redis, "volatile-ttl")),
    Fault::once("the name is evicted (allkeys-lru)", |redis| evict(redis, "allkeys-lru")),
    Fault::once("the name is evicted (allkeys-random)", |redis| evict(redis, "allkeys-random")),
];

fn evict(redis: &Redis, policy: &str) {
    let server = &redis.server;
    server.cli(&format!("CONFIG SET maxmemory-policy {policy}"));
    server.cli("CONFIG SET maxmemory 1");
    // It evicts before each command that may need memory, and refuses the command if that was not enough.
    let _ = server.command(&["SET", "filler", "x"]);
    assert!(!redis.has(DOOR), "it is still there");
    server.cli("CONFIG SET maxmemory 0");
}

fn flushed(stage: &mut Stage<'_>, redis: &Redis) {
    stage.is_taken_away(Heir::Comes, FLUSHED.what, || (FLUSHED.begin)(redis));
}

fn deleted(stage: &mut Stage<'_>, redis: &Redis) {
    stage.is_taken_away(Heir::Waits, DELETED.what, || (DELETED.begin)(redis));
}

fn overwritten(stage: &mut Stage<'_>, redis: &Redis) {
    stage.is_taken_away(Heir::Waits, OVERWRITTEN.what, || (OVERWRITTEN.begin)(redis));
}
