//! Faults of a ZooKeeper, of the way to it, of sessions and of the servers of an ensemble.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tenure_testkit::worker::Terms;
use tenure_testkit::zookeeper::TICK;
use tenure_testkit::{Proxy, ZooKeeperEnsemble, ZooKeeperServer, wait_until};

use super::actor::Claim;
use super::anywhere;
use super::rows::{Played, Rows};
use super::server::{self, Breakable, Fixture, On, OwnServer, Target, by_order, plain, play};
use super::stage::{Access, DOOR, Heir, PATIENCE, SLACK, Stage, TTL, now, terms};
use crate::Item;

/// How long a waiter that is not heard of keeps its place.
const ENTRY: Duration = Duration::from_millis(2_500);

/// The servers miss a leader for two seconds, and then elect another.
const LONG: Duration = Duration::from_secs(8);

pub(super) fn items() -> Vec<Item> {
    let of = Rows { id: "zookeeper", fences: true };
    let shared = |row: On<ZooKeeper>| -> Played { Box::new(play(ZooKeeper::shared, row)) };
    let own = |row: On<ZooKeeper>| -> Played { Box::new(play(ZooKeeper::own, row)) };
    [
        anywhere::shared(of, &plain(ZooKeeper::shared)),
        server::links(of, &shared),
        server::stops(of, &own),
        vec![server::slow_link(of, &shared), server::reply_to_acquire_lost(of, &shared), server::killed(of, &own)],
        of_sessions(of, &shared),
        of_ensembles(of),
    ]
    .concat()
}

#[rustfmt::skip]
fn of_sessions(of: Rows, on: &dyn Fn(On<ZooKeeper>) -> Played) -> Vec<Item> {
    vec![
        of.fenced("01-session-ended", "the holder is stopped until the server has ended its session", on(session_ended)),
        of.fenced("29-deleted", "somebody deletes the node of the holder", on(deleted)),
        of.holds("44-node-in-front-gone", "somebody deletes the node of the first in line, and the next one is killed", on(nodes_in_front_gone)),
    ]
}

#[rustfmt::skip]
fn of_ensembles(of: Rows) -> Vec<Item> {
    vec![
        of.holds("13-leader-killed", "kill -9 of the leader, and it does not come back", play(Ensemble::start, leader_killed)),
        of.holds("14-leader-goes-on", "the leader is stopped until the others have another, and goes on", play(Ensemble::start, leader_goes_on)),
        of.holds("15-follower-cut-off", "the server of the holder does not hear the leader", play(Ensemble::start_near_follower, follower_cut_off)),
        of.holds("45-waiter-at-follower-killed", "kill -9 of the first in line, whose server does not lead", play(Ensemble::start_near_follower, waiter_killed)),
    ]
}

/// A path of its own in a ZooKeeper.
struct ZooKeeper {
    server: Arc<ZooKeeperServer>,
    proxy: Proxy,
    chroot: String,
}

impl ZooKeeper {
    fn new(server: Arc<ZooKeeperServer>) -> Self {
        let proxy = Proxy::start_opaque(server.addr());
        Self { server, proxy, chroot: ZooKeeperServer::fresh_chroot() }
    }

    /// On the server that rows share.
    fn shared() -> Self {
        static SHARED: OnceLock<Arc<ZooKeeperServer>> = OnceLock::new();
        Self::new(SHARED.get_or_init(|| Arc::new(ZooKeeperServer::start())).clone())
    }

    fn own() -> Self {
        Self::new(Arc::new(ZooKeeperServer::start()))
    }

    /// The nodes of the door in their order, each with its session.
    fn nodes(&self) -> Vec<(String, String)> {
        self.server.nodes(&path(&self.chroot, DOOR))
    }
}

/// One server, to be broken.
pub(super) fn own_server() -> OwnServer {
    OwnServer::of(ZooKeeper::own())
}

