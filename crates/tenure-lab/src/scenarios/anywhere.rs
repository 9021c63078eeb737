//! Faults of holders and waiters, which are the same on every store.

use std::time::Duration;

use tenure_testkit::history::{At, Rule};
use tenure_testkit::worker::{Call, Deed, Moment, Probe};
use tenure_testkit::{Register, ShiftedClock};

use super::actor::Claim;
use super::fixtures::{alone, on_each};
use super::rows::{Played, Row, Rows};
use super::stage::{DOOR, OPERATION, POLL, SLACK, Stage, TTL, now, terms};
use crate::Item;

pub(super) fn items() -> Vec<Item> {
    [on_each(|of, on| [shared(of, on), fence_ignored(of, on)].concat()), alone(memory)].concat()
}

/// The rows of a store that processes share.
#[rustfmt::skip]
pub(super) fn shared(of: Rows, on: &dyn Fn(Row) -> Played) -> Vec<Item> {
    vec![
        of.fenced("01-holder-paused", "the holder is stopped for longer than its lease and goes on writing", on(paused)),
        of.spared("01-careful-holder-paused", "the holder is stopped for longer than its lease, and its work is run by the guard",
            on(careful_and_paused)),
        of.spared("02-paused-before-reading-the-grant", "stopped before it has read that it was granted", on(reply_unread)),
        of.fenced("02-paused-before-first-use", "stopped between the grant and its first write", on(paused_before_use)),
        of.holds("03-killed-at-each-step", "kill -9 before, in and after each kind of call to the store",
            on(killed_at_each_step)),
        of.holds("04-cancelled-at-each-step", "the acquisition is dropped before, in and after the call",
            on(cancelled_at_each_step)),
        of.holds("04-wait-given-up", "waits run out or are dropped while another holds", on(wait_given_up)),
        of.holds("23-wall-clock-set", "the holder's wall clock jumps an hour ahead and an hour back", on(wall_clock_set)),
        of.holds("24-suspended", "the holder's machine sleeps for longer than the lease", on(suspended)),
        of.holds("25-fixed-lease", "the work takes longer than a lease that nobody renews", on(outlasted)),
        of.fenced("26-blocked-runtime", "the work blocks the thread that renews for longer than the lease", on(blocked)),
        of.holds("38-herd", "holders and waiters of a crowd die, and the rest give up in turn", on(herd)),
    ]
}

/// The row of a store that has fences.
fn fence_ignored(of: Rows, on: &dyn Fn(Row) -> Played) -> Vec<Item> {
    let fault = "the holder is stopped for longer than its lease, and the resource compares no fences";
    vec![of.broken("01-resource-without-fences", fault, Rule::StaleWrite, on(unfenced))]
}

/// The rows of a store that one process has to itself.
fn memory(of: Rows, on: &dyn Fn(Row) -> Played) -> Vec<Item> {
    vec![
        of.fenced("01-process-paused", "the process is stopped for longer than the lease and goes on writing", on(all_paused)),
        of.holds("04-cancelled-at-each-step", "the acquisition is dropped before and after the call", on(cancelled_at_each_step)),
        of.holds("04-wait-given-up", "waits run out or are dropped while another holds", on(wait_given_up)),
        of.holds("24-suspended", "the machine sleeps for longer than the lease", on(suspended_alone)),
        of.holds("25-fixed-lease", "the work takes longer than a lease that nobody renews", on(outlasted)),
        of.fenced("26-blocked-runtime", "a task blocks the thread that renews for longer than the lease", on(all_blocked)),
        of.holds("38-herd", "holders with many waiters give up", on(herd_of_tasks)),
    ]
}

/// A holder is stopped while it does its `work`, until another holds and has done what it does `meanwhile`: both, and when the first
/// went on.
fn stopped(stage: &mut Stage<'_>, work: fn(&Claim, &Register), meanwhile: fn(&Claim, &Register)) -> (Claim, Claim, At) {
    let (a, b) = (stage.near(), stage.far());
    let first = a.takes(DOOR);
    work(&first, &stage.register);
    let second = b.asks(DOOR, terms());
    stage.some_time();
    a.stop();
    stage.fault("A is stopped");
    stage.grant_due(stage.next());
    second.granted();
    meanwhile(&second, &stage.register);
    a.go_on();
    let on = stage.fault("A goes on");
    (first, second, on)
}

