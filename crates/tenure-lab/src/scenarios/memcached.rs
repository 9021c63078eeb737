//! Faults of a memcached and of the way to it, and all in which it forgets.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tenure_testkit::{MemcachedServer, Proxy, wait_until};

use super::actor::Claim;
use super::anywhere;
use super::rows::{Played, Rows};
use super::scheme::in_record;
use super::server::{self, Breakable, Fixture, On, OwnServer, Seen, Target, by_record, plain, play};
use super::stage::{Access, DOOR, Heir, PATIENCE, Stage, TTL, now, terms};
use crate::Item;

/// So small that it is soon full.
const SMALL: [&str; 4] = ["-m", "1", "-I", "512k"];

pub(super) fn items() -> Vec<Item> {
    let of = Rows { id: "memcached", fences: true };
    let shared = |row: On<Memcached>| -> Played { Box::new(play(Memcached::shared, row)) };
    let own = |row: On<Memcached>| -> Played { Box::new(play(Memcached::own, row)) };
    [
        anywhere::shared(of, &plain(Memcached::shared)),
        server::links(of, &shared),
        vec![server::slow_link(of, &shared), server::reply_to_acquire_lost(of, &shared)],
        server::stops(of, &own),
        forgets(of, &shared, &own),
    ]
    .concat()
}

#[rustfmt::skip]
fn forgets(of: Rows, shared: &dyn Fn(On<Memcached>) -> Played, own: &dyn Fn(On<Memcached>) -> Played) -> Vec<Item> {
    vec![
        of.fenced("11-killed-without-persistence", "kill -9 of the server, which is back empty", own(killed_and_empty)),
        of.holds("13-one-of-three-killed", "kill -9 of one of three servers, which is back later", play(Memcached::three, one_killed)),
        of.fenced("27-evicted", "the server evicts the name", play(Memcached::small, evicted)),
        of.holds("28-out-of-memory", "the server has no memory left for longer than the lease, and evicts nothing",
            play(Memcached::keeps, full)),
        of.fenced("29-deleted", "somebody deletes the name", shared(deleted)),
        of.fenced("29-flushed", "flush_all", own(flushed)),
    ]
}

/// A prefix of its own in a memcached, or in several.
struct Memcached {
    servers: Vec<Arc<MemcachedServer>>,
    /// In front of the first.
    proxy: Proxy,
    prefix: String,
}

impl Memcached {
    fn new(servers: Vec<Arc<MemcachedServer>>) -> Self {
        let proxy = Proxy::start_opaque(servers[0].addr());
        Self { servers, proxy, prefix: MemcachedServer::fresh_prefix() }
    }

    fn with(arguments: &[&str]) -> Self {
        let builder = arguments.iter().fold(MemcachedServer::builder(), |builder, argument| builder.arg(argument));
        Self::new(vec![Arc::new(builder.start())])
    }

    /// On the server that rows share.
    fn shared() -> Self {
        static SHARED: OnceLock<Arc<MemcachedServer>> = OnceLock::new();
        Self::new(vec![SHARED.get_or_init(|| Arc::new(MemcachedServer::start())).clone()])
    }

    fn own() -> Self {
        Self::with(&[])
    }

    /// On a small server that evicts what was written first. As it comes, it would spare what is read again and again, as a lock
    /// is that somebody renews.
    fn small() -> Self {
        Self::with(&[&SMALL[..], &["-o", "no_lru_maintainer"]].concat())
    }

    /// On a small server that evicts nothing.
    fn keeps() -> Self {
        Self::with(&[&SMALL[..], &["-M"]].concat())
    }

    fn three() -> Self {
        Self::new([(); 3].map(|()| Arc::new(MemcachedServer::start())).to_vec())
    }

    fn server(&self) -> &MemcachedServer {
        &self.servers[0]
    }

    fn key(&self, name: &str) -> String {
        format!("{}{}", self.prefix, name.replace(' ', "%20"))
    }

    /// The server that has the item of a name.
    fn server_of(&self, name: &str) -> &MemcachedServer {
        let has = |server: &&Arc<MemcachedServer>| server.ask(&format!("me {}", self.key(name)), Some(1)) != ["EN"];
        self.servers.iter().find(has).expect("a server has the item")
    }

    /// Those who hold a name or wait for it, as [`in_record`] has them.
    fn look(&self, name: &str) -> Vec<Seen> {
        let of_server = |server: &Arc<MemcachedServer>| {
            let lines = server.ask(&format!("get {}", self.key(name)), None);
            let now = i64::try_from(server.stat("time")).expect("a sane clock") * 1_000_000;
            in_record(lines.get(1..).unwrap_or_default().join("\n").as_str(), now)
        };
        self.servers.iter().flat_map(of_server).collect()
    }
}