fn path(chroot: &str, name: &str) -> String {
    format!("/{chroot}/{name}")
}

/// Access by the nodes of a name.
fn access(near: String, far: String, nodes: impl Fn(&str) -> Vec<(String, String)> + Clone + 'static) -> Access {
    by_order(near, far, move |name| nodes(name).into_iter().map(|(node, _)| node).collect())
}

impl Fixture for ZooKeeper {
    /// A session lasts for a tick longer than its leases, and ends with a tick.
    const LATE: Duration = TICK.saturating_mul(2);

    fn access(self: Arc<Self>) -> Access {
        let url = |addr| ZooKeeperServer::url_at(addr, &self.chroot) + "?timeout=250ms";
        let (near, far) = (url(self.proxy.addr()), url(self.server.addr()));
        access(near, far, move |name| self.server.nodes(&path(&self.chroot, name)))
    }
}

impl Target for ZooKeeper {
    /// Its client connects the session again until a second after its end.
    const UNHEARD: Duration = TTL.saturating_add(TICK).saturating_add(Duration::from_secs(1));
}

impl Breakable for ZooKeeper {
    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    fn stop(&self) {
        self.server.stop();
    }

    fn cont(&self) {
        self.server.cont();
    }

    fn kill(&self) {
        self.server.kill();
    }

    fn restart(&self) {
        self.server.restart();
    }
}

/// An ensemble of three.
struct Ensemble {
    servers: ZooKeeperEnsemble,
    chroot: String,
    near: String,
    far: String,
    /// One that follows.
    follower: usize,
}

impl Ensemble {
    /// All go to any server.
    fn start() -> Self {
        let (servers, chroot) = (ZooKeeperEnsemble::start(), ZooKeeperServer::fresh_chroot());
        let all = servers.url(&chroot);
        let follower = servers.follower();
        Self { servers, chroot, near: all.clone(), far: all, follower }
    }

    /// Those who are near go to one that follows, and the others to the leader.
    fn start_near_follower() -> Self {
        let (servers, chroot) = (ZooKeeperEnsemble::start_with_links(), ZooKeeperServer::fresh_chroot());
        let follower = servers.follower();
        let (near, far) = (servers.servers[follower].url(&chroot), servers.leader().url(&chroot));
        Self { servers, chroot, near, far, follower }
    }
}

impl Fixture for Ensemble {
    const LATE: Duration = ZooKeeper::LATE;

    fn access(self: Arc<Self>) -> Access {
        let (near, far) = (self.near.clone(), self.far.clone());
        access(near, far, move |name| self.servers.leader().nodes(&path(&self.chroot, name)))
    }
}

/// As any pause, and the lab sees that the server did its part.
fn session_ended(stage: &mut Stage<'_>, on: &ZooKeeper) {
    let (a, _, first, second) = stage.begins();
    let (_, session) = on.nodes().swap_remove(0);
    stage.holds_true(on.server.has_session(&session), "the lab does not see its session");
    stage.some_time();
    a.stop();
    stage.fault("A is stopped");
    stage.grant_due(stage.next());
    second.granted();
    stage.holds_true(!on.server.has_session(&session), "its session has not ended");
    second.works(&stage.register);
    a.go_on();
    let since = stage.fault("A goes on");
    stage.is_stale(&first, since);
    stage.told_since(&first, since);
    stage.is_left(&second);
}

fn deleted(stage: &mut Stage<'_>, on: &ZooKeeper) {
    stage.is_taken_away(Heir::Waits, "the node of the holder is deleted", || on.server.delete(&on.nodes()[0].0));
}

