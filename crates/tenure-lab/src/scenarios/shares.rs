//! Faults of those who hold a share: readers, writers, and holders of permits.

use std::time::Duration;

use tenure::Share;
use tenure_testkit::worker::Terms;

use super::actor::Claim;
use super::fixtures::on_each;
use super::rows::{Played, Row, Rows};
use super::stage::{DOOR, NEXT, OPERATION, SLACK, Stage, TTL, now, terms};
use crate::Item;

pub(super) fn items() -> Vec<Item> {
    on_each(rows)
}

pub(super) fn rows(of: Rows, on: &dyn Fn(Row) -> Played) -> Vec<Item> {
    vec![
        of.holds("48-reader-killed", "one of two readers is killed while a writer waits", on(reader_killed)),
        of.holds("48-stream-of-readers", "readers come all the time while a writer waits", on(stream_of_readers)),
        of.holds("48-permits-after-a-crash", "a holder of permits is killed while others wait", on(permits_after_a_crash)),
        of.holds("49-two-kinds", "one name is asked for as locks of other kinds", on(two_kinds)),
    ]
}

fn reads() -> Terms {
    terms().share(Share::READ)
}

fn writes() -> Terms {
    terms().share(Share::WRITE)
}

fn permits(weight: u32) -> Terms {
    terms().share(Share::permits(weight, PERMITS).expect("a share"))
}

const PERMITS: u32 = 3;

/// The dead one costs its ttl, the other one as long as it reads.
fn reader_killed(stage: &mut Stage<'_>) {
    stage.recorder.set_capacity(u32::MAX);
    let (a, b, c) = (stage.near(), stage.far(), stage.far());
    let readers = [a.asks(DOOR, reads()), b.asks(DOOR, reads())];
    for reader in &readers {
        reader.granted();
    }
    let writer = stage.queues(&c, &writes(), 1);
    stage.keeps = true;
    a.kill();
    stage.fault("A is killed");
    if stage.rng.bool() {
        std::thread::sleep(TTL + SLACK);
        readers[1].renewed(now());
        stage.holds_true(!writer.is_granted(), "it writes while another reads");
        stage.grant_due(OPERATION + SLACK);
    } else {
        stage.grant_due(NEXT);
    }
    stage.expect(&readers[1].releases(), "Released");
    writer.granted();
    writer.works(&stage.register);
    writer.renewed(now());
    stage.is_left(&writer);
}

/// They wait behind it.
fn stream_of_readers(stage: &mut Stage<'_>) {
    stage.recorder.set_capacity(u32::MAX);
    let (a, b, c) = (stage.near(), stage.far(), stage.far());
    let first = a.asks(DOOR, reads());
    first.granted();
    let writer = stage.queues(&b, &writes(), 1);
    stage.keeps = true;
    stage.fault("readers come all the time");
    let mut late: Vec<Claim> = Vec::new();
    for actor in [&a, &c].into_iter().cycle().take(20) {
        late.push(actor.asks(DOOR, reads()));
        std::thread::sleep(Duration::from_millis(stage.rng.u64(10..50)));
    }
    stage.holds_true(!late.iter().any(Claim::is_granted), "a reader has passed the writer");
    stage.grant_due(OPERATION + SLACK);
    stage.expect(&first.releases(), "Released");
    writer.granted();
    stage.holds_true(!late.iter().any(Claim::is_granted), "a reader has passed the writer");
    writer.works(&stage.register);
    writer.renewed(now());
    stage.grant_due(OPERATION + SLACK);
    stage.expect(&writer.releases(), "Released");
    for reader in &late {
        reader.granted();
    }
    for reader in &late {
        stage.expect(&reader.releases(), "Released");
    }
    stage.free_due(DOOR, SLACK);
}

/// They come back with the ttl, and go to those who wait in their order.
fn permits_after_a_crash(stage: &mut Stage<'_>) {
    stage.recorder.set_capacity(PERMITS);
    let (a, b, c, d) = (stage.near(), stage.far(), stage.far(), stage.far());
    let (two, one) = (a.asks(DOOR, permits(2)), b.asks(DOOR, permits(1)));
    two.granted();
    one.granted();
    let next = stage.queues(&c, &permits(2), 1);
    let last = stage.queues(&d, &permits(1), 2);
    stage.keeps = true;
    stage.some_time();
    a.kill();
    stage.fault("A is killed");
    stage.grant_due(NEXT);
    next.granted();
    stage.holds_true(!last.is_granted(), "four permits of three");
    one.renewed(now());
    stage.grant_due(OPERATION + SLACK);
    stage.expect(&one.releases(), "Released");
    last.granted();
    last.renewed(now());
    stage.expect(&next.releases(), "Released");
    stage.is_left(&last);
}

/// A client that asks gets an error, whether the name is held or waited for. The holder notices nothing.
fn two_kinds(stage: &mut Stage<'_>) {
    // Of the largest kind: weights of another are compared with nothing.
    stage.recorder.set_capacity(u32::MAX);
    let (a, b, c) = (stage.near(), stage.far(), stage.far());
    stage.keeps = true;
    // Two sizes of semaphores are two kinds.
    let two = terms().share(Share::permits(2, 7).expect("a share"));
    for (kind, others) in [(terms(), [two.clone(), permits(1)]), (writes(), [two, permits(3)]), (permits(3), [terms(), writes()])]
    {
        let first = a.asks(DOOR, kind.clone());
        first.granted();
        for other in &others {
            c.asks(DOOR, other.clone()).failed("Mismatch");
        }
        let second = stage.queues(&b, &kind, 1);
        for other in &others {
            c.asks(DOOR, other.clone()).failed("Mismatch");
        }
        stage.fault("it was asked for as locks of other kinds");
        first.renewed(now());
        stage.hand_over(&first, &second);
        c.settles();
        stage.is_left(&second);
    }
}
