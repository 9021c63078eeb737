//! A master, its replicas and the sentinels that watch them: what a failover forgets.

use std::sync::Arc;
use std::time::Duration;

use tenure_testkit::worker::Terms;
use tenure_testkit::{RedisServer, SentinelGroup, wait_until};

use crate::Item;
use crate::item::Run;
use crate::scenarios::stage::{Access, DOOR, Stage, now, terms};
use crate::scenarios::{fenced, holds};

/// How long the sentinels of a group take to promote a replica.
const FAILOVER: Duration = Duration::from_secs(15);

/// Long enough for a lease to outlive a failover without a renewal.
const LONG: Duration = Duration::from_secs(30);

#[rustfmt::skip]
pub(super) fn items() -> Vec<Item> {
    vec![
        fenced("sentinel/13-failover", "the master is killed before any replica has the grant", on_group(forgotten)),
        holds("sentinel/13-failover-of-a-replicated-grant", "the master is killed when the replicas have the grant", on_group(kept)),
        holds("sentinel/13-failover-of-a-confirmed-grant", "the master is killed while no replica can confirm a grant (durability=replicas:2)",
            on_group(unconfirmed)),
    ]
}

fn on_group(row: fn(&mut Stage<'_>, &SentinelGroup)) -> impl Fn(&str) -> Run {
    move |id| {
        let id = id.to_owned();
        Arc::new(move |lab, seed| {
            let group = SentinelGroup::start();
            let url = format!("{}?timeout=250ms", group.url());
            let access = Access { near: url.clone(), far: url, alone: false, look: None, line: None };
            let mut stage = Stage::new(lab, &id, seed, access);
            row(&mut stage, &group);
            stage.finish()
        })
    }
}

/// The replicas are stopped before the grant, and what the master has sent them is lost with it.
fn forgotten(stage: &mut Stage<'_>, group: &SentinelGroup) {
    let (a, b) = (stage.near(), stage.far());
    stage.warms_up(&a);
    stage.warms_up(&b);
    group.servers[1..].iter().for_each(RedisServer::stop);
    // Else their kernels have the writes, and they read them when they go on.
    group.servers[0].cli("CLIENT KILL TYPE replica");
    let first = a.asks(DOOR, Terms::new(LONG));
    first.granted();
    first.works(&stage.register);
    let second = b.asks(DOOR, terms());
    let since = now();
    group.servers[0].kill();
    stage.fault("the master is killed");
    group.servers[1..].iter().for_each(RedisServer::cont);
    stage.grant_due_since(since, FAILOVER);
    stage.loss_due_since(since, FAILOVER + LONG / 3);
    let granted = second.granted();
    second.works(&stage.register);
    stage.is_stale(&first, granted);
    first.lost();
    // Not looked at any further: sentinels that saw both replicas stopped may promote the other one as well.
}

/// Nothing is lost, and the holder goes on at the promoted replica.
fn kept(stage: &mut Stage<'_>, group: &SentinelGroup) {
    let (a, b) = (stage.near(), stage.far());
    let first = a.asks(DOOR, Terms::new(LONG));
    first.granted();
    first.works(&stage.register);
    let second = b.asks(DOOR, terms());
    stage.keeps = true;
    wait_until(FAILOVER, "the replicas to have the grant", || group.servers[0].cli("WAIT 2 1000") == "2");
    group.servers[0].kill();
    stage.fault("the master is killed");
    group.wait_for_another(0);
    first.renewed(now());
    stage.ends_well(&first, &second);
}

/// As [`forgotten`], with grants that have to be confirmed. None is made, so the failover has nothing to forget.
fn unconfirmed(stage: &mut Stage<'_>, group: &SentinelGroup) {
    let url = format!("{}?timeout=4s&durability=replicas:2", group.url());
    // The first looks in the end whether the name is free, and no grant is confirmed by then.
    let (b, a) = (stage.far(), stage.actor(&url));
    stage.warms_up(&b);
    let before = a.asks("before", Terms::new(LONG));
    before.granted();
    stage.expect(&before.releases(), "Released");
    group.servers[1..].iter().for_each(RedisServer::stop);
    group.servers[0].cli("CLIENT KILL TYPE replica");
    let told = a.asks(DOOR, Terms::new(LONG).wait(Duration::ZERO)).failed("Unavailable");
    stage.holds_true(told.contains("of 2 replicas"), &told);
    let since = now();
    group.servers[0].kill();
    stage.fault("the master is killed");
    group.servers[1..].iter().for_each(RedisServer::cont);
    let second = b.asks(DOOR, terms());
    stage.grant_due_since(since, FAILOVER);
    second.granted();
    second.works(&stage.register);
    stage.is_left(&second);
}
