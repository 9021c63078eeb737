//! A cluster: slots that move under locks, and what a failover forgets.

use std::sync::Arc;

use tenure_testkit::history::nanos;
use tenure_testkit::{RedisCluster, RedisServer, wait_until};

use crate::Item;
use crate::item::Run;
use crate::scenarios::redis::failover::{self, FAILOVER};
use crate::scenarios::stage::{Access, DOOR, Stage, now, terms};
use crate::scenarios::{fenced, holds};

type Row = fn(&mut Stage<'_>, &Door);

/// A cluster, and where the door is in it.
struct Door {
    cluster: RedisCluster,
    slot: u16,
}

impl Door {
    fn new(replicas: usize) -> Self {
        // Each node serves its slots also while another is away.
        let cluster = RedisCluster::with(3, replicas, |node| node.arg("cluster-require-full-coverage", "no"));
        let mut door = Self { cluster, slot: 0 };
        door.slot = door.slot_of(DOOR);
        door
    }

    fn serving(&self) -> usize {
        self.cluster.serving(self.slot).expect("it is served")
    }

    fn slot_of(&self, name: &str) -> u16 {
        self.cluster.servers()[0].cli(&format!("CLUSTER KEYSLOT {name}")).parse().expect("a slot")
    }

    /// A name in another slot of the same node.
    fn neighbour(&self) -> String {
        let at = Some(self.serving());
        let is_there = |name: &String| self.slot_of(name) != self.slot && self.cluster.serving(self.slot_of(name)) == at;
        (0..100).map(|number| format!("gate{number}")).find(is_there).expect("every third name")
    }

    fn server(&self) -> &RedisServer {
        &self.cluster.servers()[self.serving()]
    }

    /// Its slot moves to the next master; `between` is called when its keys are at both.
    fn moves(&self, between: impl FnOnce()) {
        let from = self.serving();
        self.cluster.mover().move_slot(self.slot, from, (from + 1) % 3, between);
    }

    /// The replica of the master that serves it.
    fn replica_at(&self) -> usize {
        // Replicas come in the order of their masters.
        3 + self.serving()
    }

    fn replica(&self) -> &RedisServer {
        &self.cluster.servers()[self.replica_at()]
    }

    fn is_replicated(&self) {
        let replica = self.replica();
        wait_until(FAILOVER, "the replica to have the grant", || {
            let mut client = replica.connect().expect("it answers");
            client.command(&["READONLY"]).is_ok() && client.command(&["EXISTS", DOOR]).is_ok_and(|reply| reply == 1)
        });
    }

    fn is_taken_over(&self) {
        wait_until(FAILOVER, "a replica to take over", || self.cluster.serving(self.slot).is_some());
    }
}

pub(super) fn items() -> Vec<Item> {
    vec![
        holds(
            "cluster/36-slot-moves",
            "the slot moves to another node and on, under a holder and a waiter",
            on_cluster(0, moves),
        ),
        holds("cluster/36-slot-half-moved", "the move of the slot stops, and the name changes hands", on_cluster(0, half_moved)),
        fenced("cluster/13-failover", "the master is killed before its replica has the grant", on_cluster(1, forgotten)),
        holds(
            "cluster/13-failover-of-a-replicated-grant",
            "the master is killed when its replica has the grant",
            on_cluster(1, kept),
        ),
        holds("cluster/19-silent-master", "the master is stopped when its replica has the grant", on_cluster(1, silent)),
        holds(
            "cluster/19-moved-to-a-silent-node",
            "two slots move, one of them to a node that is stopped then: the lease in the other is kept",
            on_cluster(0, moved_to_silent),
        ),
    ]
}

fn on_cluster(replicas: usize, row: Row) -> impl Fn(&str) -> Run {
    move |id| {
        let id = id.to_owned();
        Arc::new(move |lab, seed| {
            let door = Door::new(replicas);
            let url = format!("{}?timeout=250ms", door.cluster.url());
            let access = Access { near: url.clone(), far: url, alone: false, look: None, line: None };
            let mut stage = Stage::new(lab, &id, seed, access);
            row(&mut stage, &door);
            stage.finish()
        })
    }
}

fn moves(stage: &mut Stage<'_>, door: &Door) {
    let (_, _, first, second) = stage.begins();
    stage.keeps = true;
    for _ in 0..3 {
        door.moves(|| first.renewed(now()));
        stage.fault("the slot has moved");
        first.renewed(now());
    }
    stage.ends_well(&first, &second);
}

fn half_moved(stage: &mut Stage<'_>, door: &Door) {
    let (a, _, first, second) = stage.begins();
    stage.keeps = true;
    door.moves(|| {
        stage.fault("the slot is half moved");
        first.renewed(now());
        stage.expect(&first.releases(), "Released");
        second.granted();
        second.renewed(now());
        let third = a.asks(DOOR, terms());
        stage.expect(&second.releases(), "Released");
        third.granted();
        stage.expect(&third.releases(), "Released");
    });
    stage.ends_with_another(&a);
}

fn forgotten(stage: &mut Stage<'_>, door: &Door) {
    let second = failover::forgets(stage, door.server(), &[door.replica()]);
    second.renewed(now());
    stage.is_left(&second);
}

fn kept(stage: &mut Stage<'_>, door: &Door) {
    failover::keeps(stage, || door.is_replicated(), || failover::killed(door.server()), || door.is_taken_over());
}

fn silent(stage: &mut Stage<'_>, door: &Door) {
    let (master, replica) = (door.server(), door.replica_at());
    let leave = || {
        master.stop();
        "the master is stopped"
    };
    let taken_over = || wait_until(FAILOVER, "the replica to take over", || door.cluster.serves(replica, door.slot));
    failover::keeps(stage, || door.is_replicated(), leave, taken_over);
    master.cont();
}

/// The renewals of both leases are redirected at the same moment.
fn moved_to_silent(stage: &mut Stage<'_>, door: &Door) {
    let gate = door.neighbour();
    let (a, _, first, second) = stage.begins();
    let other = a.takes(&gate);
    let from = door.serving();
    let target = (from + 2) % 3;
    door.cluster.mover().move_slot(door.slot_of(&gate), from, target, || ());
    door.moves(|| ());
    door.cluster.servers()[target].stop();
    let since = stage.fault("the slots have moved, and the node that has the other one is stopped");
    while now() - since < nanos(stage.kept()) {
        first.renewed(now());
    }
    other.lost();
    door.cluster.servers()[target].cont();
    stage.ends_well(&first, &second);
}
