//! A real `redis-server` for one test.

mod cluster;
mod replica;
mod sentinel;
mod snapshot;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub use self::cluster::{Mover, RedisCluster};
pub use self::sentinel::{SERVICE, SentinelGroup};
pub use self::snapshot::Snapshot;
use crate::client::{Client, Reply};
use crate::server::{self, Kind, Server, Tls};

const ANSWER: Duration = Duration::from_secs(10);
const SOCKET: &str = "redis.sock";

/// The file of a sentinel, which it writes as well.
const SENTINEL_CONFIG: &str = "sentinel.conf";

/// Files and directories with the data of a server. Before Redis 7 the append-only file stood
/// alone.
const DATA: [&str; 3] = ["appendonlydir", "appendonly.aof", "dump.rdb"];

/// A running `redis-server`. It starts without persistence.
///
/// The binary is `$TENURE_REDIS_SERVER`, else `redis-server` from the path. Its ports are for clients, for clients with TLS, and for the
/// other nodes of a cluster.
pub type RedisServer = Server<Redis>;

/// How to start a [`RedisServer`].
pub type Builder = server::Builder<Redis>;

/// The particulars of Redis.
#[derive(Clone, Debug, Default)]
pub struct Redis {
    files: Vec<(&'static str, String)>,
    password: Option<String>,
    binary: Option<String>,
    role: Role,
}

/// Its part among others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Role {
    #[default]
    Alone,
    Replica,
    Sentinel,
    /// A node of a cluster, which has a port for the others.
    Node,
}

impl Builder {
    /// Adds one configuration directive, as `arg("maxmemory", "1mb")` or `arg("appendonly", "yes")`; the last one wins.
    #[must_use]
    pub fn arg(mut self, directive: &str, value: &str) -> Self {
        self.arguments.push(format!("--{directive}"));
        self.arguments.push(value.to_owned());
        self
    }

    /// Sets the default user's password; [`RedisServer::command`] and [`RedisServer::url`] use it.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.kind.password = Some(password.to_owned());
        self.arg("requirepass", password)
    }

    /// Starts with these ACL rules, one `user ...` line each. Keep a default user that may run what the test looks at.
    #[must_use]
    pub fn acl(mut self, rules: &str) -> Self {
        self.kind.files.push(("users.acl", rules.to_owned()));
        self.arg("aclfile", "users.acl")
    }

    /// Runs this program, whatever the environment says.
    #[must_use]
    pub fn program(mut self, path: &str) -> Self {
        self.kind.binary = Some(path.to_owned());
        self
    }
}

impl Kind for Redis {
    const NAME: &str = "redis-server";
    const REMEDY: &str = "install it (apt-get install redis-server) or set TENURE_REDIS_SERVER";

    fn prepare(server: &RedisServer) {
        for (name, content) in &server.how.kind.files {
            server.write(name, content);
        }
    }

    fn command(server: &RedisServer) -> Command {
        let Self { binary, role, .. } = &server.how.kind;
        let named = || std::env::var("TENURE_REDIS_SERVER").ok().filter(|path| !path.is_empty());
        let mut command = server.command_of(binary.clone().or_else(named).unwrap_or_else(|| "redis-server".to_owned()));
        if *role == Role::Sentinel {
            command.args([SENTINEL_CONFIG, "--sentinel"]);
        }
        let [port, tls, bus, _] = server.ports.map(|port| port.to_string());
        command.args(["--port", &port, "--bind", "127.0.0.1", "--unixsocket", SOCKET, "--dir", "."]);
        command.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
        // The default lets a replica wait 5 s.
        command.args(["--repl-diskless-sync-delay", "0"]);
        if let Some(certificates) = &server.how.certificates {
            command.args(["--tls-port", &tls, "--tls-auth-clients", "optional"]).arg("--tls-ca-cert-file").arg(certificates.ca());
            command.arg("--tls-cert-file").arg(certificates.server_cert()).arg("--tls-key-file").arg(certificates.server_key());
        }
        // The default is the first port plus 10,000, which may be out of range.
        if *role == Role::Node {
            command.args(["--cluster-enabled", "yes", "--cluster-port", &bus]);
        }
        command
    }

    /// Its socket is private and made after the TCP port is bound, so neither another server on the port nor one about to fail can pass.
    /// Any answer counts, also `-NOAUTH` and `-LOADING`.
    fn is_ready(server: &RedisServer, _pid: u32) -> bool {
        let ping = Client::connect_unix(&server.unix_socket(), ANSWER);
        ping.and_then(|mut client| client.command(&["PING"])).is_ok()
    }

    fn complete(server: &RedisServer) {
        server.wait_for_link();
    }
}

impl Tls for Redis {}

impl RedisServer {
    /// `redis://127.0.0.1:<port>`, with the password if there is one.
    pub fn url(&self) -> String {
        format!("redis://{}127.0.0.1:{}", self.credentials(), self.port())
    }

    /// The TLS port; panics without [`Builder::tls`].
    pub fn tls_port(&self) -> u16 {
        assert!(self.how.certificates.is_some(), "the server was started without TLS");
        self.ports[1]
    }

    /// `rediss://127.0.0.1:<tls port>`, with the password if there is one.
    pub fn tls_url(&self) -> String {
        format!("rediss://{}127.0.0.1:{}", self.credentials(), self.tls_port())
    }

    /// The unix socket, which every server has.
    pub fn unix_socket(&self) -> PathBuf {
        self.dir().join(SOCKET)
    }

    /// As [`restart`](Self::restart), with everything the server had written removed.
    pub fn restart_empty(&self) {
        self.kill();
        remove_data(self.dir());
        self.restart();
    }

    /// A new connection to this server that is already authenticated.
    pub fn connect(&self) -> io::Result<Client> {
        let mut client = Client::connect_unix(&self.unix_socket(), ANSWER)?;
        if let Some(password) = &self.how.kind.password {
            client.command(&["AUTH", password])?;
        }
        Ok(client)
    }

    /// Runs one command on a connection of its own; panics when there is no answer within 10 s.
    #[track_caller]
    pub fn command<W: AsRef<[u8]>>(&self, words: &[W]) -> Reply {
        let answer = self.connect().and_then(|mut client| client.command(words));
        answer.unwrap_or_else(|error| panic!("redis-server at port {} gave no answer: {error}", self.port()))
    }

    /// Runs one command given as a line of words and returns the reply's text; an error reply panics.
    #[track_caller]
    pub fn cli(&self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        match self.command(&words) {
            Reply::Error(text) => panic!("redis-server refused {line:?}: {text}"),
            reply => reply.text(),
        }
    }

    fn credentials(&self) -> String {
        self.how.kind.password.as_ref().map_or_else(String::new, |password| format!(":{password}@"))
    }
}

/// Removes all data from a server's directory.
fn remove_data(dir: &Path) {
    for name in DATA {
        let path = dir.join(name);
        let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    }
}
