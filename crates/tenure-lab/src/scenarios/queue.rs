//! Faults of those who wait in line, and of those who have just been served.

use std::time::Duration;

use tenure_testkit::worker::{Call, Deed, Moment, Probe, Terms};

use super::actor::{Actor, Claim};
use super::fixtures::on_each;
use super::rows::{Played, Row, Rows};
use super::stage::{CLAIM, DOOR, NEXT, OPERATION, POLL, SLACK, Stage, now, terms};
use crate::Item;

pub(super) fn items() -> Vec<Item> {
    on_each(rows)
}

#[rustfmt::skip]
pub(super) fn rows(of: Rows, on: &dyn Fn(Row) -> Played) -> Vec<Item> {
    vec![
        of.holds("44-dead-head", "the first in line is killed before it is served", on(head_killed)),
        of.holds("44-stopped-head", "the first in line is stopped before it is served, and goes on later", on(head_stopped)),
        of.holds("44-dead-heads", "the first five in line are stopped or killed", on(heads_dead)),
        of.holds("45-cancelled-while-served", "waits are dropped and run out while they are served", on(cancelled_while_served)),
        of.fenced("46-served-and-stopped", "one that was just served is stopped before its first renewal, and writes when it goes on",
            on(served_and_stopped)),
        of.holds("46-released-and-stopped", "the holder is stopped while it hands over", on(released_and_stopped)),
        of.holds("46-released-and-killed", "the holder is killed while it hands over", on(released_and_killed)),
        of.holds("47-newcomers-at-the-end", "the holder is killed, and newcomers try all the time while another waits",
            on(newcomers_at_the_end)),
    ]
}

/// Nothing of it ends in the time of a row.
const LONG: Duration = Duration::from_secs(6);
/// The most that a dead waiter costs, whatever the ttl.
const DEAD: Duration = Duration::from_secs(3);

fn long() -> Terms {
    Terms::new(LONG)
}

/// A holder, and those who wait behind it in this order.
fn lined_up(stage: &mut Stage<'_>, terms: &Terms, waiting: usize) -> (Actor, Claim, Vec<Actor>, Vec<Claim>) {
    let holder = stage.near();
    let held = holder.asks(DOOR, terms.clone());
    held.granted();
    let actors: Vec<Actor> = (0..waiting).map(|_| stage.far()).collect();
    let claims = (1..).zip(&actors).map(|(place, actor)| stage.queues(actor, terms, place)).collect();
    (holder, held, actors, claims)
}

/// Nobody hears what is said to it, and the next is served at once or in seconds.
fn head_killed(stage: &mut Stage<'_>) {
    let (_, held, actors, claims) = lined_up(stage, &long(), 2);
    stage.keeps = true;
    stage.a_moment();
    actors[0].kill();
    stage.fault("the first in line is killed");
    let since = now();
    stage.expect(&held.releases(), "Released");
    stage.granted_since(&claims[1], since, DEAD);
    stage.is_left(&claims[1]);
}

/// It is served, and cannot know. When it goes on it hears of what was over long ago, and waits again.
fn head_stopped(stage: &mut Stage<'_>) {
    let (_, held, actors, claims) = lined_up(stage, &long(), 2);
    stage.keeps = true;
    stage.a_moment();
    actors[0].stop();
    stage.fault("the first in line is stopped");
    let since = now();
    stage.expect(&held.releases(), "Released");
    stage.taken(DOOR);
    stage.granted_since(&claims[1], since, DEAD);
    let after = Duration::from_nanos(now() - since);
    stage.holds_true(after > CLAIM / 2, &format!("the other was served after {after:?}: the first was not stopped"));
    actors[0].go_on();
    stage.fault("it goes on");
    stage.lines_up(1);
    claims[1].renewed(now());
    stage.hand_over(&claims[1], &claims[0]);
    stage.is_left(&claims[0]);
}

/// No more than two claims: by then the others' places have lapsed.
fn heads_dead(stage: &mut Stage<'_>) {
    let (_, held, actors, claims) = lined_up(stage, &long(), 6);
    stage.keeps = true;
    let (last, dead) = (&claims[5], &actors[..5]);
    for (place, actor) in dead.iter().enumerate() {
        if place % 2 == 0 { actor.stop() } else { actor.kill() }
    }
    stage.fault("the first five in line are stopped or killed");
    let since = now();
    stage.expect(&held.releases(), "Released");
    stage.granted_since(last, since, DEAD + CLAIM);
    for actor in dead.iter().step_by(2) {
        actor.go_on();
    }
    stage.fault("those who were stopped go on");
    stage.lines_up(3);
    last.renewed(now());
    stage.expect(&last.releases(), "Released");
    stage.serves_all(vec![claims[0].clone(), claims[2].clone(), claims[4].clone()], CLAIM + SLACK);
}

