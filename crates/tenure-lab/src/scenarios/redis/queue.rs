//! Faults of the line of those who wait at a server.

use std::time::Duration;

use tenure_testkit::wait_until;
use tenure_testkit::worker::Terms;

use crate::Item;
use crate::item::Run;
use crate::scenarios::actor::{Actor, Claim};
use crate::scenarios::fixtures::{Redis, on_redis};
use crate::scenarios::scheme::NATIVE;
use crate::scenarios::stage::{DOOR, HEARTBEAT, OPERATION, RENEWAL, SLACK, SOON, Stage, TTL, now, terms};
use crate::scenarios::{fenced, holds};

#[rustfmt::skip]
pub(super) fn items() -> Vec<Item> {
    vec![
        holds("redis/52-deaf-head", "the first in line cannot reach the server when it is its turn", NATIVE.plain(head_deaf)),
        holds("redis/52-channels-forbidden", "a waiter may neither listen nor tell", as_app("resetchannels", deaf_waiter)),
        holds("redis/52-publish-forbidden", "the holder may tell waiters nothing", as_app("-publish -pubsub", dumb_holder)),
        holds("redis/52-publish-forbidden-alone", "the holder may ask who listens, and tell nothing",
            as_app("-publish", dumb_holder)),
        fenced("redis/53-newcomer", "the name is deleted while others wait, and a newcomer is the first to ask",
            NATIVE.plain(newcomer)),
        holds("redis/53-foreign-holder", "a client of another library takes turns with those in line",
            NATIVE.plain(foreign_holder)),
        holds("redis/54-out-of-memory", "the server runs out of memory while a line waits, not for long",
            NATIVE.plain(out_of_memory)),
        holds("redis/54-out-of-memory-for-long", "the server is out of memory for longer than a place lives",
            NATIVE.plain(out_of_memory_for_long)),
        holds("redis/54-scripts-flushed", "SCRIPT FLUSH before each hand-over, and no functions", NATIVE.plain(scripts_flushed)),
        holds("redis/54-functions-flushed", "FUNCTION FLUSH before each hand-over", NATIVE.plain(functions_flushed)),
        holds("redis/54-restarted", "the server is killed and comes back with the line", NATIVE.kept(restarted)),
        fenced("redis/54-restarted-empty", "the server is killed and comes back empty", NATIVE.plain(restarted_empty)),
        holds("redis/54-churn", "the connections of all who wait are ended again and again", NATIVE.plain(churned)),
    ]
}

/// From a release to the grant of one that hears nothing of it.
pub(super) const UNHEARD: Duration = Duration::from_millis(1_200 + 250 + 250);
/// From a release to the grant of one that gets the push, a connection's renewal included.
pub(super) const TOLD: Duration = Duration::from_millis(250 + 250);

/// On a server with a user that keeps these rules.
fn as_app(rules: &'static str, row: fn(&mut Stage<'_>, &Redis, &Actor)) -> impl Fn(&str) -> Run {
    let row = move |stage: &mut Stage<'_>, redis: &Redis| {
        redis.server.cli(&format!("ACL SETUSER app {rules}"));
        let app = stage.actor(&redis.as_user("app:app"));
        row(stage, redis, &app);
    };
    on_redis(NATIVE, |how| how.acl("user default on nopass ~* &* +@all\nuser app on >app ~* &* +@all\n"), row)
}

/// Nothing of it ends in the time of a row.
pub(super) fn long() -> Terms {
    Terms::new(Duration::from_secs(6))
}

/// One holds who is not in the way of the fault; then one waits who is, and then another who is not.
pub(super) struct Line {
    pub(super) held: Claim,
    pub(super) near: Actor,
    pub(super) first: Claim,
    pub(super) second: Claim,
}

pub(super) fn lined_up(stage: &mut Stage<'_>, terms: &Terms) -> Line {
    let (holder, near, far) = (stage.far(), stage.near(), stage.far());
    let held = holder.asks(DOOR, terms.clone());
    held.granted();
    let (first, second) = (stage.queues(&near, terms, 1), stage.queues(&far, terms, 2));
    Line { held, near, first, second }
}

/// It is passed over at once, and keeps its place for when it is back.
fn head_deaf(stage: &mut Stage<'_>, redis: &Redis) {
    let Line { held, first, second, .. } = lined_up(stage, &long());
    stage.keeps = true;
    redis.proxy.refuse();
    redis.proxy.cut();
    stage.fault("the first in line is cut off");
    std::thread::sleep(Duration::from_millis(20));
    let since = now();
    stage.expect(&held.releases(), "Released");
    stage.granted_since(&second, since, TOLD);
    redis.proxy.accept();
    stage.fault("it can reach the server again");
    std::thread::sleep(SLACK);
    second.renewed(now());
    stage.grant_due(UNHEARD + OPERATION);
    stage.expect(&second.releases(), "Released");
    first.granted();
    stage.is_left(&first);
}

