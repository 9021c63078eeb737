//! Faults of the pushes from a server to its waiters.

use std::time::Duration;

use tenure_testkit::history::Rule;
use tenure_testkit::{Client, wait_until};

use super::queue::{Line, TOLD, UNHEARD, lined_up, long};
use crate::Item;
use crate::scenarios::fixtures::Redis;
use crate::scenarios::scheme::NATIVE;
use crate::scenarios::stage::{DOOR, PATIENCE, SLACK, Stage, TTL, now, terms};
use crate::scenarios::{broken, holds};

#[rustfmt::skip]
pub(super) fn items() -> Vec<Item> {
    vec![
        holds("redis/50-pushes-late", "pushes to waiters come late, behind replies that came after them",
            NATIVE.plain(pushes_late)),
        holds("redis/50-pushes-lost", "pushes to waiters are lost", NATIVE.plain(pushes_lost)),
        holds("redis/50-cancelled-unheard", "a waiter gives up that was served and has not heard of it",
            NATIVE.plain(cancelled_unheard)),
        holds("redis/51-pushes-repeated", "waiters get pushes of grants that are over", NATIVE.plain(pushes_repeated)),
        holds("redis/51-pushes-forged", "somebody tells waiters of grants to others, and nonsense", NATIVE.plain(pushes_forged)),
        holds("redis/51-published-from-afar", "somebody who may read and publish tells a waiter of fences far ahead",
            NATIVE.plain(published_from_afar)),
        broken("redis/51-published-hand-over", "somebody who may read and publish tells a waiter that it was served", Rule::FenceOrder,
            NATIVE.plain(published_hand_over)),
    ]
}

/// The waiter finds at its next heartbeat that it was served. The push that comes then says nothing new.
fn pushes_late(stage: &mut Stage<'_>, redis: &Redis) {
    let Line { held, first, second, .. } = lined_up(stage, &long());
    stage.keeps = true;
    let pushes = redis.proxy.pushes();
    redis.proxy.hold_pushes();
    stage.fault("pushes are held");
    let since = now();
    stage.expect(&held.releases(), "Released");
    stage.granted_since(&first, since, UNHEARD);
    stage.holds_true(redis.proxy.pushes() > pushes, "nothing was pushed");
    redis.proxy.release_pushes();
    stage.fault("they arrive");
    first.renewed(now());
    stage.hand_over(&first, &second);
    stage.is_left(&second);
}

fn pushes_lost(stage: &mut Stage<'_>, redis: &Redis) {
    let Line { held, first, second, .. } = lined_up(stage, &long());
    stage.keeps = true;
    let pushes = redis.proxy.pushes();
    redis.proxy.lose_pushes();
    stage.fault("pushes are lost");
    stage.a_moment();
    let since = now();
    stage.expect(&held.releases(), "Released");
    stage.granted_since(&first, since, UNHEARD);
    stage.holds_true(redis.proxy.pushes() > pushes, "nothing was pushed");
    stage.hand_over(&first, &second);
    stage.is_left(&second);
}

/// The name goes on to the next at once, and what arrives later is nobody's.
fn cancelled_unheard(stage: &mut Stage<'_>, redis: &Redis) {
    let Line { held, near, first, second } = lined_up(stage, &long());
    stage.keeps = true;
    let pushes = redis.proxy.pushes();
    redis.proxy.hold_pushes();
    stage.fault("pushes are held");
    stage.expect(&held.releases(), "Released");
    stage.taken(DOOR);
    wait_until(PATIENCE, "the push", || redis.proxy.pushes() > pushes);
    let since = stage.fault("the one that was served gives up");
    first.drops();
    stage.granted_since(&second, since, TOLD);
    redis.proxy.release_pushes();
    stage.fault("its push arrives");
    near.settles();
    second.renewed(now());
    stage.is_left(&second);
}

/// Data of a push to the first in line: its channel, its owner token and the grant counter.
struct Ear {
    channel: String,
    owner: String,
    counter: u64,
}

impl Ear {
    /// Of a waiter that is alone in line.
    fn of_first(redis: &Redis) -> Self {
        let queue = redis.queue(DOOR).expect("somebody waits");
        let owner = redis.server.cli(&format!("ZRANGE {queue} 0 0"));
        let place = redis.server.command(&["HGET", &queue.replacen(":q:", ":p:", 1), &owner]).text();
        let channel = place.rsplit(' ').next().expect("a channel").to_owned();
        Self { channel, owner, counter: redis.server.cli("GET tenure:fence").parse().expect("a counter") }
    }

    /// Tells it this, and waits until it has looked.
    fn hears(&self, stage: &Stage<'_>, redis: &Redis, message: &str) {
        let told = redis.server.command(&["PUBLISH", &self.channel, message]);
        stage.holds_true(told == 1, &format!("{message:?} reached {told:?}"));
    }
}

/// How often somebody has looked at the server.
fn looks(redis: &Redis) -> u64 {
    redis.own_calls()
}