/// Stopped, it has the name at the store before it hears of that and of its end.
fn cancelled_while_served(stage: &mut Stage<'_>) {
    let (holder, mut held, actors, _) = lined_up(stage, &long(), 0);
    assert!(actors.is_empty());
    let (b, c) = (stage.far(), stage.far());
    stage.keeps = true;
    for dropped in [true, false, true] {
        let wait = Duration::from_millis(stage.rng.u64(200..400));
        let first = stage.queues(&b, &if dropped { long() } else { long().wait(wait) }, 1);
        let second = stage.queues(&c, &long(), 2);
        b.stop();
        stage.fault("the first in line is stopped");
        if dropped {
            first.begins_to_drop();
        } else {
            std::thread::sleep(wait);
        }
        stage.expect(&held.releases(), "Released");
        stage.taken(DOOR);
        b.go_on();
        let on = stage.fault("it goes on, and gives up");
        if dropped {
            b.dropped();
        } else if first.is_granted_at_last() {
            stage.expect(&first.releases(), "Released");
        }
        stage.granted_since(&second, on, 2 * OPERATION + SLACK);
        b.settles();
        stage.expect(&second.releases(), "Released");
        stage.free_due(DOOR, SLACK);
        held = holder.asks(DOOR, long());
        held.granted();
    }
    stage.is_left(&held);
}

/// The push made it the holder, and its `handoff_ttl` ends though its ttl is long.
fn served_and_stopped(stage: &mut Stage<'_>) {
    let (_, held, actors, claims) = lined_up(stage, &long(), 2);
    stage.expect(&held.releases(), "Released");
    claims[0].granted();
    actors[0].stop();
    stage.fault("the one that was served is stopped");
    let since = now();
    stage.granted_since(&claims[1], since, if stage.pushes() { DEAD } else { LONG + POLL + SLACK });
    claims[1].works(&stage.register);
    claims[0].tries_to_work(&stage.register);
    actors[0].go_on();
    let on = stage.fault("it goes on");
    claims[0].refused();
    stage.told_since(&claims[0], on);
    stage.is_left(&claims[1]);
}

/// Right after the answer to its release, which hands over, and somewhere in the middle of it.
fn released_and_stopped(stage: &mut Stage<'_>) {
    let during = Moment::During(Duration::from_micros(stage.rng.u64(0..1_000)));
    for (moment, within) in [(Moment::After, SLACK), (during, NEXT)] {
        let (holder, held, _, claims) = lined_up(stage, &terms(), 2);
        holder.arm(Probe { call: Call::Release, number: 1, moment, deed: Deed::Stop });
        stage.grant_due(if stage.is_on_file() { 2 * NEXT } else { within });
        held.begins_to_release();
        // A process that is stopped in the middle of a write to a file keeps all others from writing to it.
        let writes = stage.is_on_file() && !claims[0].is_granted_within(NEXT);
        if !writes {
            stage.granted_since(&claims[0], now(), within);
            claims[0].renewed(now());
        }
        holder.go_on();
        stage.fault(if writes {
            "the holder was stopped while it wrote, and goes on"
        } else {
            "the holder was stopped, and goes on"
        });
        claims[0].granted();
        claims[0].renewed(now());
        stage.hand_over(&claims[0], &claims[1]);
        stage.is_left(&claims[1]);
    }
}

fn released_and_killed(stage: &mut Stage<'_>) {
    let during = Moment::During(Duration::from_micros(stage.rng.u64(0..1_000)));
    for moment in [Moment::Before, during, Moment::After] {
        let (holder, held, _, claims) = lined_up(stage, &terms(), 2);
        holder.arm(Probe { call: Call::Release, number: 1, moment, deed: Deed::Die });
        stage.grant_due(NEXT);
        held.begins_to_release();
        holder.died();
        claims[0].granted();
        claims[0].renewed(now());
        stage.hand_over(&claims[0], &claims[1]);
        stage.is_left(&claims[1]);
    }
}

/// The name becomes free by itself. It goes to the waiter, whichever client asks first.
fn newcomers_at_the_end(stage: &mut Stage<'_>) {
    let (holder, _, _, claims) = lined_up(stage, &terms(), 1);
    let newcomer = stage.far();
    stage.warms_up(&newcomer);
    holder.kill();
    let killed = stage.fault("the holder is killed");
    stage.grant_due(NEXT);
    let mut tries = 0;
    while !claims[0].is_granted() {
        let asked = newcomer.asks(DOOR, terms().wait(Duration::ZERO));
        if asked.is_granted_at_last() {
            let after = Duration::from_nanos(now() - killed);
            // By then the waiter was served, and has not come.
            let is_late = after > stage.next() + stage.claim() / 2;
            let how =
                if is_late { "the waiter did not come, and a newcomer has it only after" } else { "it was overtaken after" };
            stage.holds_true(false, &format!("{how} {after:?}"));
        }
        asked.failed("TimedOut");
        tries += 1;
    }
    if tries <= 100 {
        stage.starved = Some(format!("{tries} tries are not all the time"));
        return;
    }
    claims[0].renewed(now());
    stage.is_left(&claims[0]);
}
