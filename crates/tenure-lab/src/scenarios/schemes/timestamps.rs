//! A point in time at a key: PHP's class, which adopts what has no expiry, and `GETSET`.

use std::time::Duration;

use tenure_testkit::history::{At, Rule};
use tenure_testkit::{Reply, ShiftedClock};

use super::article::{Article, Takes};
use super::beside::{LEASE, OURS_IS_HELD, OURS_IS_LATE, THEIRS_IN_TWO_STEPS, THEIRS_IS_LATE};
use super::beside::{our_release_is_held, ours_is_late, theirs_cuts_short, theirs_in_two_steps, theirs_is_late};
use crate::Item;
use crate::scenarios::actor::Claim;
use crate::scenarios::fixtures::Redis;
use crate::scenarios::scheme::{GETSET, PHP};
use crate::scenarios::stage::{DOOR, Heir, OPERATION, POLL, RENEWAL, SLACK, Stage, now, terms, wall_clock};

pub(super) fn items() -> Vec<Item> {
    [php(), getset()].concat()
}

const OWNER_DELETED: &str = "what stands beside the key is deleted, and the key is not";

#[rustfmt::skip]
fn php() -> Vec<Item> {
    let (on, of) = (PHP, PHP.rows());
    let living = "the other side takes its time between SETNX and EXPIRE, and ours wait";
    let dead = "the other side is killed between SETNX and EXPIRE, and several of ours wait";
    let late = "the other side is stopped between SETNX and EXPIRE until ours has taken it for dead, and goes on";
    let overwrites = "the other side finds the name gone, and writes without condition when ours has taken it";
    let equal = "the other side has the value of ours, as one that began to wait at the same moment would, and gives up";
    let prolongs = "the lease of the other side ends between its GET and its EXPIRE, which ends ours early";
    vec![
        of.holds("A3-adopts-from-the-living", living, on.plain(not_adopted)),
        of.holds("A3-two-adopt", dead, on.plain(adopted_once)),
        of.broken("A3-their-late-expire", late, Rule::Overlap, on.plain(adopted_too_soon)),
        of.holds("55-owner-deleted", OWNER_DELETED, on.plain(owner_deleted)),
        of.fenced("A3-their-overwriting", overwrites, on.plain(overwritten)),
        of.fenced("A3-their-equal-value", equal, on.plain(by_equal_value)),
        of.spared("A3-late-release", OURS_IS_LATE, on.plain(|stage, redis| ours_is_late(stage, redis, CLASS))),
        of.holds("A3-two-step-release", OURS_IS_HELD, on.plain(|stage, redis| our_release_is_held(stage, redis, CLASS))),
        of.fenced("A3-their-two-step-release", THEIRS_IN_TWO_STEPS,
            on.plain(|stage, redis| theirs_in_two_steps(stage, redis, CLASS))),
        of.broken("A3-their-two-step-renewal", prolongs, Rule::Overlap,
            on.plain(|stage, redis| theirs_cuts_short(stage, redis, CLASS, "EXPIRE KEY 1"))),
    ]
}

#[rustfmt::skip]
fn getset() -> Vec<Item> {
    let (on, of) = (GETSET, GETSET.rows());
    let ours_off = "the clocks of our hosts are a minute ahead and a minute behind";
    let fast = "the other side's clock is a minute ahead, so it takes what is ours";
    let slow = "the other side's clock is a minute behind, so what it holds looks ended";
    let expired = "several of ours find it ended at once";
    let loser = "the other side found it ended too, and writes over the value of ours, which won";
    let nothing = "released between GET and GETSET of the other side, which gives up and leaves a lock that nobody holds";
    let forgetful = "the other side won by SETNX, and never deletes";
    let deletes = "the other side found it ended, and deletes ours, which won, to take it by SETNX";
    let equal = "the other side has the value of ours, as one that asked in the same millisecond would, and gives up";
    vec![
        of.holds("55-owner-deleted", OWNER_DELETED, on.plain(owner_deleted)),
        of.holds("A4-clocks-off", ours_off, on.plain(clocks_off)),
        of.fenced("A4-their-fast-host", fast, on.plain(taken_by_getset)),
        of.broken("A4-their-slow-host", slow, Rule::Overlap, on.plain(slow_host)),
        of.holds("A4-losers-overwrite", expired, on.plain(one_of_many)),
        of.fenced("A4-their-losers-overwrite", loser, on.plain(taken_by_getset)),
        of.holds("A4-their-getset-finds-nothing", nothing, on.plain(|stage, redis| left_behind(stage, redis, "GETSET"))),
        of.holds("A4-their-forgetting", forgetful, on.plain(|stage, redis| left_behind(stage, redis, "SETNX"))),
        of.fenced("A4-their-equal-milliseconds", equal, on.plain(by_equal_value)),
        of.spared("A4-late-release", OURS_IS_LATE, on.plain(|stage, redis| ours_is_late(stage, redis, BY_GETSET))),
        of.fenced("A4-their-late-release", THEIRS_IS_LATE,
            on.plain(|stage, redis| theirs_is_late(stage, redis, BY_GETSET, "DEL KEY"))),
        of.holds("A4-two-step-release", OURS_IS_HELD, on.plain(|stage, redis| our_release_is_held(stage, redis, BY_GETSET))),
        of.fenced("A4-their-two-step-release", THEIRS_IN_TWO_STEPS,
            on.plain(|stage, redis| theirs_in_two_steps(stage, redis, BY_GETSET))),
        of.fenced("A4d-their-del-setnx", deletes, on.plain(deleted_and_taken)),
    ]
}