/// A waiter accepts a pushed grant if its number is above all that the waiter has seen. If not, it polls.
fn pushes_repeated(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, b) = (stage.far(), stage.near());
    stage.keeps = true;
    let mut held = a.takes(DOOR);
    let mut past: Vec<(String, u64)> = Vec::new();
    for _ in 0..3 {
        let waiting = stage.queues(&b, &terms(), 1);
        let ear = Ear::of_first(redis);
        past.push((ear.owner.clone(), ear.counter));
        let before = looks(redis);
        for (owner, counter) in &past {
            for counter in [*counter, counter - 1, 1] {
                ear.hears(stage, redis, &format!("{counter}:1500 {owner}"));
            }
        }
        stage.fault("it gets pushes of grants that are over");
        wait_until(PATIENCE, "it to look", || looks(redis) > before);
        std::thread::sleep(SLACK);
        stage.holds_true(!waiting.is_granted(), "it accepts a grant that was over before it came");
        stage.hand_over(&held, &waiting);
        let counter = redis.server.cli("GET tenure:fence");
        ear.hears(stage, redis, &format!("{counter}:1500 {}", ear.owner));
        stage.fault("the push that it was served comes again");
        past.push((ear.owner, counter.parse().expect("a counter")));
        held = stage.queues(&a, &terms(), 1);
        waiting.renewed(now());
        stage.hand_over(&waiting, &held);
    }
    stage.is_left(&held);
}

/// A push that is for nobody here is not heard, and one that makes no sense is at most a reason to poll.
fn pushes_forged(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, b) = (stage.far(), stage.near());
    stage.keeps = true;
    let held = a.takes(DOOR);
    let waiting = stage.queues(&b, &terms(), 1);
    let ear = Ear::of_first(redis);
    let (later, owner) = (ear.counter + 1_000, &ear.owner);
    let other = format!("{}0", &owner[..owner.len() - 1]);
    let other = if other == *owner { format!("{}1", &owner[..owner.len() - 1]) } else { other };
    let before = looks(redis);
    let nonsense = [
        format!("{later}:1500 {other}"),
        format!("{later}:1500 {}", held.token()),
        format!("{later}:1500  {owner}"),
        format!("{later}:1500"),
        format!("{later}: {owner}"),
        format!("{later} {owner}"),
        format!(":1500 {owner}"),
        format!("-1:1500 {owner}"),
        format!("0:1500 {owner}"),
        format!("18446744073709551616:1500 {owner}"),
        format!("9007199254740992:1500 {owner}"),
        format!("{later}:0 {owner}"),
        format!("{later}:-5 {owner}"),
        format!("{later}:99999999999999999999999 {owner}"),
        format!(" {owner}"),
        owner.clone(),
        String::new(),
    ];
    for message in &nonsense {
        ear.hears(stage, redis, message);
    }
    stage.fault("it gets pushes of grants to others, and nonsense");
    wait_until(PATIENCE, "it to look", || looks(redis) > before);
    std::thread::sleep(SLACK);
    stage.holds_true(!waiting.is_granted(), "it accepts nonsense");
    held.renewed(now());
    stage.hand_over(&held, &waiting);
    waiting.renewed(now());
    stage.is_left(&waiting);
}

/// Tells whom an ear is of that it was served, as a user who may do no more than read and publish.
fn publish(stage: &Stage<'_>, redis: &Redis, ear: &Ear, counter: u64) {
    redis.server.cli("ACL SETUSER reader on >reader ~* &* -@all +@read +publish +auth");
    let mut reader = Client::connect(redis.server.addr(), PATIENCE).expect("the server answers");
    let mut run = |words: &[&str]| reader.command(words).expect("the server answers");
    stage.holds_true(run(&["AUTH", "reader", "reader"]) == "OK", "it is not let in");
    stage.holds_true(run(&["SET", "tenure:fence", "1"]) != "OK", "it may write");
    let told = run(&["PUBLISH", &ear.channel, &format!("{counter}:1500 {}", ear.owner)]);
    stage.holds_true(told == 1, &format!("{counter} reached {told:?}"));
}

/// Time does not explain such a number, so it is a reason to look. The counter stays where it was.
fn published_from_afar(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, b) = (stage.far(), stage.near());
    stage.keeps = true;
    let held = a.takes(DOOR);
    let waiting = stage.queues(&b, &terms(), 1);
    let ear = Ear::of_first(redis);
    let before = looks(redis);
    for counter in [(1 << 53) - 1, 1 << 52, ear.counter + 60_000_000] {
        publish(stage, redis, &ear, counter);
    }
    stage.fault("it gets pushes of fences far ahead");
    wait_until(PATIENCE, "it to look", || looks(redis) > before);
    std::thread::sleep(SLACK);
    stage.holds_true(!waiting.is_granted(), "it accepts them");
    stage.hand_over(&held, &waiting);
    let counter: u64 = redis.server.cli("GET tenure:fence").parse().expect("a counter");
    stage.holds_true(counter < ear.counter + 60_000_000, "the counter was moved");
    waiting.renewed(now());
    stage.is_left(&waiting);
}

/// The waiter regards itself as the holder for one `handoff_ttl` at most: its first renewal finds the name another's. The fence
/// is as far ahead as the clocks of two machines may be apart: so long a resource that saw it refuses others.
fn published_hand_over(stage: &mut Stage<'_>, redis: &Redis) {
    let (a, b) = (stage.far(), stage.near());
    let held = a.takes(DOOR);
    let waiting = stage.queues(&b, &terms(), 1);
    let ear = Ear::of_first(redis);
    publish(stage, redis, &ear, ear.counter + 8_000_000);
    let since = stage.fault("it gets a push that it was served");
    waiting.granted();
    waiting.works(&stage.register);
    let lost = Duration::from_nanos(waiting.lost().saturating_sub(since));
    stage.holds_true(
        lost < Duration::from_millis(1_500),
        &format!("it was valid for longer than a handoff_ttl, and lost only after {lost:?}"),
    );
    held.renewed(now());
    held.tries_to_work(&stage.register);
    held.refused();
    stage.expect(&held.releases(), "Released");
    let next = a.takes(DOOR);
    stage.expect(&next.releases(), "Released");
    stage.free_due(DOOR, TTL + SLACK);
}
