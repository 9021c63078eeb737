//! Passwords, permissions, and keys that are no locks.

use std::time::Duration;

use tenure_testkit::history::{Event, What};

use super::fault::{Fault, Row};
use crate::Item;
use crate::item::Run;
use crate::scenarios::fixtures::{Redis, on_redis};
use crate::scenarios::holds;
use crate::scenarios::scheme::NATIVE;
use crate::scenarios::stage::{BELIEF, DOOR, NEXT, OPENING, PATIENCE, SLACK, Stage, TTL, now, terms};

#[rustfmt::skip]
pub(super) fn items() -> Vec<Item> {
    vec![
        holds("redis/32-name-forbidden", "permission for one name is withdrawn while it is held",
            NATIVE.unprivileged(name_forbidden)),
        holds("redis/32-scripts-forbidden", "permission to run scripts is withdrawn while connected",
            NATIVE.unprivileged(scripts_forbidden)),
        holds("redis/32-scripts-forbidden-at-once", "permission to run scripts is withdrawn, a moment after a grant",
            NATIVE.unprivileged(scripts_forbidden_at_once)),
        holds("redis/32-transactions-forbidden", "permission for MULTI is withdrawn while connected",
            NATIVE.unprivileged(multi_forbidden)),
        holds("redis/33-foreign-key", "the name is a key of another type, and one that never expires", NATIVE.plain(foreign_key)),
        holds("redis/33-corrupt-counter", "somebody has written into the grant counter", NATIVE.plain(corrupt_counter)),
        holds("redis/34-password-changed", "the password is changed while connected", locked(password_changed)),
        holds("redis/34-not-let-in", "a wrong password, none, and TLS where there is none", locked(not_let_in)),
    ]
}

pub(crate) const NAME_FORBIDDEN: Fault = Fault {
    what: "A may no longer touch the door",
    begin: |redis| allow(redis, "resetkeys ~gate ~*:gate ~tenure:fence ~tenure:node ~tenure:node:ends"),
    end: |redis| allow(redis, "allkeys"),
};

pub(crate) const SCRIPTS_FORBIDDEN: Fault = Fault {
    what: "A may run no scripts",
    begin: |redis| allow(redis, "-eval -evalsha -fcall"),
    end: |redis| allow(redis, "+eval +evalsha +fcall"),
};

/// Gives the user `app` these rules.
fn allow(redis: &Redis, rules: &str) {
    redis.server.cli(&format!("ACL SETUSER app {rules}"));
}

/// On a server with a password.
fn locked(row: Row) -> impl Fn(&str) -> Run {
    on_redis(NATIVE, |how| how.password("old"), row)
}

/// That lease alone is lost, at its deadline; others of the same holder are kept.
fn name_forbidden(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, b) = (stage.actor(&redis.as_user("app:app")), stage.far());
    let (first, gate) = (a.takes(DOOR), a.takes("gate"));
    first.runs(&stage.register);
    let second = b.asks(DOOR, terms());
    stage.some_time();
    (NAME_FORBIDDEN.begin)(redis);
    let since = stage.fault(NAME_FORBIDDEN.what);
    stage.loss_due(BELIEF);
    stage.grant_due(NEXT);
    a.asks(DOOR, terms()).failed("Refused");
    first.lost();
    second.granted();
    gate.renewed(since);
    gate.renewed(now());
    stage.expect(&gate.releases(), "Released");
    stage.is_left(&second);
}

/// Nothing is granted, and what was taken on the way is free within its ttl.
fn command_forbidden(stage: &mut Stage<'_>, redis: &Redis, rules: &str) {
    let (a, b) = (stage.actor(&redis.as_user("app:app")), stage.far());
    stage.warms_up(&a);
    allow(redis, rules);
    stage.fault(format!("A is forbidden {rules}"));
    // A connection trusts the counter for a second, and needs no script so long.
    std::thread::sleep(Duration::from_millis(1_050));
    a.asks(DOOR, terms()).failed("Refused");
    stage.free_due(DOOR, TTL + SLACK);
    stage.ends_with_another(&b);
}

