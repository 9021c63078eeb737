//! An owner at a key: `SETNX` and `EXPIRE`, and `SET NX PX`.

use std::time::Duration;

use tenure_testkit::Reply;
use tenure_testkit::history::{Event, Rule, What};
use tenure_testkit::worker::ByHand;

use super::article::Article;
use crate::Item;
use crate::scenarios::dialect::{SET_NX, SETNX_EXPIRE, SETNX_EXPIRE_LUA};
use crate::scenarios::rigs::Redis;
use crate::scenarios::stage::{DOOR, Heir, NEXT, OPERATION, PATIENCE, POLL, RENEWAL, SLACK, Stage, TTL, now, terms};

pub(super) fn items() -> Vec<Item> {
    [setnx_expire(), setnx_expire_lua(), set_nx()].concat()
}

const OURS_IS_LATE: &str = "our holder is stopped for longer than its lease, and gives up when the other side has taken the name";
const THEIRS_IS_LATE: &str = "the other side works for longer than its lease, and then deletes ours without comparing";

fn setnx_expire() -> Vec<Item> {
    let (on, of) = (SETNX_EXPIRE, SETNX_EXPIRE.rows());
    vec![
        of.holds(
            "A1-crash",
            "the other side is killed between SETNX and EXPIRE: its lock never ends, and is told",
            on.plain(orphaned),
        ),
        of.holds("A1-rounded-ttl", "ttls that are no whole seconds", on.plain(rounded)),
        of.spared("A1-late-release", OURS_IS_LATE, on.plain(|stage, redis| late(stage, redis, SETNX_THEN_EXPIRE))),
        of.fenced("A1-their-late-release", THEIRS_IS_LATE, on.plain(|stage, redis| theirs_late(stage, redis, SETNX_THEN_EXPIRE))),
    ]
}

fn setnx_expire_lua() -> Vec<Item> {
    let (on, of) = (SETNX_EXPIRE_LUA, SETNX_EXPIRE_LUA.rows());
    vec![
        of.spared("A2-late-release", OURS_IS_LATE, on.plain(|stage, redis| late(stage, redis, IN_A_SCRIPT))),
        of.fenced("A2-their-late-release", THEIRS_IS_LATE, on.plain(|stage, redis| theirs_late(stage, redis, IN_A_SCRIPT))),
    ]
}

fn set_nx() -> Vec<Item> {
    let (on, of) = (SET_NX, SET_NX.rows());
    vec![
        of.spared("A5-late-release", OURS_IS_LATE, on.plain(|stage, redis| late(stage, redis, FIXED))),
        of.fenced("A5-their-late-release", THEIRS_IS_LATE, on.plain(|stage, redis| theirs_late(stage, redis, FIXED))),
        of.holds(
            "A6-two-step-release",
            "our release is on its way while the lease ends and the other side takes the name",
            on.plain(release_is_held),
        ),
        of.fenced(
            "A6-their-two-step-release",
            "the lease of the other side ends between its GET and its DEL",
            on.plain(theirs_in_two_steps),
        ),
        of.spared(
            "A7-late-renewal",
            "our holder is stopped for longer than its lease, and renews when the other side has taken the name",
            on.plain(renewal_is_late),
        ),
        of.broken(
            "A7-their-expire",
            "the other side, which holds no more, cuts our lease short by an EXPIRE that compares nothing",
            Rule::Overlap,
            on.plain(cut_short),
        ),
        of.fenced("A7-their-set-xx", "the other side, which holds no more, writes ours over by SET XX", on.plain(written_over)),
    ]
}