/// It looks often instead, and is served in its turn.
fn deaf_waiter(stage: &mut Stage<'_>, redis: &Redis, app: &Actor) {
    let (a, c) = (stage.far(), stage.far());
    let held = a.takes(DOOR);
    let (first, second) = (stage.queues(app, &terms(), 1), stage.queues(&c, &terms(), 2));
    stage.keeps = true;
    assert!(redis.server.command(&["ACL", "LOG"]).text().contains("channel"), "it did not come to listen");
    stage.fault("the first in line may not listen");
    stage.a_moment();
    let since = now();
    stage.expect(&held.releases(), "Released");
    stage.granted_since(&first, since, TOLD);
    first.renewed(now());
    // Nor may it tell anybody.
    let since = now();
    stage.expect(&first.releases(), "Released");
    stage.granted_since(&second, since, UNHEARD);
    stage.is_left(&second);
}

/// It hands over without a word.
fn dumb_holder(stage: &mut Stage<'_>, redis: &Redis, app: &Actor) {
    let (b, c) = (stage.far(), stage.far());
    let held = app.takes(DOOR);
    let (first, second) = (stage.queues(&b, &terms(), 1), stage.queues(&c, &terms(), 2));
    stage.keeps = true;
    stage.fault("the holder may not publish");
    stage.a_moment();
    let since = now();
    stage.expect(&held.releases(), "Released");
    assert!(redis.server.command(&["ACL", "LOG"]).text().contains("publish"), "it did not come to publish");
    stage.granted_since(&first, since, UNHEARD);
    stage.holds_true(!second.is_granted(), "out of order");
    stage.hand_over(&first, &second);
    stage.is_left(&second);
}

/// The first client to ask gets the name that is free for the waiters, and hands it to the first of them.
fn newcomer(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, c) = (stage.near(), stage.far());
    stage.warms_up(&c);
    let held = a.takes(DOOR);
    held.works(&stage.register);
    held.renewed(now());
    let b = stage.far();
    let first = stage.queues(&b, &terms(), 1);
    // It will look in a second.
    let since = now();
    redis.server.cli("DEL door");
    stage.fault("the door is deleted");
    stage.loss_due_since(since, RENEWAL);
    c.asks(DOOR, terms().wait(Duration::ZERO)).failed("TimedOut");
    stage.granted_since(&first, since, TOLD);
    first.works(&stage.register);
    held.refused();
    held.lost();
    first.renewed(now());
    stage.is_left(&first);
}

/// It tells nobody when it is done, so it is looked at often.
fn foreign_holder(stage: &mut Stage<'_>, redis: &Redis) {
    const NOTICED: Duration = Duration::from_millis(200);
    let (b, c) = (stage.far(), stage.near());
    stage.keeps = true;
    for _ in 0..4 {
        let foreign = format!("{:032x}", stage.rng.u128(..));
        let taken = redis.server.command(&["SET", DOOR, &foreign, "NX", "PX", "60000"]);
        stage.holds_true(taken == "OK", "it is free");
        stage.fault("a client of another library has the door");
        let (first, second) = (stage.queues(&b, &terms(), 1), stage.queues(&c, &terms(), 2));
        stage.a_moment();
        let since = now();
        stage.holds_true(redis.server.command(&["DEL", DOOR]) == 1, "it has it to the end");
        stage.fault("it gives it up");
        stage.granted_since(&first, since, NOTICED + SLACK / 5);
        stage.hand_over(&first, &second);
        stage.is_left(&second);
    }
}

fn memory(redis: &Redis, most: &str) {
    redis.server.cli("CONFIG SET maxmemory-policy noeviction");
    redis.server.cli(&format!("CONFIG SET maxmemory {most}"));
}

/// Places are kept and served, whether memory comes back soon or not.
fn out_of_memory(stage: &mut Stage<'_>, redis: &Redis) {
    without_memory(stage, redis, Duration::ZERO);
}

fn out_of_memory_for_long(stage: &mut Stage<'_>, redis: &Redis) {
    without_memory(stage, redis, 2 * TTL);
}

