//! Faults of one or two of five servers, which cost nobody a lease.

use std::time::Duration;

use tenure_testkit::Proxy;
use tenure_testkit::history::nanos;

use super::nodes::{ALL, CLOCKED, How, KEPT, LOADS_SLOWLY, Nodes, OF, PLAIN, UNPRIVILEGED, on_five};
use crate::Item;
use crate::scenarios::redis::Fault;
use crate::scenarios::redis::access::{NAME_FORBIDDEN, SCRIPTS_FORBIDDEN};
use crate::scenarios::redis::data::{DELETED, EMPTIED, EVICTED, FLUSHED, OVERWRITTEN};
use crate::scenarios::redis::link::{CHURN, CLIENTS_KILLED, PARTITIONED, REPLIES_STOP, REQUESTS_STOP, SLOW};
use crate::scenarios::redis::outage::{
    BUSY, CANNOT_SAVE, CLOCK_AHEAD, CLOCK_BACK, KILLED, LOADING, NO_MEMORY, SCRIPTS_FLUSHED, STOPPED, TAKES_NO_WRITES,
    WRITES_PAUSED,
};
use crate::scenarios::stage::{DOOR, OPERATION, SLACK, Stage, now, terms};

/// The faults that one or two of the servers have.
#[rustfmt::skip]
pub(super) fn items() -> Vec<Item> {
    let held = |row: &str, how: How, fault: Fault| {
        OF.holds(row, &format!("at one or two of five: {}", fault.what), on_five(how, move |stage, nodes| held(stage, nodes, fault)))
    };
    let mut all: Vec<Item> = vec![
        OF.holds("05-request-lost", "at one or two of five, a command of each kind of call never arrives",
            on_five(PLAIN, |stage, nodes| each_call_loses(stage, nodes, Proxy::drop_request, "request"))),
        OF.holds("06-reply-lost", "at one or two of five, a command of each kind of call is executed and its reply is lost",
            on_five(PLAIN, |stage, nodes| each_call_loses(stage, nodes, Proxy::swallow_reply, "reply"))),
        OF.holds("07-late-acquire", "at one or two of five, an acquire arrives when its release was executed",
            on_five(PLAIN, late_acquire)),
        OF.holds("07-late-acquire-unprivileged",
            "at one or two of five, an acquire arrives when its release was executed, of a user who may not end connections",
            on_five(UNPRIVILEGED, late_acquire)),
        OF.holds("07-stopped-server", "one or two of five are stopped, the acquisition is dropped, they go on",
            on_five(PLAIN, stopped_before_acquire)),
        OF.holds("08-late-renewal", "at one or two of five, a renewal arrives after the release and the next grant",
            on_five(UNPRIVILEGED, late_renewal)),
        held("10-killed", KEPT, KILLED),
        held("11-killed-without-persistence", PLAIN, EMPTIED),
        OF.holds("11-older-copy", "one or two of five come back with data from before the grant", on_five(PLAIN, older_copy)),
        held("15-partition", PLAIN, PARTITIONED),
        held("16-replies-stop", PLAIN, REPLIES_STOP),
        held("16-requests-stop", PLAIN, REQUESTS_STOP),
        held("17-slow-link", PLAIN, SLOW),
        held("18-churn", PLAIN, CHURN),
        held("18-clients-killed", PLAIN, CLIENTS_KILLED),
        held("19-stopped", PLAIN, STOPPED),
        held("20-busy", PLAIN, BUSY),
        held("20-writes-paused", PLAIN, WRITES_PAUSED),
        held("21-clock-ahead", CLOCKED, CLOCK_AHEAD),
        held("22-clock-back", CLOCKED, CLOCK_BACK),
        held("27-evicted", PLAIN, EVICTED[1]),
        held("28-out-of-memory", PLAIN, NO_MEMORY),
        held("29-deleted", PLAIN, DELETED),
        held("29-flushed", PLAIN, FLUSHED),
        held("29-overwritten", PLAIN, OVERWRITTEN),
        held("30-scripts-flushed", PLAIN, SCRIPTS_FLUSHED),
        held("31-cannot-save", PLAIN, CANNOT_SAVE),
        held("31-loading", LOADS_SLOWLY, LOADING),
        held("32-name-forbidden", UNPRIVILEGED, NAME_FORBIDDEN),
        held("32-scripts-forbidden", UNPRIVILEGED, SCRIPTS_FORBIDDEN),
    ];
    let rows = ["31-read-only", "31-no-primary", "31-no-replicas"];
    all.extend(rows.into_iter().zip(TAKES_NO_WRITES).map(|(row, fault)| held(row, PLAIN, fault)));
    all
}

/// The holder keeps what it has, other names can be taken, and the one who waits is served.
fn held(stage: &mut Stage<'_>, nodes: &Nodes, fault: Fault) {
    let (a, _, first, second) = stage.begins();
    let some = nodes.one_or_two(stage);
    stage.keeps = true;
    stage.a_moment();
    some.begin(fault);
    let since = stage.fault(some.told(fault));
    let long = stage.rng.bool();
    first.renewed(since);
    while long && now() - since < nanos(stage.kept()) {
        first.renewed(now());
    }
    stage.grant_due_of("gate", OPERATION + SLACK);
    let gate = a.takes("gate");
    stage.expect(&gate.releases(), "Released");
    let early = stage.rng.bool();
    if early {
        stage.hand_over(&first, &second);
        // The end of a fault can be one more: a clock that jumps back jumps forward then. The lease is at all nodes by now.
        second.renewed(now());
    }
    some.end(fault);
    stage.fault("the fault is over");
    if !early {
        stage.hand_over(&first, &second);
    }
    second.renewed(now());
    stage.is_left(&second);
    stage.ends_with_another(&a);
}