/// Stopped for longer than its lease, and goes on as if nothing had been.
fn paused(stage: &mut Stage<'_>) {
    let (first, second, on) = stopped(stage, Claim::works, Claim::works);
    stage.is_stale(&first, on);
    stage.told_since(&first, on);
    stage.is_left(&second);
}

/// As [`paused`], and nothing refuses what it writes.
fn unfenced(stage: &mut Stage<'_>) {
    stage.register.compares_nothing();
    let (first, second, on) = stopped(stage, Claim::works, Claim::works);
    first.wrote_since(on);
    stage.is_left(&second);
}

/// As [`paused`], and does nothing that the guard does not allow.
fn careful_and_paused(stage: &mut Stage<'_>) {
    let (first, second, on) = stopped(stage, Claim::runs, |_, _| ());
    stage.told_since(&first, on);
    second.works(&stage.register);
    second.renewed(now());
    // One may have been allowed before it was stopped, and be done when it goes on.
    stage.holds_true(first.steps_since(on) <= 1, "the guard let it go on");
    stage.is_left(&second);
}

/// Its process stops with the reply unread: when it reads the grant, the validity has ended.
fn reply_unread(stage: &mut Stage<'_>) {
    let (a, b) = (stage.near(), stage.far());
    a.arm(Probe { call: Call::Acquire, number: 1, moment: Moment::After, deed: Deed::Stop });
    let first = a.asks(DOOR, terms());
    stage.taken(DOOR);
    stage.fault("A has stopped itself");
    let second = b.asks(DOOR, terms());
    stage.grant_due(stage.next());
    second.granted();
    a.go_on();
    stage.fault("A goes on");
    second.works(&stage.register);
    stage.ends_well(&second, &first);
}

/// Stops when it knows that it holds, and writes when it goes on.
fn paused_before_use(stage: &mut Stage<'_>) {
    let (a, b) = (stage.near(), stage.far());
    let first = a.takes(DOOR);
    a.stop();
    stage.fault("A is stopped");
    let second = b.asks(DOOR, terms());
    stage.grant_due(stage.next());
    second.granted();
    second.works(&stage.register);
    first.tries_to_work(&stage.register);
    a.go_on();
    let on = stage.fault("A goes on");
    stage.is_stale(&first, on);
    stage.told_since(&first, on);
    stage.is_left(&second);
}

/// One process for each step, each with a name of its own.
fn killed_at_each_step(stage: &mut Stage<'_>) {
    let during = Moment::During(Duration::from_micros(stage.rng.u64(0..1_000)));
    let steps: Vec<Probe> = [Call::Acquire, Call::Renew, Call::Release]
        .into_iter()
        .flat_map(|call| [Moment::Before, during, Moment::After].map(|moment| (call, moment)))
        .map(|(call, moment)| Probe { call, number: 1, moment, deed: Deed::Die })
        .collect();
    let heir = stage.far();
    let victims: Vec<_> = steps
        .into_iter()
        .map(|probe| {
            let (name, victim) = (format!("{:?} {:?}", probe.call, probe.moment), stage.near());
            victim.arm(probe);
            let acquisition = victim.asks(&name, terms());
            if probe.call == Call::Release {
                acquisition.granted();
                acquisition.begins_to_release();
            }
            (name, victim)
        })
        .collect();
    let heirs: Vec<(String, Claim)> = victims
        .into_iter()
        .map(|(name, victim)| {
            victim.died();
            stage.grant_due_of(&name, stage.next());
            let acquisition = heir.asks(&name, terms());
            (name, acquisition)
        })
        .collect();
    for (name, acquisition) in heirs {
        acquisition.granted();
        stage.expect(&acquisition.releases(), "Released");
        stage.free_due(&name, SLACK);
    }
}

