//! Answers to the holder and to those who want the name, while one of three servers is at fault.

use std::time::Duration;

use super::nodes::{Nodes, OF, PLAIN, on};
use crate::Item;
use crate::scenarios::redis::Fault;
use crate::scenarios::redis::data::FLUSHED;
use crate::scenarios::redis::link::PARTITIONED;
use crate::scenarios::stage::{DOOR, OPERATION, SLACK, Stage, now, terms};

/// Number of servers.
const ALL: usize = 3;

const REFUSES: Fault = Fault {
    what: "it refuses connections",
    begin: |redis| {
        redis.proxy.refuse();
        redis.proxy.cut();
    },
    end: |redis| redis.proxy.heal(),
};

/// Below the operation timeout, so it answers after the others.
const FAR: Fault = Fault {
    what: "100 ms each way",
    begin: |redis| redis.proxy.delay(Duration::from_millis(100)),
    end: |redis| redis.proxy.heal(),
};

pub(super) fn items() -> Vec<Item> {
    let row = |row: &str, fault: Fault| {
        let what = format!("at one of three, for the holder and for those who wait: {}", fault.what);
        OF.holds(row, &what, on(PLAIN, ALL, move |stage, nodes| answers(stage, nodes, fault)))
    };
    vec![
        row("36-one-of-three-refuses", REFUSES),
        row("36-one-of-three-silent", PARTITIONED),
        row("36-one-of-three-far", FAR),
        row("36-one-of-three-does-not-vote", FLUSHED),
    ]
}

/// The name is held, and a wait with a limit ends with that; another name is granted; and a wait without a limit goes on.
fn answers(stage: &mut Stage<'_>, nodes: &Nodes, fault: Fault) {
    let (a, c) = (stage.near(), stage.near());
    let first = a.takes(DOOR);
    first.works(&stage.register);
    stage.warms_up(&c);
    let second = c.asks(DOOR, terms());
    stage.keeps = true;
    stage.a_moment();
    let some = nodes.some(stage, 1);
    some.begin(fault);
    let since = stage.fault(some.told(fault));
    c.asks(DOOR, terms().wait(Duration::from_secs(1))).failed("TimedOut");
    stage.grant_due_of("gate", OPERATION + SLACK);
    let gate = c.takes("gate");
    stage.expect(&gate.releases(), "Released");
    first.renewed(since);
    stage.hand_over(&first, &second);
    second.works(&stage.register);
    second.renewed(now());
    some.end(fault);
    stage.fault("the fault is over");
    second.renewed(now());
    stage.is_left(&second);
    stage.ends_with_another(&a);
}