/// Loses one of the commands of an acquire, a renewal and a release in turn, at some servers. The others decide.
fn each_call_loses(stage: &mut Stage<'_>, nodes: &Nodes, lose: fn(&Proxy, u64), what: &str) {
    let (a, b) = (stage.near(), stage.far());
    stage.keeps = true;
    // So that the servers know the scripts, and no call takes two tries.
    stage.warms_up(&a);
    let lose = |stage: &mut Stage<'_>, call: &str| {
        let some = nodes.one_or_two(stage);
        some.0.iter().for_each(|redis| lose(&redis.proxy, 1));
        stage.fault(format!("the {what} of the next {call} is lost at {} of {ALL}", some.0.len()))
    };
    lose(stage, "acquire");
    stage.grant_due(OPERATION + SLACK);
    let first = a.takes(DOOR);
    first.works(&stage.register);
    let second = b.asks(DOOR, terms());
    stage.some_time();
    let since = lose(stage, "renewal");
    first.renewed(since);
    first.renewed(now());
    lose(stage, "release");
    stage.hand_over(&first, &second);
    nodes.all.iter().for_each(|redis| redis.proxy.heal());
    stage.is_left(&second);
}

/// A's commands to some servers are held, while A takes the door at the others and gives it up.
fn late_acquire(stage: &mut Stage<'_>, nodes: &Nodes) {
    let (a, b) = (stage.near(), stage.far());
    stage.warms_up(&a);
    let some = nodes.one_or_two(stage);
    some.0.iter().for_each(|redis| redis.proxy.hold_present_requests());
    stage.fault(format!("what A sends to {} of {ALL} is held", some.0.len()));
    stage.grant_due(OPERATION + SLACK);
    let first = a.takes(DOOR);
    stage.expect(&first.releases(), "Released");
    some.0.iter().for_each(|redis| redis.proxy.release_requests());
    stage.fault("it arrives");
    stage.grant_due(2 * OPERATION + SLACK);
    let second = b.takes(DOOR);
    second.works(&stage.register);
    a.settles();
    stage.is_left(&second);
}

/// They execute what they were sent when they go on, and the clean-up after it.
fn stopped_before_acquire(stage: &mut Stage<'_>, nodes: &Nodes) {
    let (a, b) = (stage.near(), stage.far());
    stage.warms_up(&a);
    let some = nodes.one_or_two(stage);
    some.begin(STOPPED);
    stage.fault(some.told(STOPPED));
    let ghost = a.asks(DOOR, terms());
    std::thread::sleep(Duration::from_micros(stage.rng.u64(0..200_000)));
    ghost.drops();
    stage.grant_due(2 * OPERATION + SLACK);
    let second = b.takes(DOOR);
    some.end(STOPPED);
    stage.fault("they go on");
    a.settles();
    second.renewed(now());
    stage.is_left(&second);
}

/// It neither revives what was released nor prolongs the lease of the next holder.
fn late_renewal(stage: &mut Stage<'_>, nodes: &Nodes) {
    let (a, b) = (stage.near(), stage.far());
    stage.keeps = true;
    let first = a.takes(DOOR);
    first.renewed(now());
    let some = nodes.one_or_two(stage);
    some.0.iter().for_each(|redis| redis.proxy.hold_present_requests());
    let since = stage.fault(format!("what A sends to {} of {ALL} is held", some.0.len()));
    first.renewed(since);
    stage.expect(&first.releases(), "Released");
    stage.grant_due(OPERATION + SLACK);
    let second = b.asks(DOOR, terms().fixed());
    second.granted();
    let token = second.token();
    let left = || {
        nodes
            .all
            .iter()
            .filter_map(|redis| redis.look(DOOR))
            .filter(|held| held.value == token)
            .filter_map(|held| held.left)
            .max()
    };
    let (before, looked) = (left(), now());
    some.0.iter().for_each(|redis| redis.proxy.release_requests());
    stage.fault("it arrives");
    a.settles();
    let passed = Duration::from_nanos(now() - looked);
    let most = before.map(|left| left.saturating_sub(passed) + Duration::from_millis(20));
    let after = left();
    stage.holds_true(after.is_some() && after <= most, &format!("{before:?} and {passed:?} later {after:?} were left"));
    stage.is_left(&second);
}

/// They have forgotten the grant, and do not vote until it cannot stand any more.
fn older_copy(stage: &mut Stage<'_>, nodes: &Nodes) {
    let (a, b) = (stage.near(), stage.far());
    stage.warms_up(&b);
    let some = nodes.one_or_two(stage);
    let copies: Vec<_> = some.0.iter().map(|redis| redis.server.snapshot()).collect();
    let first = a.takes(DOOR);
    first.works(&stage.register);
    let second = b.asks(DOOR, terms());
    stage.keeps = true;
    some.0.iter().zip(&copies).for_each(|(redis, copy)| redis.server.restart_with(copy));
    let since = stage.fault(format!("{} of {ALL} are back with data from before the grant", some.0.len()));
    first.renewed(since);
    first.renewed(now());
    stage.hand_over(&first, &second);
    second.works(&stage.register);
    stage.is_left(&second);
}