/// How an article takes its lock, for a second.
type Takes = fn(&Article<'_>) -> bool;

const LEASE: Duration = Duration::from_secs(1);

const SETNX_THEN_EXPIRE: Takes = |article| article.says("SETNX KEY 1") == 1 && article.says("EXPIRE KEY 1") == 1;
const IN_A_SCRIPT: Takes = |article| {
    let script = "if redis.call('setnx', KEYS[1], 1) == 1 then redis.call('expire', KEYS[1], ARGV[1]) return 1 else return 0 end";
    article.runs(script, &["1"]) == 1
};
const FIXED: Takes = |article| article.says("SET KEY true EX 1 NX") == "OK";
const TOKEN: Takes = |article| article.says("SET KEY 10.0.0.1_17 PX 1000 NX") == "OK";

/// Our holder comes back when the other side holds: it is told, and neither its release nor its token ends what is not its own.
fn late(stage: &mut Stage<'_>, redis: &Redis, takes: Takes) {
    let (a, b, article) = (stage.near(), stage.far(), Article::beside(stage, redis));
    let first = a.takes(DOOR);
    let token = first.token();
    stage.some_time();
    a.stop();
    stage.fault("A is stopped");
    stage.grant_due(NEXT);
    article.takes(LEASE, takes);
    a.go_on();
    let on = stage.fault("A goes on");
    stage.told_since(&first, on);
    stage.expect(&first.releases(), "WasLost");
    stage.expect(&b.by_hand(ByHand::Release, DOOR, &token), "NotHeld");
    stage.holds_true(redis.has(DOOR), "the lock of the other side was given up");
    article.leaves("DEL KEY");
    stage.free_due(DOOR, SLACK);
    stage.ends_with_another(&b);
}

/// Nothing tells its lock from ours; whoever it takes ours from is told at the next renewal.
fn theirs_late(stage: &mut Stage<'_>, redis: &Redis, takes: Takes) {
    let article = lease_ends(stage, redis, takes);
    stage.is_taken_away(Heir::Waits, "the other side sends DEL", || drop(article.says("DEL KEY")));
}

/// The other side holds, and is stopped until its lease has ended.
fn lease_ends<'a>(stage: &Stage<'_>, redis: &'a Redis, takes: Takes) -> Article<'a> {
    let article = Article::beside(stage, redis);
    article.takes(LEASE, takes);
    stage.fault("the other side is stopped");
    is_late(stage, &article);
    article
}

/// Its lease ends, and it has still to give up.
fn is_late(stage: &Stage<'_>, article: &Article<'_>) {
    stage.free_due(DOOR, LEASE + SLACK);
    article.rests();
}

/// It is not taken over, and whoever waits is told that it never ends.
fn orphaned(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, article) = (stage.near(), Article::beside(stage, redis));
    assert!(article.says("SETNX KEY 1") == 1, "the door is free");
    article.dies();
    stage.fault("the other side is killed before it sends EXPIRE");
    let wait = Duration::from_millis(stage.rng.u64(200..600));
    a.asks(DOOR, terms().wait(wait)).failed("TimedOut");
    let told = |event: &Event| matches!(&event.what, What::Failed { text, .. } if text.contains("never ends by itself"));
    stage.recorder.wait(PATIENCE, "a word on what never ends", told);
    let waits = a.asks(DOOR, terms());
    stage.a_moment();
    stage.holds_true(article.says("GET KEY") == Reply::Bytes(b"1".to_vec()), "the orphan was taken over");
    stage.fault("an operator who knows that it is dead deletes it");
    stage.grant_due(POLL + OPERATION + SLACK);
    article.says("DEL KEY");
    waits.granted();
    stage.is_left(&waits);
}

/// What rounds to nothing is refused before it is sent, and what is no whole number is rounded up.
fn rounded(stage: &mut Stage<'_>, redis: &Redis) {
    let a = stage.near();
    let short = Duration::from_millis(stage.rng.u64(100..1_000));
    stage.fault(format!("it is asked for {short:?}"));
    a.asks(DOOR, tenure_testkit::worker::Terms::new(short)).failed("Invalid");
    stage.holds_true(!redis.has(DOOR), "it was asked for");
    let more = TTL - Duration::from_millis(stage.rng.u64(1..900));
    stage.fault(format!("it is asked for {more:?}"));
    let claim = a.asks(DOOR, tenure_testkit::worker::Terms::new(more).fixed());
    claim.granted();
    let left = redis.left(DOOR);
    stage.holds_true(left > TTL - SLACK && left <= TTL, &format!("{left:?} are left"));
    stage.is_left(&claim);
}

