//! A Redis Cluster of real servers.

use super::{Builder, Redis, RedisServer, Role};
use crate::client::{Client, Reply};
use crate::process::wait_until;
use crate::server::START;

/// Number of slots of every cluster.
const SLOTS: usize = 16_384;

/// A running cluster: masters that share the slots, and replicas of each.
#[derive(Debug)]
pub struct RedisCluster {
    servers: Vec<RedisServer>,
    masters: usize,
}

impl RedisCluster {
    /// Starts a cluster and returns when each of its nodes says that it is up.
    pub fn start(masters: usize, replicas_of_each: usize) -> Self {
        Self::with(masters, replicas_of_each, |builder| builder)
    }

    /// As [`start`](Self::start), with more arguments for each server.
    pub fn with(masters: usize, replicas_of_each: usize, more: impl Fn(Builder) -> Builder) -> Self {
        // Where nobody can take over, a node that stands still for a moment is waited for.
        let node_timeout = if replicas_of_each == 0 { "3000" } else { "1000" };
        let node = |_| {
            let node = Builder::of(Redis { role: Role::Node, ..Redis::default() });
            // A master without slots stays one.
            let node = node.arg("cluster-allow-replica-migration", "no");
            more(node.arg("cluster-node-timeout", node_timeout).arg("cluster-replica-validity-factor", "0")).start()
        };
        let servers: Vec<RedisServer> = (0..masters * (1 + replicas_of_each)).map(node).collect();
        let cluster = Self { servers, masters };
        for (at, server) in cluster.servers.iter().enumerate() {
            server.cli(&format!("CLUSTER SET-CONFIG-EPOCH {}", at + 1));
            if at < masters {
                let (first, last) = (at * SLOTS / masters, (at + 1) * SLOTS / masters - 1);
                server.cli(&format!("CLUSTER ADDSLOTSRANGE {first} {last}"));
            }
            let [port, _, bus, _] = server.ports;
            cluster.servers[0].cli(&format!("CLUSTER MEET 127.0.0.1 {port} {bus}"));
        }
        let all = cluster.servers.len();
        cluster.wait("every node to know all others", |server| {
            server.cli("CLUSTER NODES").lines().filter(|line| !line.contains("handshake")).count() == all
        });
        for (at, server) in cluster.servers.iter().enumerate().skip(masters) {
            let master = cluster.servers[at % masters].cli("CLUSTER MYID");
            server.cli(&format!("CLUSTER REPLICATE {master}"));
        }
        cluster.wait_until_up();
        cluster
    }

    /// All servers: the masters first, then the replicas of each in turn.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// `redis+cluster://`, with every node.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.servers.iter().map(|server| server.addr().to_string()).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// Index of the server that serves the slot now, as the others have it.
    pub fn serving(&self, slot: u16) -> Option<usize> {
        self.servers.iter().position(|server| server.is_running() && server.serves(slot))
    }

    /// Whether the server, which answers, regards itself as the one that serves the slot.
    pub fn serves(&self, at: usize, slot: u16) -> bool {
        self.servers[at].serves(slot)
    }

    /// Waits until the cluster is up at every server that runs, with all replicas that run, and each of those has its master's data.
    #[track_caller]
    pub fn wait_until_up(&self) {
        let running = self.servers.iter().filter(|server| server.is_running()).count();
        self.wait("the cluster to be up", |server| {
            let nodes = server.cli("CLUSTER NODES");
            let lives = |line: &&str| !line.contains("fail") && !line.contains("handshake") && line.contains(" connected");
            let links =
                server.info("replication", "role") == "master" || server.info("replication", "master_link_status") == "up";
            let replicas = nodes.lines().filter(lives).filter(|line| line.contains("slave")).count();
            let all = nodes.lines().filter(lives).count() >= running && replicas >= running - self.masters;
            server.cli("CLUSTER INFO").contains("cluster_state:ok") && links && all
        });
    }

    #[track_caller]
    fn wait(&self, what: &str, done: impl Fn(&RedisServer) -> bool) {
        wait_until(START, what, || self.servers.iter().filter(|server| server.is_running()).all(&done));
    }

    /// Connects to move slots of this cluster.
    pub fn mover(&self) -> Mover {
        let clients = self.servers.iter().map(|server| server.connect().expect("a server answers")).collect();
        let id = |server: &RedisServer| server.cli("CLUSTER MYID");
        Mover { clients, ids: self.servers.iter().map(id).collect(), ports: self.servers.iter().map(RedisServer::port).collect() }
    }
}

/// Moves slots from master to master, as `redis-cli --cluster reshard` does.
#[derive(Debug)]
pub struct Mover {
    clients: Vec<Client>,
    ids: Vec<String>,
    ports: Vec<u16>,
}

impl Mover {
    /// Moves a slot with all its keys. `between` is called while it is on the way: half of the keys are there.
    pub fn move_slot(&mut self, slot: u16, from: usize, to: usize, between: impl FnOnce()) {
        self.move_slot_by(slot, from, to, |keys| keys.truncate(keys.len().div_ceil(2)), between);
    }

    /// As [`move_slot`](Self::move_slot). Of the keys of the slot, those that `first` leaves in the list are there when `between` is called.
    pub fn move_slot_by(
        &mut self,
        slot: u16,
        from: usize,
        to: usize,
        first: impl FnOnce(&mut Vec<&[u8]>),
        between: impl FnOnce(),
    ) {
        let (slot, [source, target]) = (slot.to_string(), [from, to].map(|at| self.ids[at].clone()));
        self.order(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]);
        self.order(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]);
        self.move_keys(&slot, from, to, first);
        between();
        self.move_keys(&slot, from, to, |_| ());
        // The target first, so that the slot is never without a server. The others hear of it by themselves.
        for at in [to, from] {
            self.order(at, &["CLUSTER", "SETSLOT", &slot, "NODE", &target]);
        }
    }

    /// Moves those keys of a slot that `some` leaves in the list.
    fn move_keys(&mut self, slot: &str, from: usize, to: usize, some: impl FnOnce(&mut Vec<&[u8]>)) {
        let keys = self.ask(from, &["CLUSTER", "GETKEYSINSLOT", slot, "100000"]);
        let (mut keys, port) = (keys.values(), self.ports[to].to_string());
        some(&mut keys);
        for key in keys {
            let moved = self.ask(from, &[&b"MIGRATE"[..], b"127.0.0.1", port.as_bytes(), key, b"0", b"5000"]);
            assert!(moved == "OK" || moved == "NOKEY", "{moved:?}");
        }
    }

    fn order(&mut self, at: usize, words: &[&str]) {
        let done = self.ask(at, words);
        assert!(done == "OK", "{words:?}: {done:?}");
    }

    fn ask<W: AsRef<[u8]>>(&mut self, at: usize, words: &[W]) -> Reply {
        self.clients[at].command(words).expect("a master answers")
    }
}

impl RedisServer {
    /// Whether it is a master of the cluster that serves the slot.
    fn serves(&self, slot: u16) -> bool {
        let slots = self.cli("CLUSTER NODES");
        let Some(mine) = slots.lines().find(|line| line.contains("myself,master")) else { return false };
        mine.split_whitespace().skip(8).filter(|range| !range.starts_with('[')).any(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let number = |text: &str| text.parse::<u16>().expect("a slot");
            (number(first)..=number(last)).contains(&slot)
        })
    }
}
