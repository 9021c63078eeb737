//! Sentinels, and a master with its replicas that they watch.

use std::fmt::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::{Builder, RedisServer, Role, SENTINEL_CONFIG};
use crate::client::Reply;
use crate::process::wait_until;
use crate::tls::Certificates;

/// The name of the service that the sentinels of tests watch.
pub const SERVICE: &str = "mymaster";
/// A server that is silent for so long is down. A busy machine is silent for a part of a second, and then a master that is well would
/// be replaced.
const DOWN_AFTER: Duration = Duration::from_millis(1_500);
/// A failover, and the finding of one another, on a machine that has other work.
const PATIENCE: Duration = Duration::from_secs(60);

impl Builder {
    /// Makes it a sentinel that watches [`SERVICE`], whose master is at `master`. It takes a server for down that is silent for
    /// `down_after`, and begins a failover if `quorum` sentinels do.
    #[must_use]
    pub fn sentinel_of(mut self, master: SocketAddr, password: Option<&str>, quorum: usize, down_after: Duration) -> Self {
        let mut config = String::new();
        let _ = writeln!(config, "sentinel monitor {SERVICE} {} {} {quorum}", master.ip(), master.port());
        let _ = writeln!(config, "sentinel down-after-milliseconds {SERVICE} {}", down_after.as_millis());
        let _ = writeln!(config, "sentinel failover-timeout {SERVICE} 3000");
        if let Some(password) = password {
            let _ = writeln!(config, "sentinel auth-pass {SERVICE} {password}");
        }
        self.kind.files.push((SENTINEL_CONFIG, config));
        self.kind.role = Role::Sentinel;
        self
    }
}

/// A master, two replicas, and three sentinels that watch them and have found one another.
#[derive(Debug)]
pub struct SentinelGroup {
    /// The first was the master in the beginning.
    pub servers: Vec<RedisServer>,
    /// The sentinels.
    pub sentinels: Vec<RedisServer>,
    tls: bool,
}

impl SentinelGroup {
    /// Starts one. A server that is silent for 1.5 s is down.
    pub fn start() -> Self {
        Self::start_with(None, None, None)
    }

    /// Starts one with these passwords, of the servers and of the sentinels. With certificates all of them speak TLS with one
    /// another and with clients.
    pub fn start_with(password: Option<&str>, of_sentinels: Option<&str>, certificates: Option<&Certificates>) -> Self {
        let how = |password: Option<&str>| {
            let mut how = RedisServer::builder();
            if let Some(password) = password {
                how = how.password(password).arg("masterauth", password);
            }
            if let Some(certificates) = certificates {
                // The certificate of a server is none of a client.
                how = how.tls(certificates).arg("tls-replication", "yes").arg("tls-auth-clients", "no");
            }
            how
        };
        let address = |server: &RedisServer| match certificates {
            Some(_) => SocketAddr::from((server.addr().ip(), server.tls_port())),
            None => server.addr(),
        };
        let master = how(password).start();
        let replica = || how(password).replica_at(address(&master)).start();
        let replicas = [replica(), replica()];
        let sentinel = || {
            let how = how(None).sentinel_of(address(&master), password, 2, DOWN_AFTER);
            match of_sentinels {
                Some(password) => how.password(password).start(),
                None => how.start(),
            }
        };
        let sentinels = vec![sentinel(), sentinel(), sentinel()];
        let group = Self { servers: std::iter::once(master).chain(replicas).collect(), sentinels, tls: certificates.is_some() };
        group.wait_until_all_are_known();
        group
    }

    /// The URL of the service, with the password of the servers and without that of the sentinels.
    pub fn url(&self) -> String {
        let port = |sentinel: &RedisServer| if self.tls { sentinel.tls_port() } else { sentinel.port() };
        let hosts: Vec<String> = self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", port(sentinel))).collect();
        let scheme = if self.tls { "rediss" } else { "redis" };
        format!("{scheme}+sentinel://{}{}/{SERVICE}", self.servers[0].credentials(), hosts.join(","))
    }