/// A waiter whose node in front goes is neither granted while another holds, nor forgotten.
fn nodes_in_front_gone(stage: &mut Stage<'_>, on: &ZooKeeper) {
    let (a, waiting) = (stage.near(), [(); 3].map(|()| stage.far()));
    let first = a.takes(DOOR);
    first.works(&stage.register);
    let claims: Vec<Claim> = (1..).zip(&waiting).map(|(place, actor)| stage.queues(actor, &terms(), place)).collect();
    let [second, third, fourth] = &claims[..] else { unreachable!("three wait") };
    stage.keeps = true;
    stage.a_moment();
    on.server.delete(&on.nodes()[1].0);
    stage.fault("the node of the first in line is deleted");
    // It waits again, at the end.
    stage.lines_up(3);
    first.renewed(now());
    stage.holds_true(!third.is_granted(), "the door was granted to another");
    second.drops();
    waiting[0].settles();
    waiting[1].kill();
    stage.fault("that one has given up, and the next is killed");
    stage.lines_up(1);
    first.renewed(now());
    stage.holds_true(!fourth.is_granted(), "the door was granted to another");
    stage.ends_well(&first, fourth);
}

fn long() -> Terms {
    Terms::new(LONG)
}

/// A process takes the door for long, and another waits for it.
fn begins(stage: &mut Stage<'_>) -> (Claim, Claim) {
    let (a, b) = (stage.near(), stage.far());
    let first = a.asks(DOOR, long());
    first.granted();
    first.works(&stage.register);
    let second = stage.queues(&b, &long(), 1);
    stage.keeps = true;
    (first, second)
}

fn leader_killed(stage: &mut Stage<'_>, on: &Ensemble) {
    let (first, second) = begins(stage);
    on.servers.leader().kill();
    let since = stage.fault("the leader is killed");
    first.renewed(since);
    stage.holds_true(!second.is_granted(), "the door was granted to another");
    stage.ends_well(&first, &second);
}

/// It thinks that sessions have ended which the next leader has heard of.
fn leader_goes_on(stage: &mut Stage<'_>, on: &Ensemble) {
    let (first, second) = begins(stage);
    let former = on.servers.leader();
    former.stop();
    let since = stage.fault("the leader is stopped");
    first.renewed(since);
    std::thread::sleep((LONG + ZooKeeper::LATE).saturating_sub(Duration::from_nanos(now() - since)));
    stage.holds_true(on.servers.leader().addr() != former.addr(), "nobody else leads");
    former.cont();
    let since = stage.fault("it goes on");
    wait_until(PATIENCE, "it to follow", || former.four_letters("srvr").contains("Mode: follower"));
    first.renewed(since);
    first.renewed(now());
    stage.holds_true(!second.is_granted(), "the door was granted to another");
    stage.ends_well(&first, &second);
}

/// It goes on reading to the holder what was, while the leader ends the session.
fn follower_cut_off(stage: &mut Stage<'_>, on: &Ensemble) {
    let server = &on.servers.servers[on.follower];
    let mend = || {
        on.servers.mend(on.follower);
        wait_until(PATIENCE, "it to follow again", || server.is_ready());
    };
    let next = stage.next();
    stage.is_cut_off("the holder's server does not hear the leader", || on.servers.cut_off(on.follower), mend, next);
}

/// Those behind it wait for its entry to end, and not for the ttl of which it was to hold.
fn waiter_killed(stage: &mut Stage<'_>, _: &Ensemble) {
    let (holder, dying, behind) = (stage.far(), stage.near(), stage.far());
    let first = holder.asks(DOOR, long());
    first.granted();
    first.works(&stage.register);
    stage.queues(&dying, &long(), 1);
    let second = stage.queues(&behind, &long(), 2);
    stage.keeps = true;
    // All servers have told the leader by then how long they were asked to keep its session.
    std::thread::sleep(5 * TICK);
    stage.some_time();
    dying.kill();
    let since = stage.fault("the first in line is killed");
    stage.expect(&first.releases(), "Released");
    stage.granted_since(&second, since, ENTRY + ZooKeeper::LATE + SLACK);
    second.works(&stage.register);
    stage.is_left(&second);
}
