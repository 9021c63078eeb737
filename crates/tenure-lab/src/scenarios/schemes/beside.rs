//! Harm that one side does to the other when it is late, in every scheme.

use std::time::{Duration, Instant};

use tenure_testkit::wait_until;
use tenure_testkit::worker::{ByHand, Terms};

use super::article::{Article, Takes};
use crate::scenarios::fixtures::Redis;
use crate::scenarios::stage::{DOOR, Heir, PATIENCE, SLACK, Stage, now};

pub(super) const OURS_IS_LATE: &str =
    "our holder is stopped for longer than its lease, and gives up when the other side has taken the name";
pub(super) const THEIRS_IS_LATE: &str = "the other side works for longer than its lease, and then deletes ours without comparing";
pub(super) const OURS_IS_HELD: &str = "our release is on its way while the lease ends and the other side takes the name";
pub(super) const THEIRS_IN_TWO_STEPS: &str = "the lease of the other side ends between its GET and its DEL";

/// For how long an article takes its lock.
pub(super) const LEASE: Duration = Duration::from_secs(1);

/// Our holder comes back when the other side holds. It is notified of its loss, and neither its release nor its token ends or
/// prolongs a lease that is not its own.
pub(super) fn ours_is_late(stage: &mut Stage<'_>, redis: &Redis, takes: Takes) {
    let (a, b, article) = (stage.near(), stage.far(), Article::beside(stage, redis));
    stage.warms_up(&b);
    let first = a.takes(DOOR);
    let token = first.token();
    stage.some_time();
    a.stop();
    stage.fault("A is stopped");
    article.take_due(stage, stage.next());
    article.takes(LEASE, takes);
    let (left, since, value) = (redis.left(DOOR), Instant::now(), redis.value(DOOR));
    a.go_on();
    let on = stage.fault("A goes on");
    stage.told_since(&first, on);
    stage.expect(&b.by_hand(ByHand::Renew, DOOR, &token), "Lost");
    stage.expect(&first.releases(), "WasLost");
    stage.expect(&b.by_hand(ByHand::Release, DOOR, &token), "WasLost");
    stage.expect(&redis.value(DOOR), &value);
    let (passed, now_left) = (since.elapsed(), redis.left(DOOR));
    let most = left.saturating_sub(passed) + Duration::from_millis(10);
    stage.holds_true(now_left <= most, &format!("{left:?} and {passed:?} later {now_left:?} were left"));
    article.leaves("DEL KEY");
    stage.free_due(DOOR, SLACK);
    stage.ends_with_another(&b);
}

/// Our release compares and deletes in one step, however late it comes.
pub(super) fn our_release_is_held(stage: &mut Stage<'_>, redis: &Redis, takes: Takes) {
    let (a, b, article) = (stage.near(), stage.far(), Article::beside(stage, redis));
    // For as long as the store keeps it, so that its release is tried until then.
    let first = a.asks(DOOR, Terms::new(stage.kept()));
    first.granted();
    first.renewed(now());
    redis.proxy.hold_requests();
    stage.fault("what A sends is held");
    stage.grant_due(stage.next());
    stage.expect(&first.releases(), "Unknown");
    article.takes(LEASE, takes);
    let (before, value) = (redis.own_calls(), redis.value(DOOR));
    redis.proxy.heal();
    stage.fault("it arrives");
    wait_until(PATIENCE, "a release of A to arrive", || redis.own_calls() > before);
    a.settles();
    stage.expect(&redis.value(DOOR), &value);
    article.leaves("DEL KEY");
    stage.free_due(DOOR, SLACK);
    stage.ends_with_another(&b);
}

/// The lease of the other side ends before it gives up: nothing tells its lock from ours. Our holder is notified of its loss at
/// the next renewal.
pub(super) fn theirs_is_late(stage: &mut Stage<'_>, redis: &Redis, takes: Takes, gives_up: &str) {
    let article = lease_ends(stage, redis, takes);
    stage.is_taken_away(Heir::Waits, &format!("the other side sends {gives_up}"), || drop(article.says(gives_up)));
}

/// It has looked at its own value, and deletes ours.
pub(super) fn theirs_in_two_steps(stage: &mut Stage<'_>, redis: &Redis, takes: Takes) {
    let article = lease_begins(stage, redis, takes);
    stage.expect(&article.says("GET KEY").text(), &redis.value(DOOR));
    stage.fault("the other side has found its own value, and is stopped");
    is_over(stage, &article);
    stage.is_taken_away(Heir::Waits, "it sends DEL", || drop(article.says("DEL KEY")));
}

/// It prolongs what it holds no more: that ends sooner than ours would be renewed.
pub(super) fn theirs_cuts_short(stage: &mut Stage<'_>, redis: &Redis, takes: Takes, prolongs: &str) {
    const LONG: Duration = Duration::from_secs(6);
    let article = lease_ends(stage, redis, takes);
    let (a, b) = (stage.near(), stage.far());
    let first = a.asks(DOOR, Terms::new(LONG));
    first.granted();
    let second = b.asks(DOOR, Terms::new(LONG));
    first.renewed(now());
    let since = stage.fault(format!("the other side sends {prolongs}"));
    stage.loss_due_since(since, LONG / 3 + 2 * SLACK);
    article.says(prolongs);
    second.granted();
    first.lost();
    second.renewed(now());
    stage.is_left(&second);
}

/// The other side holds, and is stopped until its lease has ended.
fn lease_ends<'a>(stage: &Stage<'_>, redis: &'a Redis, takes: Takes) -> Article<'a> {
    let article = lease_begins(stage, redis, takes);
    stage.fault("the other side is stopped");
    is_over(stage, &article);
    article
}

/// The other side holds.
pub(super) fn lease_begins<'a>(stage: &Stage<'_>, redis: &'a Redis, takes: Takes) -> Article<'a> {
    let article = Article::beside(stage, redis);
    article.takes(LEASE, takes);
    article
}

/// Its lease ends, and it has still to give up.
fn is_over(stage: &Stage<'_>, article: &Article<'_>) {
    stage.free_due(DOOR, LEASE + SLACK);
    article.rests();
}
