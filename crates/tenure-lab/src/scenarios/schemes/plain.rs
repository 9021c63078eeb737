//! An owner at a key: `SETNX` and `EXPIRE`, and `SET NX PX`.

use std::time::Duration;

use tenure_testkit::history::{Event, Rule, What};
use tenure_testkit::worker::Terms;

use super::article::{Article, Takes};
use super::beside::{OURS_IS_HELD, OURS_IS_LATE, THEIRS_IN_TWO_STEPS, THEIRS_IS_LATE};
use super::beside::{our_release_is_held, ours_is_late, theirs_cuts_short, theirs_in_two_steps, theirs_is_late};
use crate::Item;
use crate::scenarios::fixtures::Redis;
use crate::scenarios::scheme::{SET_NX, SETNX_EXPIRE, SETNX_EXPIRE_LUA};
use crate::scenarios::stage::{DOOR, OPERATION, PATIENCE, POLL, SLACK, Stage, TTL, now, terms};

pub(super) fn items() -> Vec<Item> {
    [setnx_expire(), setnx_expire_lua(), set_nx()].concat()
}

#[rustfmt::skip]
fn setnx_expire() -> Vec<Item> {
    let (on, of) = (SETNX_EXPIRE, SETNX_EXPIRE.rows());
    let no_ttl = "the other side is killed between SETNX and EXPIRE: its key has no TTL, and our client reports that";
    vec![
        of.holds("A1-crash", no_ttl, on.plain(orphaned)),
        of.holds("A1-rounded-ttl", "ttls that are no whole seconds", on.plain(rounded)),
        of.spared("A1-late-release", OURS_IS_LATE, on.plain(|stage, redis| ours_is_late(stage, redis, SETNX_THEN_EXPIRE))),
        of.fenced("A1-their-late-release", THEIRS_IS_LATE,
            on.plain(|stage, redis| theirs_is_late(stage, redis, SETNX_THEN_EXPIRE, "DEL KEY"))),
    ]
}

#[rustfmt::skip]
fn setnx_expire_lua() -> Vec<Item> {
    let (on, of) = (SETNX_EXPIRE_LUA, SETNX_EXPIRE_LUA.rows());
    vec![
        of.spared("A2-late-release", OURS_IS_LATE, on.plain(|stage, redis| ours_is_late(stage, redis, IN_A_SCRIPT))),
        of.fenced("A2-their-late-release", THEIRS_IS_LATE,
            on.plain(|stage, redis| theirs_is_late(stage, redis, IN_A_SCRIPT, "DEL KEY"))),
    ]
}

#[rustfmt::skip]
fn set_nx() -> Vec<Item> {
    let (on, of) = (SET_NX, SET_NX.rows());
    let late_renewal = "our holder is stopped for longer than its lease, and renews when the other side has taken the name";
    let blind_expire = "the other side, which holds no more, sends an EXPIRE that compares nothing, and ends ours early";
    let set_xx = "the other side, which holds no more, writes ours over by SET XX";
    vec![
        of.spared("A5-late-release", OURS_IS_LATE, on.plain(|stage, redis| ours_is_late(stage, redis, FIXED))),
        of.fenced("A5-their-late-release", THEIRS_IS_LATE,
            on.plain(|stage, redis| theirs_is_late(stage, redis, FIXED, "DEL KEY"))),
        of.holds("A6-two-step-release", OURS_IS_HELD, on.plain(|stage, redis| our_release_is_held(stage, redis, TOKEN))),
        of.fenced("A6-their-two-step-release", THEIRS_IN_TWO_STEPS,
            on.plain(|stage, redis| theirs_in_two_steps(stage, redis, TOKEN))),
        of.spared("A7-late-renewal", late_renewal, on.plain(|stage, redis| ours_is_late(stage, redis, TOKEN))),
        of.broken("A7-their-blind-expire", blind_expire, Rule::Overlap,
            on.plain(|stage, redis| theirs_cuts_short(stage, redis, TOKEN, "EXPIRE KEY 1"))),
        of.fenced("A7-their-set-xx", set_xx,
            on.plain(|stage, redis| theirs_is_late(stage, redis, TOKEN, "SET KEY 10.0.0.1_17 PX 100 XX"))),
    ]
}

const SETNX_THEN_EXPIRE: Takes = |article| article.says("SETNX KEY 1") == 1 && article.says("EXPIRE KEY 1") == 1;
const IN_A_SCRIPT: Takes = |article| {
    let script = "if redis.call('setnx', KEYS[1], 1) == 1 then redis.call('expire', KEYS[1], ARGV[1]) return 1 else return 0 end";
    article.runs(script, &["1"]) == 1
};
const FIXED: Takes = |article| article.says("SET KEY true EX 1 NX") == "OK";
const TOKEN: Takes = |article| article.says("SET KEY 10.0.0.1_17 PX 1000 NX") == "OK";

/// Our waiter does not take the lock over, and reports that it never ends.
fn orphaned(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, article) = (stage.near(), Article::beside(stage, redis));
    assert!(article.says("SETNX KEY 1") == 1, "the door is free");
    stage.fault("the other side is killed before it sends EXPIRE");
    let wait = Duration::from_millis(stage.rng.u64(200..600));
    a.asks(DOOR, terms().wait(wait)).failed("TimedOut");
    let told = |event: &Event| matches!(&event.what, What::Failed { text, .. } if text.contains("never ends by itself"));
    stage.recorder.wait(PATIENCE, "a word on what never ends", told);
    let waits = a.asks(DOOR, terms());
    stage.a_moment();
    stage.expect(&article.says("GET KEY").text(), "1");
    stage.fault("an operator who knows that it is dead deletes it");
    stage.grant_due(POLL + OPERATION + SLACK);
    article.says("DEL KEY");
    waits.granted();
    stage.is_left(&waits);
}

/// A ttl that rounds to nothing is refused before it is sent, and one that is no whole number is rounded up.
fn rounded(stage: &mut Stage<'_>, redis: &Redis) {
    let a = stage.near();
    let short = Duration::from_millis(stage.rng.u64(100..1_000));
    stage.fault(format!("it is asked for {short:?}"));
    a.asks(DOOR, Terms::new(short)).failed("Invalid");
    stage.holds_true(!redis.has(DOOR), "it was asked for");
    let more = Duration::from_millis(stage.rng.u64(1_100..2_000));
    stage.fault(format!("it is asked for {more:?}"));
    let asked = now();
    let acquisition = a.asks(DOOR, Terms::new(more).fixed());
    acquisition.granted();
    let left = redis.left(DOOR);
    let was_given = left + Duration::from_nanos(now() - asked) + Duration::from_millis(2) >= TTL;
    stage.holds_true(was_given && left <= TTL, &format!("{left:?} are left"));
    stage.is_left(&acquisition);
}