/// The class, which takes a lock for a second here.
const CLASS: Takes = |article| {
    let value = in_seconds(LEASE);
    article.says(&format!("SETNX KEY {value}")) == 1 && article.says("EXPIRE KEY 1") == 1
};

const BY_GETSET: Takes = |article| {
    let value = wall_clock() + millis(LEASE);
    if article.says(&format!("SETNX KEY {value}")) == 1 {
        return true;
    }
    let found = article.says("GET KEY");
    let is_past = !found.is_nil() && found.text().parse::<i64>().is_ok_and(|end| end < wall_clock());
    is_past && article.says(&format!("GETSET KEY {value}")) == found
};

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).expect("a short span")
}

/// A time from now as PHP prints it.
fn in_seconds(from_now: Duration) -> String {
    let at = wall_clock() + millis(from_now);
    format!("{}.{:03}", at / 1_000, at % 1_000).trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Its ttl comes in the end, and it has held all the while.
fn not_adopted(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, b, article) = (stage.near(), stage.far(), Article::beside(stage, redis));
    stage.keeps = true;
    article.takes(3 * LEASE, |article| article.says(&format!("SETNX KEY {}", in_seconds(LEASE / 2))) == 1);
    stage.fault("the other side is stopped before it sends EXPIRE");
    let waiting = [a.asks(DOOR, terms()), b.asks(DOOR, terms())];
    let span = Duration::from_millis(stage.rng.u64(500..2_500));
    std::thread::sleep(span);
    stage.holds_true(article.says("EXPIRE KEY 15") == 1, "the lock of the other side is gone");
    stage.fault("it sends EXPIRE");
    stage.grant_due(SLACK + POLL + OPERATION);
    article.leaves("DEL KEY");
    stage.serves_all(waiting.to_vec(), SLACK);
}

/// For how long ours looks at a lock without expiry before it takes the other side for dead.
const SEEN: Duration = Duration::from_secs(5);

/// The other side regards itself as the holder, and gives the key that is ours its own ttl.
fn adopted_too_soon(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, article) = (stage.near(), Article::beside(stage, redis));
    article.takes(3 * SEEN, |article| article.says(&format!("SETNX KEY {}", in_seconds(LEASE))) == 1);
    stage.fault("the other side is stopped before it sends EXPIRE");
    stage.grant_due(SEEN + POLL + OPERATION + SLACK);
    let since = now();
    let first = a.takes(DOOR);
    is_patient(stage, std::slice::from_ref(&first), since, SEEN);
    stage.holds_true(article.says("EXPIRE KEY 15") == 1, "the key is gone");
    stage.fault("it goes on, and sends EXPIRE");
    first.renewed(now());
    stage.is_left(&first);
}

/// Nobody can tell any more whose it is: ours counts it as lost, and it ends by itself.
fn owner_deleted(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, b) = (stage.near(), stage.far());
    let first = a.takes(DOOR);
    let second = b.asks(DOOR, terms());
    stage.some_time();
    let (key, since) = (redis.key(DOOR), now());
    let Reply::Array(keys) = redis.server.command(&["KEYS", "*"]) else { panic!("the server tells no keys") };
    for beside in keys.iter().map(Reply::text).filter(|other| *other != key) {
        redis.server.command(&["DEL", &beside]);
    }
    stage.fault("what stands beside the key is deleted");
    stage.loss_due_since(since, RENEWAL);
    stage.grant_due_since(since, stage.next());
    first.lost();
    second.granted();
    stage.is_left(&second);
}

/// One of them takes it, when it was seen without expiry for five seconds and was to end; the others after it.
fn adopted_once(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, b, article) = (stage.near(), stage.far(), Article::beside(stage, redis));
    stage.keeps = true;
    let ends = Duration::from_millis(stage.rng.u64(1_000..6_000));
    assert!(article.says(&format!("SETNX KEY {}", in_seconds(ends))) == 1, "the door is free");
    stage.fault(format!("the other side is killed before it sends EXPIRE; its lease was to end in {ends:?}"));
    stage.grant_due(SEEN.max(ends) + POLL + OPERATION + SLACK);
    let since = now();
    let waiting: Vec<_> = (0..3).flat_map(|_| [a.asks(DOOR, terms()), b.asks(DOOR, terms())]).collect();
    stage.serves_all(waiting.clone(), SLACK);
    is_patient(stage, &waiting, since, SEEN.max(ends));
}

