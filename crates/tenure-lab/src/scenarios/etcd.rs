//! Faults of the members of an etcd, and those of holders on it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tenure_testkit::{EtcdCluster, Proxy};

use super::anywhere;
use super::fixtures::{Played, Row};
use super::stage::{Access, DOOR, Line, Look, Stage, TTL, now, terms};
use super::{Rows, holds};
use crate::Item;
use crate::item::Run;

/// So short that a lease of the lab outlives its leader.
const ELECTION: Duration = Duration::from_millis(200);
/// A lease that nobody renews ends up to half a second late, and the revocation takes its time.
const LATE: Duration = Duration::from_millis(750);

pub(super) fn items() -> Vec<Item> {
    let on = |row: Row| -> Played { Box::new(on_one(row)) };
    [anywhere::shared(Rows { id: "etcd", fences: true }, &on), on_members()].concat()
}

#[rustfmt::skip]
fn on_members() -> Vec<Item> {
    vec![
        holds("etcd/13-leader-killed", "kill -9 of the leader, and it does not come back", on_three(leader_killed)),
        holds("etcd/14-leader-cut-off", "the other members do not hear the leader, and clients do", on_three(leader_cut_off)),
        holds("etcd/14-leader-goes-on", "the leader is stopped for longer than the lease, and goes on", on_three(leader_goes_on)),
    ]
}

/// A prefix of its own in an etcd.
struct Etcd {
    cluster: Arc<EtcdCluster>,
    prefix: String,
}

impl Etcd {
    /// The values of a name, in the order of their keys.
    fn values(&self, name: &str) -> Vec<String> {
        let folder = format!("{}{name}/", self.prefix);
        let said = self.cluster.ctl(&["get", "--prefix", &folder, "--sort-by=CREATE", "--print-value-only"]);
        said.lines().map(str::to_owned).collect()
    }

    fn access(self: &Arc<Self>, near: String, far: String) -> Access {
        let (looked_at, lined_up) = (Arc::clone(self), Arc::clone(self));
        let owner = |value: &String| value.rsplit('\t').next().map(|owner| (owner.to_owned(), false));
        let look: Look = Box::new(move |name| looked_at.values(name).first().and_then(owner));
        let waits = |count: usize| u64::try_from(count.saturating_sub(1)).unwrap_or(u64::MAX);
        let line: Line = Box::new(move |name| waits(lined_up.values(name).len()));
        Access { near, far, alone: false, look: Some(look), line: Some(line) }
    }
}

fn timed(url: &str) -> String {
    format!("{url}&timeout=250ms")
}

/// On the one member that all rows share, near by a proxy.
fn on_one(row: Row) -> impl Fn(&str) -> Run {
    move |id| {
        let id = id.to_owned();
        Arc::new(move |lab, seed| {
            static SHARED: OnceLock<Arc<EtcdCluster>> = OnceLock::new();
            let cluster = SHARED.get_or_init(|| Arc::new(EtcdCluster::of(1).election(ELECTION).start())).clone();
            let proxy = Proxy::start_opaque(cluster.addr(0));
            let etcd = Arc::new(Etcd { cluster, prefix: EtcdCluster::fresh_prefix() });
            let url = |addr| timed(&EtcdCluster::url_at(addr, &etcd.prefix));
            let mut stage = Stage::new(lab, &id, seed, etcd.access(url(proxy.addr()), url(etcd.cluster.addr(0))));
            stage.longer = LATE;
            row(&mut stage);
            stage.finish()
        })
    }
}

/// On three members of its own.
fn on_three(row: fn(&mut Stage<'_>, &EtcdCluster)) -> impl Fn(&str) -> Run {
    move |id| {
        let id = id.to_owned();
        Arc::new(move |lab, seed| {
            let cluster = Arc::new(EtcdCluster::of(3).election(ELECTION).links().start());
            let etcd = Arc::new(Etcd { cluster, prefix: EtcdCluster::fresh_prefix() });
            let url = timed(&etcd.cluster.url(&etcd.prefix));
            let mut stage = Stage::new(lab, &id, seed, etcd.access(url.clone(), url));
            stage.longer = LATE;
            row(&mut stage, &etcd.cluster);
            stage.finish()
        })
    }
}

fn leader_killed(stage: &mut Stage<'_>, etcd: &EtcdCluster) {
    let (.., first, second) = stage.begins();
    stage.keeps = true;
    let leader = etcd.leader();
    first.renewed(now());
    etcd.kill(leader);
    let since = stage.fault("the leader is killed");
    first.renewed(since);
    first.renewed(now());
    stage.ends_well(&first, &second);
    // Looks go to each of them.
    etcd.restart(leader);
}

fn leader_cut_off(stage: &mut Stage<'_>, etcd: &EtcdCluster) {
    let (.., first, second) = stage.begins();
    stage.keeps = true;
    let leader = etcd.leader();
    first.renewed(now());
    etcd.link(leader).black_hole();
    let since = stage.fault("the others do not hear the leader");
    first.renewed(since);
    std::thread::sleep(2 * TTL);
    first.renewed(now());
    etcd.link(leader).heal();
    let since = stage.fault("they hear it again");
    first.renewed(since);
    stage.ends_well(&first, &second);
}

/// It thinks that leases have ended which were renewed elsewhere. What it asks for is done by the leader of now.
fn leader_goes_on(stage: &mut Stage<'_>, etcd: &EtcdCluster) {
    let a = stage.near();
    let first = a.takes(DOOR);
    first.works(&stage.register);
    let b = stage.far();
    let second = b.asks(DOOR, terms());
    stage.keeps = true;
    for _ in 0..2 {
        let leader = etcd.leader();
        first.renewed(now());
        etcd.stop(leader);
        let since = stage.fault("the leader is stopped");
        first.renewed(since);
        std::thread::sleep(2 * TTL);
        etcd.cont(leader);
        let since = stage.fault("it goes on");
        std::thread::sleep(TTL);
        first.renewed(since);
        first.renewed(now());
        stage.holds_true(!second.is_granted(), "the door was granted to another");
    }
    stage.ends_well(&first, &second);
}