/// What is compared and deleted is one step, however late.
fn release_is_held(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, b, article) = (stage.near(), stage.far(), Article::beside(stage, redis));
    let first = a.takes(DOOR);
    first.renewed(now());
    redis.proxy.hold_requests();
    stage.fault("what A sends is held");
    stage.grant_due(NEXT);
    stage.expect(&first.releases(), "Unknown");
    article.takes(Duration::from_secs(5), |article| article.says("SET KEY 10.0.0.1_17 PX 5000 NX") == "OK");
    let before = redis.script_calls();
    redis.proxy.heal();
    stage.fault("it arrives");
    a.settles();
    stage.holds_true(redis.script_calls() > before, "no release of A arrived");
    stage.holds_true(article.says("GET KEY") == Reply::Bytes(b"10.0.0.1_17".to_vec()), "the lock of the other side was given up");
    article.leaves("DEL KEY");
    stage.free_due(DOOR, SLACK);
    stage.ends_with_another(&b);
}

/// It looked at its own lock, and deletes ours.
fn theirs_in_two_steps(stage: &mut Stage<'_>, redis: &Redis) {
    let article = Article::beside(stage, redis);
    article.takes(LEASE, TOKEN);
    stage.holds_true(article.says("GET KEY") == Reply::Bytes(b"10.0.0.1_17".to_vec()), "it does not hold");
    stage.fault("the other side has found its own value, and is stopped");
    is_late(stage, &article);
    stage.is_taken_away(Heir::Waits, "the other side sends DEL", || drop(article.says("DEL KEY")));
}

/// It neither prolongs nor replaces what is not its own.
fn renewal_is_late(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, b, article) = (stage.near(), stage.far(), Article::beside(stage, redis));
    let first = a.takes(DOOR);
    let token = first.token();
    stage.some_time();
    a.stop();
    stage.fault("A is stopped");
    stage.grant_due(NEXT);
    article.takes(LEASE, TOKEN);
    let (left, since) = (redis.left(DOOR), std::time::Instant::now());
    a.go_on();
    let on = stage.fault("A goes on");
    stage.told_since(&first, on);
    stage.expect(&b.by_hand(ByHand::Renew, DOOR, &token), "Lost");
    let most = left.saturating_sub(since.elapsed()) + Duration::from_millis(2);
    let now_left = redis.left(DOOR);
    stage.holds_true(now_left <= left && now_left <= most + SLACK, &format!("{left:?} were left, and then {now_left:?}"));
    stage.holds_true(article.says("GET KEY") == Reply::Bytes(b"10.0.0.1_17".to_vec()), "it was written over");
    article.leaves("DEL KEY");
    stage.free_due(DOOR, SLACK);
    stage.ends_with_another(&b);
}

/// Our own renewal sets it right where it comes in time; here it does not.
fn cut_short(stage: &mut Stage<'_>, redis: &Redis) {
    let article = lease_ends(stage, redis, TOKEN);
    let (a, b) = (stage.near(), stage.far());
    let first = a.takes(DOOR);
    let second = b.asks(DOOR, terms());
    first.renewed(now());
    let since = stage.fault("the other side sends PEXPIRE KEY 1");
    stage.loss_due_since(since, RENEWAL);
    article.says("PEXPIRE KEY 1");
    second.granted();
    first.lost();
    second.renewed(now());
    stage.is_left(&second);
}

fn written_over(stage: &mut Stage<'_>, redis: &Redis) {
    let article = lease_ends(stage, redis, TOKEN);
    stage.is_taken_away(Heir::Waits, "the other side sends SET XX", || drop(article.says("SET KEY 10.0.0.1_17 PX 100 XX")));
}
