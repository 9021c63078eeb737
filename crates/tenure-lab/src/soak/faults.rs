//! Faults of the store and of the processes of a soak. All of them keep the store's data and clock, but for the flushes of a run
//! that asks for them.

use std::time::Duration;

use fastrand::Rng;
use tenure::{BootTime, Error};
use tenure_testkit::{Proxy, RedisServer, admit, redis};

use super::logins::Logins;
use super::plan::{Engine, Plan};
use super::process::Crew;
use super::referee::Referee;
use super::report::ServerFaults;
use super::witness::Witness;
use crate::scenarios::{Breakable, OwnServer};

/// Servers to which faults are done.
#[derive(Clone, Copy)]
pub(super) enum Broken<'a> {
    /// None: faults are done to our own processes alone.
    Nothing,
    Server(&'a RedisServer),
    Nodes(&'a Nodes),
    /// One of them is always away.
    OneOf(&'a Nodes, &'a Witness),
    Engine(&'a OwnServer, Engine),
    /// The password changes.
    Logins(&'a Logins),
}

impl<'a> Broken<'a> {
    pub(super) fn servers(self) -> impl Iterator<Item = &'a RedisServer> {
        let (one, all) = match self {
            Self::Nothing | Self::Engine(..) => (None, &[][..]),
            Self::Logins(logins) => (logins.redis(), &[][..]),
            Self::Server(server) => (Some(server), &[][..]),
            Self::Nodes(Nodes(nodes)) | Self::OneOf(Nodes(nodes), _) => (None, &nodes[..]),
        };
        one.into_iter().chain(all.iter().map(|(server, _)| server))
    }

    /// The store URL of the way on which replies are lost, if there is one.
    pub(super) fn lossy_url(self) -> Option<String> {
        match self {
            Self::Nothing | Self::Server(_) | Self::OneOf(..) | Self::Logins(_) => None,
            Self::Nodes(nodes) => Some(nodes.url(true)),
            Self::Engine(own, _) => Some(own.near.clone()),
        }
    }

    /// How much later than its holder knows the store may end a lease.
    pub(super) fn late(self) -> Duration {
        if let Self::Engine(own, _) = self { own.late } else { Duration::ZERO }
    }
}

/// The servers of a quorum, and the way to each on which replies are lost.
pub(super) struct Nodes(pub(super) Vec<(RedisServer, Proxy)>);

/// Number of servers of a quorum, and of those with every write on disk.
const NODES: usize = 5;
const KEEP: usize = 2;

impl Nodes {
    pub(super) fn start() -> Self {
        Self::of(NODES, |at| if at < KEEP { kept("always") } else { RedisServer::builder() })
    }

    /// Starts so many, with logs as Redis writes them by itself.
    pub(super) fn with_logs(count: usize) -> Self {
        // A log that is written anew while it is copied is no copy.
        Self::of(count, |_| kept("everysec").arg("auto-aof-rewrite-percentage", "0"))
    }

    fn of(count: usize, how: impl Fn(usize) -> redis::Builder) -> Self {
        let start = |at| {
            let server = how(at).start();
            let proxy = Proxy::start(server.addr());
            (server, proxy)
        };
        let nodes = Self((0..count).map(start).collect());
        admit(&nodes.url(false));
        nodes
    }

    pub(super) fn url(&self, lossy: bool) -> String {
        let host = |(server, proxy): &(RedisServer, Proxy)| if lossy { proxy.addr() } else { server.addr() }.to_string();
        format!("quorum+redis://{}", self.0.iter().map(host).collect::<Vec<_>>().join(","))
    }

    /// Whether a majority votes without any other one.
    fn can_spare_one(&self) -> bool {
        // The memory of another run of the server counts for nothing.
        let runs = |server: &RedisServer| {
            let run = server.cli("HGET tenure:node run");
            run.split_once('/').is_some_and(|(run, _)| server.cli("INFO server").contains(run))
        };
        let votes =
            |(server, _): &&(RedisServer, Proxy)| server.command(&["HEXISTS", "tenure:node", "floor"]) == 1 && runs(server);
        self.0.iter().filter(votes).count() > NODES / 2 + 1
    }
}

fn kept(fsync: &str) -> redis::Builder {
    RedisServer::builder().arg("appendonly", "yes").arg("appendfsync", fsync)
}

pub(super) struct Faults<'a> {
    rng: Rng,
    broken: Broken<'a>,
    flushes: bool,
    servers: ServerFaults,
}

/// Commands that the faults send to a server, which they also stop.
const COMMANDS: [&[&str]; 8] = [
    &["SCRIPT", "FLUSH"],
    &["FUNCTION", "FLUSH"],
    &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
    &["CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes"],
    &["CLIENT", "PAUSE", "150", "WRITE"],
    &["CLIENT", "PAUSE", "150", "ALL"],
    &["CONFIG", "SET", "maxmemory", "1"],
    ENOUGH_MEMORY,
];
const ENOUGH_MEMORY: &[&str] = &["CONFIG", "SET", "maxmemory", "0"];
const FLUSH: &[&str] = &["FLUSHALL"];

/// How long the server is stopped.
const STOP: Duration = Duration::from_millis(150);

impl<'a> Faults<'a> {
    pub(super) fn new(plan: &Plan, broken: Broken<'a>) -> Self {
        Self { rng: Rng::with_seed(plan.seed), broken, flushes: plan.flushes, servers: ServerFaults::default() }
    }

    /// Breaks things until `end`, or until there were grants enough; how often.
    pub(super) fn go_on(mut self, crew: &mut Crew<'_>, end: BootTime, referee: &Referee) -> Result<(u64, ServerFaults), Error> {
        if let Broken::Logins(logins) = self.broken {
            return Ok((logins.change_until(end)?, self.servers));
        }
        let mut count = 0;
        loop {
            let pause = Duration::from_millis(self.rng.u64(50..=500));
            std::thread::sleep(pause.min(end.since(BootTime::now())));
            if BootTime::now() >= end || referee.is_over() {
                break;
            }
            count += 1;
            match self.broken {
                Broken::Server(server) if self.rng.u8(0..5) > 0 => self.at_server(server),
                Broken::Nodes(nodes) if self.rng.u8(0..5) > 0 => self.at_node(nodes),
                Broken::Engine(own, engine) if self.rng.u8(0..5) > 0 => self.at_engine(&*own.server, engine),
                _ => self.at_process(crew)?,
            }
        }
        for server in self.broken.servers() {
            tell(server, ENOUGH_MEMORY)?;
        }
        Ok((count, self.servers))
    }

    /// One of five.
    fn at_node(&mut self, nodes: &Nodes) {
        let at = self.rng.usize(0..NODES);
        let (server, proxy) = &nodes.0[at];
        match self.rng.u8(0..9) {
            0..3 => {
                if !nodes.can_spare_one() {
                    return;
                }
                self.servers.killed += 1;
                if at < KEEP {
                    server.restart();
                } else {
                    self.servers.emptied += 1;
                    server.restart_empty();
                }
            }
            choice @ 3..7 => {
                let (before, command) = (proxy.accepted(), self.rng.u64(1..=50));
                if choice == 3 {
                    proxy.swallow_reply(command);
                } else {
                    proxy.cut_after(command);
                }
                // A client that misses a reply comes again. One that is not there loses none.
                let until = BootTime::now() + Duration::from_secs(1);
                while proxy.accepted() == before && BootTime::now() < until {
                    std::thread::sleep(Duration::from_millis(1));
                }
                self.servers.lost_replies += u64::from(proxy.accepted() > before);
                proxy.heal();
            }
            7 => self.at_server(server),
            _ => {
                server.stop();
                std::thread::sleep(STOP);
                server.cont();
            }
        }
    }

    /// The server, or the way to it.
    fn at_engine(&mut self, server: &dyn Breakable, engine: Engine) {
        match self.rng.u8(0..10) {
            0 if engine.keeps() => {
                self.servers.killed += 1;
                server.kill();
                std::thread::sleep(Duration::from_millis(self.rng.u64(0..500)));
                server.restart();
            }
            0..4 => {
                server.stop();
                std::thread::sleep(STOP);
                server.cont();
            }
            // Longer than a call may take, and now and then than a lease lasts.
            4..7 => {
                self.servers.lost_replies += u64::from(server.proxy().connections() > 0);
                server.proxy().black_hole();
                let span = if self.rng.u8(0..4) == 0 {
                    self.longer_than_a_lease()
                } else {
                    Duration::from_millis(self.rng.u64(50..500))
                };
                std::thread::sleep(span);
                server.proxy().heal();
            }
            _ => {
                self.servers.lost_replies += u64::from(server.proxy().connections() > 0);
                server.proxy().cut();
            }
        }
    }

    fn at_server(&mut self, server: &RedisServer) {
        if self.flushes && self.rng.u8(0..3) == 0 {
            let _ = tell(server, FLUSH);
            return;
        }
        if let Some(command) = COMMANDS.get(self.rng.usize(0..=COMMANDS.len())) {
            // One that an older server does not know does no harm.
            let _ = tell(server, command);
        } else {
            server.stop();
            std::thread::sleep(STOP);
            server.cont();
        }
    }

    /// Leases last for one or two seconds.
    fn longer_than_a_lease(&mut self) -> Duration {
        self.broken.late() + Duration::from_millis(self.rng.u64(1_200..2_500))
    }

    fn at_process(&mut self, crew: &mut Crew<'_>) -> Result<(), Error> {
        let index = self.rng.usize(0..crew.count());
        match self.rng.u8(0..10) {
            0 => crew.kill(index)?,
            // Clients of a quorum have nothing else to die of.
            1..4 if matches!(self.broken, Broken::Nodes(_)) => crew.kill(index)?,
            1 => {
                let span = self.longer_than_a_lease();
                crew.stop(index, span);
            }
            _ => crew.stop(index, Duration::from_millis(self.rng.u64(10..300))),
        }
        Ok(())
    }
}

fn tell(server: &RedisServer, words: &[&str]) -> Result<(), Error> {
    let told = server.connect().and_then(|mut client| client.command(words));
    told.map(drop).map_err(|error| Error::unreachable("the server of the soak gave no answer").with_source(error))
}
