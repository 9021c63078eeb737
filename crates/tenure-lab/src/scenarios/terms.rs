//! Settings of an acquisition: a supplied owner token, a shortest and a longest hold.

use std::time::Duration;

use tenure_testkit::history::{At, nanos};
use tenure_testkit::worker::ByHand;

use super::fixtures::{alone, on_each};
use super::rows::{Played, Row, Rows};
use super::stage::{DOOR, OPERATION, POLL, RENEWAL, SLACK, Stage, TTL, now, terms};
use crate::Item;

pub(super) fn items() -> Vec<Item> {
    [on_each(shared), alone(every)].concat()
}

/// The rows of every store.
#[rustfmt::skip]
fn every(of: Rows, on: &dyn Fn(Row) -> Played) -> Vec<Item> {
    vec![
        of.holds("39-given-twice", "two clients ask with the same supplied owner token", on(given_twice)),
        of.fenced("39-given-and-released", "somebody releases by the owner token that two clients supplied",
            on(given_and_released)),
        of.holds("40-shortest-hold", "locks with a shortest hold are released and dropped early", on(given_up_early)),
        of.holds("40-late-renewal", "a renewal and a release come late, while the name lingers", on(late_renewal)),
        of.holds("41-longest-hold", "the work takes longer than the longest hold", on(held_too_long)),
        of.holds("42-foreign-value", "somebody renews and releases a lock by a value that is not its holder's",
            on(foreign_value)),
        of.holds("42-after-the-end", "a renewal comes when the lease has ended, and nobody has taken the name",
            on(after_the_end)),
        of.holds("43-shorter", "a lease is extended, renewed for a shorter time, and left", on(renewed_for_less)),
    ]
}

/// The rows of a store that outlives the holder.
pub(super) fn shared(of: Rows, on: &dyn Fn(Row) -> Played) -> Vec<Item> {
    let fault = "a holder with a shortest hold is killed, some before their first renewal and some after it";
    [every(of, on), vec![of.holds("40-killed", fault, on(killed_early))]].concat()
}

/// The shortest hold, longer than the ttl.
const MIN: Duration = Duration::from_secs(3);
/// From the end of a name's lease to the next grant.
const LOOK: Duration = Duration::from_millis(120 + 250 + 250);

const GIVEN: &str = "job-17";

/// It does not take the other's for its own.
fn given_twice(stage: &mut Stage<'_>) {
    let (a, b) = (stage.near(), stage.far());
    let first = a.asks(DOOR, terms().token(GIVEN));
    first.granted();
    first.works(&stage.register);
    stage.keeps = true;
    let wait = Duration::from_millis(stage.rng.u64(0..300));
    b.asks(DOOR, terms().token(GIVEN).wait(wait)).failed("TimedOut");
    let dropped = b.asks(DOOR, terms().token(GIVEN));
    stage.some_time();
    dropped.drops();
    b.settles();
    first.renewed(now());
    let second = b.asks(DOOR, terms().token(GIVEN));
    stage.hand_over(&first, &second);
    second.works(&stage.register);
    second.renewed(now());
    stage.is_left(&second);
}

/// Nothing tells one holder's value from the other's. Each is renewed by the other.
fn given_and_released(stage: &mut Stage<'_>) {
    let (a, b) = (stage.near(), stage.far());
    let first = a.asks(DOOR, terms().token(GIVEN));
    first.granted();
    first.works(&stage.register);
    let second = b.asks(DOOR, terms().token(GIVEN));
    stage.some_time();
    // Else a renewal may find the name free, and rightly say so.
    first.renewed(now());
    stage.fault("somebody releases the door by its value");
    stage.grant_due(LOOK);
    stage.expect(&b.by_hand(ByHand::Release, DOOR, GIVEN), "Released");
    let granted = second.granted();
    second.works(&stage.register);
    stage.is_stale(&first, granted);
    first.renewed(now());
    stage.expect(&second.releases(), "Released");
    stage.loss_due(RENEWAL);
    first.lost();
    stage.free_due(DOOR, SLACK);
}

/// Nobody has it for as long as it lingers, and then somebody does.
fn is_free_at(stage: &Stage<'_>, granted: At, asked: At) {
    let held = Duration::from_nanos(granted - asked);
    stage.holds_true(held >= MIN, &format!("it was taken for {held:?} only"));
}

fn given_up_early(stage: &mut Stage<'_>) {
    let (a, b) = (stage.near(), stage.far());
    let asked = now();
    let (first, gate) = (a.asks(DOOR, terms().min_hold(MIN)), a.asks("gate", terms().min_hold(MIN)));
    first.granted();
    gate.granted();
    let (second, third) = (b.asks(DOOR, terms()), b.asks("gate", terms()));
    stage.a_moment();
    stage.grant_due(MIN + LOOK);
    stage.grant_due_of("gate", MIN + LOOK);
    stage.expect(&first.releases(), "Released");
    gate.drops();
    is_free_at(stage, second.granted(), asked);
    is_free_at(stage, third.granted(), asked);
    stage.expect(&third.releases(), "Released");
    stage.is_left(&second);
}

