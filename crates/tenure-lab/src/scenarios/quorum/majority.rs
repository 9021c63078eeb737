//! Faults of three of five servers, and what is left to the other two.

use std::time::Duration;

use tenure_testkit::admit;

use super::nodes::{CLOCKED, Hit, How, KEPT, MAJORITY, Nodes, OF, PLAIN, on_five};
use crate::Item;
use crate::scenarios::fixtures::Redis;
use crate::scenarios::redis::Fault;
use crate::scenarios::redis::data::{DELETED, EMPTIED};
use crate::scenarios::redis::link::{PARTITIONED, REPLIES_STOP, cut_off};
use crate::scenarios::redis::outage::{CLOCK_AHEAD, KILLED, STOPPED, WRITES_PAUSED};
use crate::scenarios::stage::{DOOR, Heir, OPERATION, SLACK, Stage, now, terms};

/// The faults that three of the servers have.
#[rustfmt::skip]
pub(super) fn items() -> Vec<Item> {
    let long = |row: &str, how: How, fault: Fault| {
        let what = format!("at three of five, for longer than the lease: {}", fault.what);
        OF.holds(row, &what, on_five(how, move |stage, nodes| three_gone(stage, nodes, fault)))
    };
    let taken = |row: &str, how: How, fault: Fault| {
        OF.fenced(row, &format!("at three of five: {}", fault.what), on_five(how, move |stage, nodes| {
            let some = nodes.some(stage, MAJORITY);
            // A renewal in between would have the first take it again before the last has lost it.
            let proxies = || nodes.all.iter().map(|redis| &redis.proxy);
            stage.is_taken_away(Heir::Waits, &some.told(fault), || {
                for proxy in proxies() {
                    proxy.hold_requests();
                }
                some.begin(fault);
                for proxy in proxies() {
                    proxy.release_requests();
                }
            });
        }))
    };
    let cut = |row: &str, fault: Fault, held_on: bool| {
        OF.holds(row, &format!("at three of five: {}", fault.what), on_five(PLAIN, move |stage, nodes| {
            let some = nodes.some(stage, MAJORITY);
            // Renewals that are executed go on until the holder gives up.
            let next = if held_on { stage.validity() + stage.next() } else { stage.next() };
            cut_off(stage, &some.0, fault, next);
        }))
    };
    vec![
        OF.holds("35-three-killed",
            "at three of five, for longer than the lease: kill -9; they are back with all of their data, and an operator vouches for them",
            on_five(KEPT, three_killed)),
        long("35-three-stopped", PLAIN, STOPPED),
        long("35-three-without-writes", PLAIN, WRITES_PAUSED),
        cut("35-three-cut-off", PARTITIONED, false),
        cut("35-three-do-not-answer", REPLIES_STOP, true),
        taken("35-three-clocks-ahead", CLOCKED, CLOCK_AHEAD),
        taken("35-deleted-at-three", PLAIN, DELETED),
        OF.holds("35-three-empty", "three of five were killed and are back empty; later an operator vouches for them",
            on_five(PLAIN, three_empty)),
        OF.holds("35-counted-by-few",
            "of the three that counted a grant, one has a clock that was ahead by two days while nobody asked, and two are stopped",
            on_five(CLOCKED, counted_by_few)),
        OF.holds("35-empty-beside-silent", "of the three at which it is held, one is back empty, and the other clients reach two others",
            on_five(PLAIN, empty_beside_silent)),
    ]
}

fn three_gone(stage: &mut Stage<'_>, nodes: &Nodes, fault: Fault) {
    let some = nodes.some(stage, MAJORITY);
    away_for_long(stage, &some, fault, || some.end(fault));
}

/// A copy counts for nothing, however whole it is, so nobody knows how long leases may stand.
fn three_killed(stage: &mut Stage<'_>, nodes: &Nodes) {
    let some = nodes.some(stage, MAJORITY);
    away_for_long(stage, &some, KILLED, || {
        some.end(KILLED);
        admit(&nodes.far());
    });
}