/// One server, to be broken.
pub(super) fn own_server() -> OwnServer {
    OwnServer::of(Memcached::own())
}

impl Fixture for Memcached {
    const LATE: Duration = Duration::from_millis(5_500);

    fn access(self: Arc<Self>) -> Access {
        let others = self.servers[1..].iter().map(|server| format!(",{}", server.addr())).collect::<Vec<_>>().concat();
        let url = |addr| format!("memcached://{addr}{others}?prefix={}&timeout=250ms", self.prefix);
        // Of several, clients have to name all alike.
        let first = self.server().addr();
        let (near, far) = (url(if others.is_empty() { self.proxy.addr() } else { first }), url(first));
        by_record(near, far, move |name| self.look(name))
    }
}

impl Target for Memcached {}

impl Breakable for Memcached {
    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    fn stop(&self) {
        self.server().stop();
    }

    fn cont(&self) {
        self.server().cont();
    }

    fn kill(&self) {
        self.server().kill();
    }

    fn restart(&self) {
        self.server().restart();
    }
}

/// Fences count on from the second in which a server was started.
fn is_older_than_a_second(server: &MemcachedServer) {
    // It counts from two seconds before its start.
    wait_until(PATIENCE, "the server to be older than a second", || server.stat("uptime") >= 4);
}

fn killed_and_empty(stage: &mut Stage<'_>, on: &Memcached) {
    is_older_than_a_second(on.server());
    stage.is_taken_away(Heir::Comes, "the server was killed and is back empty", || on.server().restart());
}

fn evicted(stage: &mut Stage<'_>, on: &Memcached) {
    stage.is_taken_away(Heir::Comes, "the name is evicted", || on.server().evict(&on.key(DOOR)));
}

fn deleted(stage: &mut Stage<'_>, on: &Memcached) {
    stage.is_taken_away(Heir::Waits, "the name is deleted", || {
        let answer = on.server().ask(&format!("delete {}", on.key(DOOR)), Some(1));
        assert_eq!(answer, ["DELETED"]);
    });
}

fn flushed(stage: &mut Stage<'_>, on: &Memcached) {
    stage.is_taken_away(Heir::Comes, "flush_all", || on.server().flush_all());
}

/// The server refuses every write: no lock is renewed or granted, and held ones are not freed.
fn full(stage: &mut Stage<'_>, on: &Memcached) {
    let c = stage.far();
    let filling = std::cell::OnceCell::new();
    let fill = || {
        let _ = filling.set(on.server().fill());
        let told = c.asks("other", terms().wait(Duration::ZERO)).failed("Unavailable");
        assert!(told.contains("out of memory") && told.contains("; "), "{told}");
    };
    stage.is_away_for_long(fill, || on.server().empty(filling.get().expect("it was filled")));
}

/// A name of a server that is lost cannot be had. Those of the others go on, and nothing moves to them.
fn one_killed(stage: &mut Stage<'_>, on: &Memcached) {
    let (a, b) = (stage.near(), stage.far());
    let door = a.takes(DOOR);
    door.runs(&stage.register);
    let lost_server = on.server_of(DOOR);
    let elsewhere = |(name, _): &(String, Claim)| on.server_of(name).addr() != lost_server.addr();
    let mut gates = (0..).map(|number| format!("gate {number}")).map(|name| (name.clone(), a.takes(&name)));
    let (name, gate) = gates.find(elsewhere).expect("names are spread");
    is_older_than_a_second(lost_server);
    let waits = b.asks(DOOR, terms());
    stage.some_time();
    lost_server.kill();
    stage.fault(format!("the server of the {DOOR} is killed, and not that of {name}"));
    stage.loss_due(stage.validity());
    b.asks(DOOR, terms().wait(Duration::ZERO)).failed("Unreachable");
    let lost = door.lost();
    stage.holds_true(door.last_step() <= Some(lost), "the guard let a step go on");
    gate.renewed(lost);
    std::thread::sleep(TTL);
    stage.holds_true(!waits.is_granted(), "the door was granted at another server");
    let since = now();
    lost_server.restart();
    stage.fault("it is back");
    stage.grant_due_since(since, stage.next());
    waits.granted();
    waits.works(&stage.register);
    gate.renewed(now());
    stage.expect(&gate.releases(), "Released");
    stage.is_left(&waits);
}