/// A name that lingers is nobody's: neither prolongs it.
fn late_renewal(stage: &mut Stage<'_>) {
    let (a, b) = (stage.near(), stage.far());
    let asked = now();
    let first = a.asks(DOOR, terms().min_hold(MIN));
    first.granted();
    let token = first.token();
    stage.grant_due(MIN + LOOK);
    stage.expect(&first.releases(), "Released");
    let second = b.asks(DOOR, terms());
    stage.a_moment();
    stage.fault("a renewal of what was given up arrives, and its release once more");
    stage.expect(&b.by_hand(ByHand::Renew, DOOR, &token), "Lost");
    stage.expect(&b.by_hand(ByHand::Release, DOOR, &token), "Released");
    is_free_at(stage, second.granted(), asked);
    second.renewed(now());
    stage.expect(&b.by_hand(ByHand::Renew, DOOR, &token), "Lost");
    stage.is_left(&second);
}

/// A renewal for a shorter time does not end the first lease sooner.
fn killed_early(stage: &mut Stage<'_>) {
    let heir = stage.far();
    for renewed in [false, true] {
        let (a, name) = (stage.near(), if renewed { "renewed" } else { "new" });
        let asked = now();
        let first = a.asks(name, terms().min_hold(MIN));
        first.granted();
        let next = heir.asks(name, terms());
        if renewed {
            first.renewed(now());
        }
        a.kill();
        stage.fault("the holder is killed");
        let rest = MIN.saturating_sub(Duration::from_nanos(now() - asked));
        stage.grant_due_of(name, rest.max(stage.kept()) + LOOK);
        is_free_at(stage, next.granted(), asked);
        stage.expect(&next.releases(), "Released");
        stage.free_due(name, SLACK);
    }
}

/// However well renewals go. The name ends with what was last renewed.
fn held_too_long(stage: &mut Stage<'_>) {
    let (a, b) = (stage.near(), stage.far());
    let max = Duration::from_millis(stage.rng.u64(300..3_500));
    let asked = now();
    stage.fault(format!("it may be held for {max:?}, and the work goes on"));
    let first = a.asks(DOOR, terms().max_hold(max));
    let granted = first.granted();
    stage.loss_due(max + SLACK);
    first.runs(&stage.register);
    let second = b.asks(DOOR, terms());
    let lost = first.lost();
    stage.grant_due(stage.kept() + POLL + OPERATION + SLACK);
    stage.holds_true(lost >= asked + nanos(max), "told too early");
    let after = Duration::from_nanos(lost.saturating_sub(granted));
    stage.holds_true(after <= max + SLACK, &format!("told only after {after:?}"));
    stage.holds_true(first.last_step() <= Some(lost), "the guard let a step go on");
    second.granted();
    second.works(&stage.register);
    stage.is_left(&second);
}

/// Neither has any effect on a lease that nobody renews.
fn foreign_value(stage: &mut Stage<'_>) {
    const FOREIGN: &str = "somebody-else";
    let (a, b) = (stage.near(), stage.far());
    stage.keeps = true;
    let asked = now();
    let first = a.asks(DOOR, terms().fixed());
    first.granted();
    let second = b.asks(DOOR, terms());
    stage.grant_due(stage.kept() + LOOK);
    stage.a_moment();
    stage.fault("somebody renews and releases the door by another value");
    stage.expect(&b.by_hand(ByHand::Renew, DOOR, FOREIGN), "Lost");
    stage.expect(&b.by_hand(ByHand::Release, DOOR, FOREIGN), "WasLost");
    let wait = Duration::from_millis(200);
    b.asks(DOOR, terms().wait(wait)).failed("TimedOut");
    stage.holds_true(!second.is_granted(), "the door was given up");
    first.leaves();
    let held = Duration::from_nanos(second.granted() - asked);
    stage.holds_true(held >= stage.kept(), &format!("it was taken for {held:?} only"));
    stage.is_left(&second);
}

/// A lease that has ended is not revived.
fn after_the_end(stage: &mut Stage<'_>) {
    let (a, b) = (stage.near(), stage.far());
    let asked = now();
    let first = a.asks(DOOR, terms().fixed());
    first.granted();
    let token = first.token();
    first.lost();
    stage.free_due(DOOR, stage.kept().saturating_sub(Duration::from_nanos(now() - asked)) + SLACK);
    stage.fault("a renewal of the lease that has ended arrives");
    stage.expect(&b.by_hand(ByHand::Renew, DOOR, &token), "Lost");
    stage.free_due(DOOR, SLACK);
    stage.ends_with_another(&b);
}

/// Nobody has it before the end of what it was extended to.
fn renewed_for_less(stage: &mut Stage<'_>) {
    let (a, b) = (stage.near(), stage.far());
    let first = a.takes(DOOR);
    let second = b.asks(DOOR, terms());
    let asked = now();
    first.extends(MIN);
    first.extends(TTL);
    stage.fault("it was extended, and then renewed for less");
    stage.grant_due(stage.kept().max(MIN) + LOOK);
    first.leaves();
    is_free_at(stage, second.granted(), asked);
    stage.is_left(&second);
}