/// Nothing is left of an acquisition that was dropped, wherever it was.
fn cancelled_at_each_step(stage: &mut Stage<'_>) {
    let (a, b) = (stage.near(), stage.far());
    let during = Moment::During(Duration::from_micros(stage.rng.u64(0..1_000)));
    for moment in [Moment::Before, during, Moment::After] {
        a.arm(Probe { call: Call::Acquire, number: 1, moment, deed: Deed::Cancel });
        let name = format!("{moment:?}");
        a.asks(&name, terms());
        a.cancelled();
        stage.fault(format!("A drops its acquisition of {name:?}"));
        a.settles();
        stage.free_due(&name, SLACK);
        stage.grant_due_of(&name, OPERATION + SLACK);
        let next = b.asks(&name, terms());
        next.granted();
        stage.expect(&next.releases(), "Released");
    }
}

/// Waiters that leave are not served.
fn wait_given_up(stage: &mut Stage<'_>) {
    let (a, b) = (stage.near(), stage.far());
    let held = b.takes(DOOR);
    let wait = Duration::from_millis(stage.rng.u64(0..300));
    let (timed, dropped) = (a.asks(DOOR, terms().wait(wait)), a.asks(DOOR, terms()));
    timed.failed("TimedOut");
    dropped.drops();
    a.settles();
    stage.keeps = true;
    held.works(&stage.register);
    stage.is_left(&held);
    stage.ends_with_another(&a);
}

/// Neither the validity of a holder nor a grant depends on the wall clock.
fn wall_clock_set(stage: &mut Stage<'_>) {
    let clock = ShiftedClock::new();
    let (a, b) = (stage.near_with(|command| clock.apply(command)), stage.near_with(|command| clock.apply(command)));
    let first = a.takes(DOOR);
    first.works(&stage.register);
    let second = b.asks(DOOR, terms());
    stage.keeps = true;
    for (hours, text) in [(1, "an hour ahead"), (-1, "an hour back"), (0, "right again")] {
        clock.shift(hours * 3_600_000);
        let since = stage.fault(format!("the wall clock is set {text}"));
        let off = a.clock_ahead() - hours * 3_600_000;
        stage.holds_true(off.abs() < 1_000, "the wall clock is where it was");
        first.renewed(since);
    }
    stage.ends_well(&first, &second);
}

/// Nothing of its process runs, and the boot-time clock alone goes on: for the core, and for the client of the store.
fn suspended(stage: &mut Stage<'_>) {
    let clock = ShiftedClock::new();
    let (a, b) = (stage.near_with(|command| clock.apply(command)), stage.far());
    let first = a.takes(DOOR);
    first.runs(&stage.register);
    let second = b.asks(DOOR, terms());
    stage.some_time();
    a.stop();
    let since = stage.fault("A's machine sleeps");
    stage.grant_due(stage.next());
    second.granted();
    // A clock never goes back, and a signal takes a moment to arrive.
    let slept = Duration::from_nanos(now() - since).saturating_sub(Duration::from_millis(10));
    clock.shift_monotonic(-i64::try_from(slept.as_millis()).expect("seconds"));
    a.go_on();
    let on = stage.fault("A's machine is awake");
    stage.told_since(&first, on);
    stage.holds_true(first.steps_since(on) <= 1, "the guard let it go on");
    second.works(&stage.register);
    // With the clocks that are behind.
    let third = a.asks(DOOR, terms());
    stage.hand_over(&second, &third);
    third.works(&stage.register);
    let fourth = b.asks(DOOR, terms());
    third.renewed(now());
    std::thread::sleep(TTL);
    stage.holds_true(!fourth.is_granted(), "two hold");
    third.renewed(now());
    stage.ends_well(&third, &fourth);
}

