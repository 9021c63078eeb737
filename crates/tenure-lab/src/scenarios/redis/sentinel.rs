//! A master, its replicas and the sentinels that watch them: what a failover forgets.

use std::sync::Arc;
use std::time::Duration;

use tenure_testkit::worker::Terms;
use tenure_testkit::{RedisServer, SentinelGroup, wait_until};

use crate::Item;
use crate::item::Run;
use crate::scenarios::redis::failover::{self, FAILOVER, LONG};
use crate::scenarios::stage::{Access, DOOR, Stage, now, terms};
use crate::scenarios::{fenced, holds};

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

fn forgotten(stage: &mut Stage<'_>, group: &SentinelGroup) {
    let [master, replicas @ ..] = &group.servers[..] else { panic!("a group has servers") };
    // The second holder is not looked at any further: sentinels that saw both replicas stopped may promote the other one as well.
    failover::forgets(stage, master, &replicas.iter().collect::<Vec<_>>());
}

fn kept(stage: &mut Stage<'_>, group: &SentinelGroup) {
    let replicated = || wait_until(FAILOVER, "the replicas to have the grant", || group.servers[0].cli("WAIT 2 1000") == "2");
    failover::keeps(
        stage,
        replicated,
        || failover::killed(&group.servers[0]),
        || {
            group.wait_for_another(0);
        },
    );
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
    failover::cut_off(&group.servers[0], &group.servers[1..].iter().collect::<Vec<_>>());
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
