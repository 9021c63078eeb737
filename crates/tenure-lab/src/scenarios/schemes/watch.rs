//! `WATCH`, `GET`, `MULTI`, a write, `EXEC`: on one connection, and over a pool that gives another for each command.

use std::time::Duration;

use tenure_testkit::Client;

use super::article::{Article, Takes};
use super::beside::{OURS_IS_HELD, OURS_IS_LATE, lease_begins, our_release_is_held, ours_is_late, theirs_in_two_steps};
use crate::Item;
use crate::scenarios::fixtures::Redis;
use crate::scenarios::scheme::WATCH;
use crate::scenarios::stage::{DOOR, Heir, OPERATION, PATIENCE, POLL, SLACK, Stage, TTL, now, terms};

#[rustfmt::skip]
pub(super) fn items() -> Vec<Item> {
    let (on, of) = (WATCH, WATCH.rows());
    let one_connection = "the lease of the other side ends between its GET and its EXEC, on one connection";
    let pooled_release =
        "the lease of the other side ends between its GET and its EXEC, which gets another connection than its WATCH";
    let pooled_acquire = "the other side finds the name free, and its EXEC gets another connection than its WATCH";
    let ours = "the other side takes the name between our GET and our EXEC";
    vec![
        of.holds("A8-acquire", ours, on.plain(taken_meanwhile)),
        of.fenced("A8-their-pooled-acquire", pooled_acquire, on.plain(written_over)),
        of.spared("A8-late-release", OURS_IS_LATE, on.plain(|stage, redis| ours_is_late(stage, redis, IN_A_TRANSACTION))),
        of.holds("A8-release", OURS_IS_HELD, on.plain(|stage, redis| our_release_is_held(stage, redis, IN_A_TRANSACTION))),
        of.holds("A8-their-release", one_connection, on.plain(theirs_on_one_connection)),
        of.fenced("A8-their-pooled-release", pooled_release,
            on.plain(|stage, redis| theirs_in_two_steps(stage, redis, IN_A_TRANSACTION))),
    ]
}

/// For a second.
const IN_A_TRANSACTION: Takes = |article| {
    let mut link = article.connects();
    says(&mut link, "WATCH door");
    if !says(&mut link, "GET door").is_nil() {
        return false;
    }
    says(&mut link, "MULTI");
    says(&mut link, "SET door 10.0.0.1_17 PX 1000");
    !says(&mut link, "EXEC").is_nil()
};

fn says(to: &mut Client, line: &str) -> tenure_testkit::Reply {
    to.command(&line.split(' ').collect::<Vec<_>>()).expect("the server answers")
}

/// Our `EXEC` comes to nothing, however late it is.
fn taken_meanwhile(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, b, article) = (stage.near(), stage.far(), Article::beside(stage, redis));
    stage.warms_up(&a);
    // The writes come after what is sent at once to read.
    redis.proxy.hold_request(redis.scheme.takes + stage.rng.u64(1..=4), PATIENCE);
    let sent = redis.proxy.commands() + redis.scheme.takes + 1;
    stage.fault("a command of A is held that it sends when it has read that the door is free");
    let waits = a.asks(DOOR, terms());
    redis.proxy.wait_for_commands(sent, PATIENCE);
    article.takes(Duration::from_secs(1), IN_A_TRANSACTION);
    let value = redis.value(DOOR);
    redis.proxy.heal();
    stage.fault("it arrives");
    stage.a_moment();
    stage.expect(&redis.value(DOOR), &value);
    stage.holds_true(!waits.is_granted(), "both hold");
    stage.grant_due(TTL + POLL + OPERATION + SLACK);
    article.leaves("DEL door");
    waits.granted();
    stage.is_left(&waits);
    stage.ends_with_another(&b);
}

/// It looked when nobody held.
fn written_over(stage: &mut Stage<'_>, redis: &Redis) {
    let article = Article::beside(stage, redis);
    let mut watching = article.connects();
    says(&mut watching, "WATCH door");
    stage.holds_true(says(&mut watching, "GET door").is_nil(), "the door is taken");
    stage.fault("the other side has found the name free, and is stopped");
    stage.is_taken_away(Heir::Waits, "it sends MULTI, SET and EXEC on another connection", || {
        let mut other = article.connects();
        for line in ["MULTI", "SET door 10.0.0.1_17 PX 200", "EXEC"] {
            says(&mut other, line);
        }
    });
}

/// Its `EXEC` comes to nothing.
fn theirs_on_one_connection(stage: &mut Stage<'_>, redis: &Redis) {
    let a = stage.near();
    let article = lease_begins(stage, redis, IN_A_TRANSACTION);
    let mut link = article.connects();
    says(&mut link, "WATCH door");
    stage.expect(&says(&mut link, "GET door").text(), "10.0.0.1_17");
    stage.fault("the other side has found its own value, and is stopped");
    stage.grant_due(TTL + SLACK);
    let first = a.takes(DOOR);
    article.rests();
    stage.keeps = true;
    for line in ["MULTI", "DEL door"] {
        says(&mut link, line);
    }
    stage.holds_true(says(&mut link, "EXEC").is_nil(), "its EXEC deleted ours");
    stage.fault("it sends MULTI, DEL and EXEC");
    first.renewed(now());
    stage.is_left(&first);
}
