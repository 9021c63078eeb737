//! Faults of an etcd, of the way to it, and of its members.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tenure_testkit::{EtcdCluster, Proxy, wait_until};

use super::anywhere;
use super::rows::{Played, Rows};
use super::server::{self, Breakable, Fixture, On, OwnServer, Target, by_order, plain, play};
use super::stage::{Access, DOOR, Heir, PATIENCE, Stage, TTL, now, terms};
use super::{fenced, holds};
use crate::Item;

/// So short that a lease of the lab outlives its leader.
const ELECTION: Duration = Duration::from_millis(200);

pub(super) fn items() -> Vec<Item> {
    let of = Rows { id: "etcd", fences: true };
    let shared = |row: On<Etcd>| -> Played { Box::new(play(Etcd::shared, row)) };
    let own = |row: On<Etcd>| -> Played { Box::new(play(Etcd::own, row)) };
    [
        anywhere::shared(of, &plain(Etcd::shared)),
        server::links(of, &shared),
        server::stops(of, &own),
        vec![server::slow_link(of, &shared), server::killed(of, &own)],
        vec![fenced("etcd/29-deleted", "somebody deletes the key of the holder", shared(deleted))],
        on_members(),
    ]
    .concat()
}

#[rustfmt::skip]
fn on_members() -> Vec<Item> {
    vec![
        holds("etcd/13-leader-killed", "kill -9 of the leader, and it does not come back", play(Etcd::three, leader_killed)),
        holds("etcd/14-leader-cut-off", "the other members do not hear the leader, and clients do", play(Etcd::three, leader_cut_off)),
        holds("etcd/14-leader-goes-on", "the leader is stopped for longer than the lease, and goes on", play(Etcd::three, leader_goes_on)),
        holds("etcd/15-follower-cut-off", "the member of the holder does not hear the other members", play(Etcd::three_near_follower, follower_cut_off)),
    ]
}

/// A prefix of its own in an etcd.
struct Etcd {
    cluster: Arc<EtcdCluster>,
    /// In front of its first member.
    proxy: Proxy,
    prefix: String,
    near: String,
    far: String,
}

impl Etcd {
    /// All go to any of its members.
    fn new(cluster: Arc<EtcdCluster>) -> Self {
        let (proxy, prefix) = (Proxy::start_opaque(cluster.addr(0)), EtcdCluster::fresh_prefix());
        let url = cluster.url(&prefix);
        Self { cluster, proxy, prefix, near: url.clone(), far: url }
    }

    /// Those who are near go by the proxy.
    fn behind_proxy(cluster: Arc<EtcdCluster>) -> Self {
        let etcd = Self::new(cluster);
        Self { near: EtcdCluster::url_at(etcd.proxy.addr(), &etcd.prefix), ..etcd }
    }

    /// On the one member that rows share.
    fn shared() -> Self {
        static SHARED: OnceLock<Arc<EtcdCluster>> = OnceLock::new();
        Self::behind_proxy(SHARED.get_or_init(Self::one).clone())
    }

    /// On one member of its own.
    fn own() -> Self {
        Self::behind_proxy(Self::one())
    }

    /// On three members of its own.
    fn three() -> Self {
        Self::new(Arc::new(EtcdCluster::of(3).election(ELECTION).links().start()))
    }

    /// As [`three`](Self::three). Those who are near go to one that follows, and the others to the leader.
    fn three_near_follower() -> Self {
        let etcd = Self::three();
        let leader = etcd.cluster.leader();
        let [near, far] =
            [follower_of(leader), leader].map(|member| EtcdCluster::url_at(etcd.cluster.addr(member), &etcd.prefix));
        Self { near, far, ..etcd }
    }

    fn one() -> Arc<EtcdCluster> {
        Arc::new(EtcdCluster::of(1).election(ELECTION).start())
    }

    /// The keys of a name with their values, in the order of their making.
    fn keys(&self, name: &str) -> Vec<(String, String)> {
        let folder = format!("{}{name}/", self.prefix);
        let said = self.cluster.ctl(&["get", "--prefix", &folder, "--sort-by=CREATE"]);
        let lines: Vec<_> = said.lines().map(str::to_owned).collect();
        lines.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
    }
}

/// One member, to be broken.
pub(super) fn own_server() -> OwnServer {
    OwnServer::of(Etcd::own())
}

/// A member of three that does not lead.
fn follower_of(leader: usize) -> usize {
    (leader + 1) % 3
}

/// The owner in a value of ours. A revision may stand behind it.
fn owner(value: &str) -> String {
    value.split('\t').nth(6).unwrap_or_default().to_owned()
}

impl Fixture for Etcd {
    /// A lease that nobody renews ends up to half a second late, and the revocation takes its time.
    const LATE: Duration = Duration::from_millis(750);

    fn access(self: Arc<Self>) -> Access {
        let timed = |url: &str| format!("{url}&timeout=250ms");
        by_order(timed(&self.near), timed(&self.far), move |name| {
            self.keys(name).into_iter().map(|(_, value)| owner(&value)).collect()
        })
    }
}

impl Target for Etcd {}

impl Breakable for Etcd {
    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    fn stop(&self) {
        self.cluster.stop(0);
    }

    fn cont(&self) {
        self.cluster.cont(0);
    }

    fn kill(&self) {
        self.cluster.kill(0);
    }

    fn restart(&self) {
        self.cluster.restart(0);
    }
}

fn deleted(stage: &mut Stage<'_>, on: &Etcd) {
    stage.is_taken_away(Heir::Waits, "the key of the holder is deleted", || {
        let (key, _) = on.keys(DOOR).swap_remove(0);
        on.cluster.ctl(&["del", &key]);
    });
}

fn leader_killed(stage: &mut Stage<'_>, on: &Etcd) {
    let etcd = &on.cluster;
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

fn leader_cut_off(stage: &mut Stage<'_>, on: &Etcd) {
    let etcd = &on.cluster;
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
fn leader_goes_on(stage: &mut Stage<'_>, on: &Etcd) {
    let etcd = &on.cluster;
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

/// It passes on what keeps the lease, and cannot answer. So the lease ends a ttl after the holder has given up.
fn follower_cut_off(stage: &mut Stage<'_>, on: &Etcd) {
    let link = on.cluster.link(follower_of(on.cluster.leader()));
    let all_serve = || on.cluster.etcdctl().args(["endpoint", "health"]).output().is_ok_and(|output| output.status.success());
    let mend = || {
        link.heal();
        wait_until(PATIENCE, "all members to serve", all_serve);
    };
    let next = stage.validity() + stage.next();
    stage.is_cut_off("the holder's member does not hear the others", || link.black_hole(), mend, next);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hold that has moved to another lease has the revision of its grant behind the owner.
    #[test]
    fn the_owner_is_no_revision() {
        for value in ["tenure:1\tholds\t1\t1\t30\t2\ttoken", "tenure:1\tholds\t1\t1\t30\t2\ttoken\t17"] {
            assert_eq!(owner(value), "token");
        }
    }
}