fn without_memory(stage: &mut Stage<'_>, redis: &Redis, span: Duration) {
    let Line { held, first, second, .. } = lined_up(stage, &terms());
    stage.keeps = true;
    memory(redis, "1");
    stage.fault("the server is out of memory");
    stage.holds_true(redis.server.command(&["SET", "other", "x"]).text().starts_with("OOM"), "it has memory");
    std::thread::sleep(span);
    stage.lines_up(2);
    stage.hand_over(&held, &first);
    stage.hand_over(&first, &second);
    stage.expect(&second.releases(), "Released");
    stage.free_due(DOOR, SLACK);
    memory(redis, "0");
}

fn scripts_flushed(stage: &mut Stage<'_>, redis: &Redis) {
    redis.server.cli("ACL SETUSER default -fcall");
    forgotten(stage, redis, "SCRIPT FLUSH", || redis.errors("NOSCRIPT"));
}

fn functions_flushed(stage: &mut Stage<'_>, redis: &Redis) {
    forgotten(stage, redis, "FUNCTION FLUSH", || redis.calls("function|load"));
}

/// Hand-overs by what the server has just forgotten; `met` counts how often that was noticed.
fn forgotten(stage: &mut Stage<'_>, redis: &Redis, flush: &str, met: impl Fn() -> u64) {
    let Line { held, first, second, .. } = lined_up(stage, &terms());
    stage.keeps = true;
    for (from, to) in [(&held, &first), (&first, &second)] {
        // A waiter's heartbeat may notice it at once.
        let before = met();
        redis.server.cli(flush);
        stage.fault(flush.to_owned());
        stage.hand_over(from, to);
        stage.holds_true(met() > before, "the server still knows them");
    }
    stage.is_left(&second);
}

/// In the order in which they came.
fn restarted(stage: &mut Stage<'_>, redis: &Redis) {
    let Line { held, first, second, .. } = lined_up(stage, &terms());
    stage.keeps = true;
    redis.server.kill();
    redis.server.restart();
    let since = stage.fault("the server was killed and is back");
    stage.lines_up(2);
    held.renewed(since);
    // Until both have sent a heartbeat, and can be notified.
    std::thread::sleep(HEARTBEAT + SLACK);
    stage.hand_over(&held, &first);
    stage.holds_true(!second.is_granted(), "out of order");
    stage.hand_over(&first, &second);
    stage.is_left(&second);
}

/// They queue again, and one of them has what was lost.
fn restarted_empty(stage: &mut Stage<'_>, redis: &Redis) {
    let Line { held, first, second, .. } = lined_up(stage, &terms());
    held.works(&stage.register);
    let since = now();
    redis.server.restart_empty();
    stage.fault("the server was killed and is back empty");
    stage.loss_due_since(since, RENEWAL);
    stage.grant_due_since(since, SOON);
    let both = [&first, &second];
    let granted = |event: &tenure_testkit::history::Event| both.iter().position(|acquisition| acquisition.is_granted_by(event));
    let event = stage.recorder.wait(SOON, "a grant to one of those who wait", |event| granted(event).is_some());
    let heir = granted(&event).expect("just found");
    both[heir].works(&stage.register);
    held.refused();
    held.lost();
    both[heir].renewed(now());
    stage.hand_over(both[heir], both[1 - heir]);
    stage.is_left(both[1 - heir]);
}

/// Each waiter is notified to poll, connects again, and finds its queue entry.
fn churned(stage: &mut Stage<'_>, redis: &Redis) {
    let (holder, a, b, c) = (stage.far(), stage.near(), stage.near(), stage.near());
    stage.keeps = true;
    let mut held = holder.takes(DOOR);
    for _ in 0..3 {
        let mut waiting: Vec<Claim> =
            (1..).zip([&a, &b, &c]).map(|(place, actor)| stage.queues(actor, &terms(), place)).collect();
        let connections = redis.proxy.accepted();
        redis.proxy.churn(Duration::from_millis(50));
        stage.fault("connections are reset every 50 ms");
        wait_until(OPERATION + SLACK, "connections to be reset", || redis.proxy.accepted() > connections);
        stage.a_moment();
        stage.grant_due(UNHEARD + OPERATION);
        stage.expect(&held.releases(), "Released");
        while !waiting.is_empty() {
            let granted =
                |event: &tenure_testkit::history::Event| waiting.iter().position(|acquisition| acquisition.is_granted_by(event));
            let event = stage.recorder.wait(2 * TTL, "a grant to one of those who wait", |event| granted(event).is_some());
            let served = waiting.swap_remove(granted(&event).expect("just found"));
            let how = served.releases();
            stage.holds_true(how == "Released" || how.starts_with("Unknown"), &how);
        }
        redis.proxy.heal();
        [&a, &b, &c].into_iter().for_each(Actor::settles);
        stage.free_due(DOOR, SLACK);
        held = holder.takes(DOOR);
    }
    stage.is_left(&held);
}