    /// How often the sentinels have named another master.
    pub fn switches(&self) -> usize {
        self.sentinels.iter().map(|sentinel| sentinel.log().matches("+switch-master").count()).max().unwrap_or_default()
    }

    /// Number of the server that most sentinels name.
    pub fn master(&self) -> usize {
        let named: Vec<usize> = self.sentinels.iter().filter_map(|sentinel| self.named_by(sentinel)).collect();
        let votes = |server: &usize| named.iter().filter(|named| *named == server).count();
        (0..self.servers.len()).max_by_key(votes).expect("a group has servers")
    }

    /// Number of the server that a sentinel names.
    pub fn named_by(&self, sentinel: &RedisServer) -> Option<usize> {
        let Ok(mut client) = sentinel.connect() else { return None };
        let Ok(Reply::Array(address)) = client.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]) else { return None };
        let port: u16 = address.last()?.text().parse().ok()?;
        self.servers.iter().position(|server| server.ports[..2].contains(&port))
    }

    /// Waits until most sentinels name another server than this one, which serves as the master; its number.
    #[track_caller]
    pub fn wait_for_another(&self, than: usize) -> usize {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let named = self.master();
            let agree = self.sentinels.iter().filter(|sentinel| self.named_by(sentinel) == Some(named)).count();
            if named != than
                && agree > self.sentinels.len() / 2
                && self.servers[named].is_running()
                && self.servers[named].info("replication", "role") == "master"
            {
                return named;
            }
            assert!(Instant::now() < deadline, "no other master after {PATIENCE:?}\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns the last lines of the logs of the sentinels.
    fn logs(&self) -> String {
        let last = |sentinel: &RedisServer| {
            let log = sentinel.log();
            let lines: Vec<&str> = log.lines().collect();
            format!("the sentinel {}:\n{}\n", sentinel.port(), lines[lines.len().saturating_sub(25)..].join("\n"))
        };
        self.sentinels.iter().map(last).collect()
    }

    /// Starts a killed server again, empty, as a replica of the master; returns when it has its data.
    pub fn restart_as_replica(&self, server: usize) {
        let (server, master) = (&self.servers[server], &self.servers[self.master()]);
        server.restart();
        let port = if self.tls { master.tls_port() } else { master.port() };
        server.cli(&format!("REPLICAOF 127.0.0.1 {port}"));
        wait_until(PATIENCE, "the replica to follow", || server.info("replication", "master_link_status") == "up");
    }

    /// Has a sentinel begin a failover although the master is well.
    pub fn fail_over(&self) {
        self.sentinels[0].cli(&format!("SENTINEL FAILOVER {SERVICE}"));
    }

    /// Waits until each sentinel knows the others and two replicas that could be promoted.
    #[track_caller]
    pub fn wait_until_all_are_known(&self) {
        let has_all = |sentinel: &RedisServer| {
            let Reply::Array(about) = sentinel.command(&["SENTINEL", "MASTER", SERVICE]) else { return false };
            let words: Vec<String> = about.iter().map(Reply::text).collect();
            let is = |key: &str, value: usize| words.chunks(2).any(|pair| pair[0] == key && pair[1] == value.to_string());
            let Reply::Array(replicas) = sentinel.command(&["SENTINEL", "REPLICAS", SERVICE]) else { return false };
            let well = |replica: &Reply| {
                let Reply::Array(words) = replica else { return false };
                let words: Vec<String> = words.iter().map(Reply::text).collect();
                let is = |key: &str, value: &str| words.chunks(2).any(|pair| pair[0] == key && pair[1] == value);
                is("flags", "slave") && is("master-link-status", "ok")
            };
            let others = self.sentinels.len() - 1;
            is("num-other-sentinels", others) && replicas.iter().filter(|replica| well(replica)).count() + 1 >= self.servers.len()
        };
        wait_until(PATIENCE, "the sentinels to know all servers", || self.sentinels.iter().all(has_all));
    }
}