/// None of those who are granted, now or before, was granted sooner than that.
fn is_patient(stage: &Stage<'_>, claims: &[Claim], since: At, least: Duration) {
    let first = claims.iter().map(Claim::granted).min().expect("somebody asked");
    let took = Duration::from_nanos(first - since);
    stage.holds_true(took + Duration::from_millis(20) >= least, &format!("taken over after {took:?}"));
}

/// It holds by its own value from then on.
fn overwritten(stage: &mut Stage<'_>, redis: &Redis) {
    let article = Article::beside(stage, redis);
    stage.holds_true(article.says("TTL KEY") == -2, "the name is not gone");
    stage.fault("the other side has found the name gone, and is stopped");
    let writes = format!("SET KEY {} PX 200", in_seconds(LEASE));
    stage.is_taken_away(Heir::Waits, "it sends SET", || drop(article.says(&writes)));
}

/// `GET` finds what it takes for its own, and `DEL` frees ours.
fn by_equal_value(stage: &mut Stage<'_>, redis: &Redis) {
    let article = Article::beside(stage, redis);
    stage.is_taken_away(Heir::Waits, "the other side finds its own value, and sends DEL", || {
        assert!(redis.has(DOOR), "ours holds");
        article.says("DEL KEY");
    });
}

/// Both get an error that says so, and nobody is granted a lease that others would take for one that has ended or never ends.
fn clocks_off(stage: &mut Stage<'_>, redis: &Redis) {
    let [fast, slow] = [ShiftedClock::new(), ShiftedClock::new()];
    let (a, b) = (stage.near_with(|command| fast.apply(command)), stage.near_with(|command| slow.apply(command)));
    let c = stage.far();
    fast.shift(60_000);
    slow.shift(-60_000);
    stage.fault("A's clock is a minute ahead, and B's a minute behind");
    for (late, server) in [(&a, "s behind this host"), (&b, "s ahead of this host")] {
        let told = late.asks(DOOR, terms()).failed("Refused");
        stage.holds_true(told.contains("clock") && told.contains(server), &told);
    }
    stage.holds_true(!redis.has(DOOR), "the name was taken");
    stage.keeps = true;
    let first = c.takes(DOOR);
    first.renewed(now());
    a.asks(DOOR, terms().wait(Duration::from_millis(300))).failed("TimedOut");
    b.asks(DOOR, terms().wait(Duration::from_millis(300))).failed("TimedOut");
    first.renewed(now());
    stage.is_left(&first);
}

/// Sends what the other side sends if it found the lease ended, by its own clock or before ours took the name.
fn taken_by_getset(stage: &mut Stage<'_>, redis: &Redis) {
    let article = Article::beside(stage, redis);
    stage.is_taken_away(Heir::Waits, "the other side sends GETSET", || {
        article.says(&format!("GETSET KEY {}", wall_clock() + 200));
    });
}

/// The other side goes on as the holder: the time that it wrote lies in the past for everybody else.
fn slow_host(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, article) = (stage.near(), Article::beside(stage, redis));
    article.takes(3 * LEASE, |article| article.says(&format!("SETNX KEY {}", wall_clock() - 60_000 + 3 * millis(LEASE))) == 1);
    stage.fault("the other side, whose clock is a minute behind, holds");
    let first = a.takes(DOOR);
    first.renewed(now());
    stage.is_left(&first);
}

/// One of them has it, by a value that no other has written over.
fn one_of_many(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, b, c, article) = (stage.near(), stage.near(), stage.far(), Article::beside(stage, redis));
    stage.keeps = true;
    article.says(&format!("SET KEY {}", wall_clock() - 1_000));
    stage.fault("somebody was killed whose lease has ended");
    stage.grant_due(OPERATION + SLACK);
    let waiting = [&a, &b, &c].map(|actor| actor.asks(DOOR, terms()));
    stage.taken(DOOR);
    stage.serves_all(waiting.to_vec(), SLACK);
}

/// Nobody holds it, and it ends when its value says so.
fn left_behind(stage: &mut Stage<'_>, redis: &Redis, command: &str) {
    let (a, b, article) = (stage.near(), stage.far(), Article::beside(stage, redis));
    article.says(&format!("{command} KEY {}", wall_clock() + millis(LEASE)));
    stage.fault(format!("the other side leaves what it wrote by {command}"));
    stage.grant_due(LEASE + POLL + OPERATION + SLACK);
    let waiting = [a.asks(DOOR, terms()), b.asks(DOOR, terms())];
    stage.serves_all(waiting.to_vec(), SLACK);
}

fn deleted_and_taken(stage: &mut Stage<'_>, redis: &Redis) {
    let article = Article::beside(stage, redis);
    stage.is_taken_away(Heir::Waits, "the other side sends DEL and SETNX", || {
        article.says("DEL KEY");
        article.says(&format!("SETNX KEY {}", wall_clock() + 200));
    });
}