/// As [`suspended`], of a process that has the store to itself: its clock has gone on while nothing ran.
fn suspended_alone(stage: &mut Stage<'_>) {
    let a = stage.near();
    stage.jumps = true;
    let first = a.takes(DOOR);
    first.runs(&stage.register);
    stage.some_time();
    let slept = stage.kept() + Duration::from_secs(1);
    stage.fault(format!("A's machine has slept for {slept:?}"));
    stage.loss_due(SLACK);
    a.sleeps(slept);
    let lost = first.lost();
    let b = stage.far();
    let second = b.asks(DOOR, terms());
    stage.grant_due(stage.next());
    second.granted();
    stage.holds_true(first.last_step() < Some(lost), "the guard let a step go on");
    stage.is_left(&second);
}

/// The holder is notified at its deadline, and not before; the next one is granted after that.
fn outlasted(stage: &mut Stage<'_>) {
    let (a, b) = (stage.near(), stage.far());
    let first = a.asks(DOOR, terms().fixed());
    first.granted();
    first.runs(&stage.register);
    stage.fault("the work goes on and on");
    stage.loss_due(stage.validity());
    stage.grant_due(stage.next());
    let second = b.asks(DOOR, terms());
    let (lost, granted) = (first.lost(), second.granted());
    stage.holds_true(lost < granted, "another was granted before the holder was notified");
    stage.is_left(&second);
}

/// Nobody renews while a task blocks the only thread; the work, on a thread of its own, goes on.
fn blocked(stage: &mut Stage<'_>) {
    let (a, _, first, second) = stage.begins();
    stage.some_time();
    let blocked = stage.kept() + TTL;
    stage.fault(format!("A's runtime is blocked for {blocked:?}"));
    stage.grant_due(stage.next());
    stage.loss_due(blocked + SLACK);
    a.blocks(blocked);
    let granted = second.granted();
    second.works(&stage.register);
    stage.is_stale(&first, granted);
    first.lost();
    stage.is_left(&second);
}

/// Many wait; the holder dies, and some who wait. The rest are served.
fn herd(stage: &mut Stage<'_>) {
    const EACH: usize = 12;
    let (holder, mortal, a, b) = (stage.near(), stage.near(), stage.near(), stage.far());
    holder.takes(DOOR);
    for _ in 0..EACH {
        mortal.asks(DOOR, terms());
    }
    let waiting: Vec<Claim> = (0..EACH).flat_map(|_| [a.asks(DOOR, terms()), b.asks(DOOR, terms())]).collect();
    stage.some_time();
    mortal.kill();
    holder.kill();
    stage.fault("the holder is killed, and some who wait");
    // The place of the dead may be the first in the queue, or the last.
    stage.grant_due(stage.next() + stage.claim());
    stage.serves_all(waiting, stage.claim() + SLACK);
}

/// Both claims are of one process.
fn all_paused(stage: &mut Stage<'_>) {
    let a = stage.near();
    let first = a.takes(DOOR);
    first.works(&stage.register);
    let second = a.asks(DOOR, terms());
    stage.some_time();
    a.stop();
    stage.fault("the process is stopped");
    std::thread::sleep(TTL);
    a.go_on();
    let on = stage.fault("the process goes on");
    stage.grant_due(POLL + SLACK);
    stage.told_since(&first, on);
    second.granted();
    second.works(&stage.register);
    first.refused();
    stage.is_left(&second);
}

/// Both claims are of one process, and so is the thread that is blocked.
fn all_blocked(stage: &mut Stage<'_>) {
    let a = stage.near();
    let first = a.takes(DOOR);
    first.works(&stage.register);
    let second = a.asks(DOOR, terms());
    stage.fault("the runtime is blocked for 2.1 s");
    stage.grant_due(TTL + POLL + SLACK);
    stage.loss_due(TTL + SLACK);
    a.blocks(TTL + Duration::from_millis(100));
    first.lost();
    second.granted();
    second.works(&stage.register);
    first.refused();
    stage.is_left(&second);
}

fn herd_of_tasks(stage: &mut Stage<'_>) {
    let a = stage.near();
    let first = a.takes(DOOR);
    let waiting: Vec<Claim> = (0..30).map(|_| a.asks(DOOR, terms())).collect();
    stage.keeps = true;
    stage.expect(&first.releases(), "Released");
    stage.serves_all(waiting, SLACK);
}