fn scripts_forbidden(stage: &mut Stage<'_>, redis: &Redis) {
    command_forbidden(stage, redis, "-eval -evalsha -fcall");
}

/// Within a second of the last grant, the next needs no script. It can be neither renewed nor released.
fn scripts_forbidden_at_once(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, b) = (stage.actor(&redis.as_user("app:app")), stage.far());
    stage.warms_up(&a);
    (SCRIPTS_FORBIDDEN.begin)(redis);
    stage.fault(SCRIPTS_FORBIDDEN.what);
    let first = a.takes(DOOR);
    first.runs(&stage.register);
    let second = b.asks(DOOR, terms());
    stage.loss_due(BELIEF);
    stage.grant_due(NEXT);
    first.lost();
    second.granted();
    second.works(&stage.register);
    stage.is_left(&second);
}

fn multi_forbidden(stage: &mut Stage<'_>, redis: &Redis) {
    command_forbidden(stage, redis, "-multi");
}

fn foreign_key(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, server) = (stage.near(), &redis.server);
    server.cli("HSET door field 1");
    stage.fault("the door is a hash");
    a.asks(DOOR, terms()).failed("Mismatch");
    server.cli("DEL door");
    server.cli("SET door theirs");
    stage.fault("the door is held by another client, for ever");
    let wait = Duration::from_millis(300);
    a.asks(DOOR, terms().wait(wait)).failed("TimedOut");
    let holder = |event: &Event| matches!(&event.what, What::Failed { text, .. } if text.contains("never ends by itself"));
    stage.recorder.wait(PATIENCE, "a word on who holds it for ever", holder);
    server.cli("DEL door");
    stage.fault("an operator has deleted it");
    stage.ends_with_another(&a);
}

fn corrupt_counter(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, b, server) = (stage.near(), stage.far(), &redis.server);
    let first = a.takes("gate");
    server.cli("SET tenure:fence nonsense");
    let since = stage.fault("the grant counter holds nonsense");
    b.asks(DOOR, terms()).failed("Refused");
    stage.free_due(DOOR, TTL + SLACK);
    first.renewed(since);
    server.cli("DEL tenure:fence");
    stage.fault("an operator has deleted it");
    stage.ends_with_another(&b);
    stage.expect(&first.releases(), "Released");
}

/// A connection that is let in stays; one that has to come again is not, and its lock is lost at its deadline.
fn password_changed(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, mut operator) = (stage.near(), redis.server.connect().expect("the server answers"));
    let mut run = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        operator.command(&words).expect("the server answers")
    };
    let first = a.takes(DOOR);
    first.runs(&stage.register);
    assert!(run("CONFIG SET requirepass new") == "OK");
    let since = stage.fault("the password is changed");
    first.renewed(since);
    stage.near().fails_to_open(&["Refused"]);
    let next = stage.actor(&redis.near().replace(":old@", ":new@"));
    let second = next.asks(DOOR, terms());
    run("CLIENT KILL TYPE normal SKIPME yes");
    stage.fault("connections are ended");
    stage.loss_due(BELIEF);
    stage.grant_due(NEXT);
    first.lost();
    second.granted();
    second.works(&stage.register);
    assert!(run("CONFIG SET requirepass old") == "OK");
    stage.is_left(&second);
}

/// A client that is not let in gets an error at once, without the secret.
fn not_let_in(stage: &mut Stage<'_>, redis: &Redis) {
    let wrong = redis.near().replace(":old@", ":hunter2@");
    let none = redis.near().replace(":old@", "");
    let tls = wrong.replace("redis://", "rediss://");
    // A server without TLS waits for the end of what it takes for a command.
    for (url, within, kind) in [(wrong, SLACK, "Refused"), (none, SLACK, "Refused"), (tls, OPENING, "Unreachable")] {
        let told = stage.turns_away(&url, within, kind);
        stage.holds_true(!told.contains("hunter2"), &told);
    }
    let a = stage.near();
    stage.grant_due(SLACK);
    stage.ends_with_another(&a);
}