/// Nobody is granted anything meanwhile, and nobody hangs.
fn away_for_long(stage: &mut Stage<'_>, some: &Hit<'_>, fault: Fault, come_back: impl FnOnce()) {
    let c = stage.far();
    stage.warms_up(&c);
    let leave = || {
        some.begin(fault);
        c.asks("other", terms().wait(Duration::ZERO)).fails_unanswered(OPERATION + SLACK);
    };
    stage.is_away_for_long(leave, come_back);
    stage.free_due("other", stage.kept() + SLACK);
}

/// Nobody knows how long leases may stand, so all stay out, until somebody says that none does. Fences rise all the same.
fn three_empty(stage: &mut Stage<'_>, nodes: &Nodes) {
    let (a, b) = (stage.near(), stage.far());
    let first = a.takes(DOOR);
    first.runs(&stage.register);
    stage.some_time();
    let some = nodes.some(stage, MAJORITY);
    some.begin(EMPTIED);
    stage.fault(some.told(EMPTIED));
    stage.loss_due(stage.validity());
    first.lost();
    let second = b.asks(DOOR, terms());
    std::thread::sleep(stage.kept() + SLACK);
    stage.holds_true(!second.is_granted(), "servers vote that have lost their data");
    stage.fault("an operator vouches for them");
    stage.grant_due(RETRY + OPERATION + SLACK);
    admit(&nodes.far());
    second.granted();
    second.works(&stage.register);
    stage.is_left(&second);
}

/// Longest time to the next try at servers that do not vote.
const RETRY: Duration = Duration::from_secs(2);

/// Has A reach a majority and none of the others. Returns both.
fn reaches_a_majority<'a>(stage: &mut Stage<'_>, nodes: &'a Nodes) -> (Hit<'a>, Vec<&'a Redis>) {
    let reached = nodes.some(stage, MAJORITY);
    let others: Vec<&Redis> =
        nodes.all.iter().filter(|redis| !reached.0.iter().any(|reached| std::ptr::eq(*reached, *redis))).collect();
    for redis in &others {
        // Commands to them are lost, not late.
        redis.proxy.refuse();
        redis.proxy.cut();
    }
    stage.fault("A reaches three of five");
    (reached, others)
}

/// Without the empty one there is no majority for anybody else while the lease stands.
fn empty_beside_silent(stage: &mut Stage<'_>, nodes: &Nodes) {
    let (a, b) = (stage.near(), stage.far());
    stage.warms_up(&a);
    stage.warms_up(&b);
    let (held, others) = reaches_a_majority(stage, nodes);
    let first = a.takes(DOOR);
    first.runs(&stage.register);
    first.renewed(now());
    let second = b.asks(DOOR, terms());
    (EMPTIED.begin)(held.0[0]);
    stage.fault("one of them was killed and is back empty");
    stage.loss_due(stage.validity());
    stage.grant_due(stage.kept() + stage.next());
    first.lost();
    second.granted();
    second.works(&stage.register);
    for redis in &others {
        redis.proxy.heal();
    }
    stage.is_left(&second);
}

/// No counter ends by time, even while nobody asks. Otherwise the fence of the next grant would be below that of this one.
fn counted_by_few(stage: &mut Stage<'_>, nodes: &Nodes) {
    let (a, b) = (stage.near(), stage.far());
    stage.warms_up(&b);
    let (counting, others) = reaches_a_majority(stage, nodes);
    let first = a.takes(DOOR);
    first.works(&stage.register);
    stage.expect(&first.releases(), "Released");
    for redis in &others {
        redis.proxy.accept();
    }
    let [ahead, silent @ ..] = &counting.0[..] else { unreachable!("a majority") };
    ahead.server.shift_clock(2 * 86_400_000);
    stage.fault("A reaches the others again, and the clock of one of the three is ahead by two days");
    stage.some_time();
    ahead.server.shift_clock(0);
    for redis in silent {
        redis.server.stop();
    }
    stage.fault("the clock is right again, and two of the three are stopped");
    stage.grant_due(2 * OPERATION + SLACK);
    let second = b.takes(DOOR);
    second.works(&stage.register);
    for redis in silent {
        redis.server.cont();
    }
    second.renewed(now());
    stage.is_left(&second);
}
