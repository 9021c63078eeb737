//! A real `redis-server` for one test.

mod cluster;
mod replica;
mod sentinel;
mod snapshot;

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub use self::cluster::{Mover, RedisCluster};
pub use self::sentinel::{SERVICE, SentinelGroup};
pub use self::snapshot::Snapshot;
use crate::client::{Client, Reply};
use crate::clock::ShiftedClock;
use crate::guardian;
use crate::process::{Signal, Spawned, free_port};
use crate::tls::Certificates;

const START: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(10);
const SOCKET: &str = "redis.sock";
const LOG: &str = "redis.log";

/// The file of a sentinel, which it writes as well.
const SENTINEL_CONFIG: &str = "sentinel.conf";

/// Files and directories with the data of a server. Before Redis 7 the append-only file stood
/// alone.
const DATA: [&str; 3] = ["appendonlydir", "appendonly.aof", "dump.rdb"];

/// How to start a [`RedisServer`].
#[derive(Debug, Default)]
pub struct Builder {
    arguments: Vec<String>,
    files: Vec<(String, String)>,
    password: Option<String>,
    tls: bool,
    binary: Option<String>,
    role: Role,
    clock: Option<ShiftedClock>,
}

/// Its part among others.
#[derive(Debug, Default, PartialEq, Eq)]
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
        self.password = Some(password.to_owned());
        self.arg("requirepass", password)
    }

    /// Starts with these ACL rules, one `user ...` line each. Keep a default user that may run what the test looks at.
    #[must_use]
    pub fn acl(mut self, rules: &str) -> Self {
        self.files.push(("users.acl".to_owned(), rules.to_owned()));
        self.arg("aclfile", "users.acl")
    }

    /// Also listens with TLS on a second port; a client certificate is checked when one is shown.
    #[must_use]
    pub fn tls(mut self, certificates: &Certificates) -> Self {
        self.tls = true;
        let path = |path: PathBuf| path.to_str().expect("test paths are UTF-8").to_owned();
        self.arg("tls-cert-file", &path(certificates.server_cert()))
            .arg("tls-key-file", &path(certificates.server_key()))
            .arg("tls-ca-cert-file", &path(certificates.ca()))
            .arg("tls-auth-clients", "optional")
    }

    /// Gives the server a wall clock that [`RedisServer::shift_clock`] moves; needs a C compiler.
    #[must_use]
    pub fn shifted_clock(mut self) -> Self {
        self.clock = Some(ShiftedClock::new());
        self
    }

    /// Runs this program, whatever the environment says.
    #[must_use]
    pub fn program(mut self, path: &str) -> Self {
        self.binary = Some(path.to_owned());
        self
    }

    fn binary(&self) -> String {
        let named = || std::env::var("TENURE_REDIS_SERVER").ok().filter(|path| !path.is_empty());
        self.binary.clone().or_else(named).unwrap_or_else(|| "redis-server".to_owned())
    }

    /// Starts the server and returns when it answers; a replica, when it has its primary's data.
    pub fn start(self) -> RedisServer {
        guardian::watch_over_us().expect("a shell can be started");
        let dir = TempDir::with_prefix("tenure-redis-").expect("a temporary directory can be made");
        for (name, content) in &self.files {
            fs::write(dir.path().join(name), content).expect("the server's directory can be written");
        }
        let mut server = RedisServer { how: self, dir, port: 0, tls_port: None, bus_port: None, process: Mutex::new(None) };
        // Between the choice of a port and the server's bind somebody else may take it.
        for _ in 0..20 {
            server.port = free_port();
            server.tls_port = server.how.tls.then(free_port);
            server.bus_port = (server.how.role == Role::Node).then(free_port);
            if server.launch() {
                server.wait_for_link();
                return server;
            }
        }
        panic!("redis-server found no free port in 20 attempts");
    }
}

/// A running `redis-server`, killed and reaped when dropped.
///
/// It has its own temporary directory and loopback port and starts without persistence. The binary is
/// `$TENURE_REDIS_SERVER`, else `redis-server` from the path.
#[derive(Debug)]
pub struct RedisServer {
    how: Builder,
    dir: TempDir,
    port: u16,
    tls_port: Option<u16>,
    bus_port: Option<u16>,
    process: Mutex<Option<Spawned>>,
}

impl RedisServer {
    /// Starts one with the defaults.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Starts one with more arguments.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The plain TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The plain TCP address, for a proxy.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// `redis://127.0.0.1:<port>`, with the password if there is one.
    pub fn url(&self) -> String {
        format!("redis://{}127.0.0.1:{}", self.credentials(), self.port)
    }

    /// The TLS port; panics without [`Builder::tls`].
    pub fn tls_port(&self) -> u16 {
        self.tls_port.expect("the server was started without TLS")
    }

    /// `rediss://127.0.0.1:<tls port>`, with the password if there is one.
    pub fn tls_url(&self) -> String {
        format!("rediss://{}127.0.0.1:{}", self.credentials(), self.tls_port())
    }

    /// The unix socket, which every server has.
    pub fn unix_socket(&self) -> PathBuf {
        self.dir.path().join(SOCKET)
    }

    /// Returns its log since it was started.
    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join(LOG)).unwrap_or_default()
    }

    /// The server's directory: its log, append-only file and socket.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Whether it was started and not killed.
    pub fn is_running(&self) -> bool {
        self.process().is_some()
    }

    /// The process id; panics while the server is killed.
    pub fn pid(&self) -> u32 {
        self.process().as_ref().expect("the server was killed").pid()
    }

    /// Freezes the process (SIGSTOP); connections can still be made, nothing is answered.
    pub fn stop(&self) {
        self.signal(Signal::Stop);
    }

    /// Lets a frozen process go on; what was sent meanwhile is executed now.
    pub fn cont(&self) {
        self.signal(Signal::Cont);
    }

    /// Kills the process (SIGKILL) and reaps it; once more is no error.
    pub fn kill(&self) {
        drop(self.process().take());
    }

    /// Kills what still runs and starts again on the same port and directory, so an append-only file is read back.
    pub fn restart(&self) {
        self.kill();
        let deadline = Instant::now() + START;
        while !self.launch() {
            assert!(Instant::now() < deadline, "port {} was taken while redis-server was down", self.port);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// As [`restart`](Self::restart), with everything the server had written removed.
    pub fn restart_empty(&self) {
        self.kill();
        remove_data(self.dir());
        self.restart();
    }

    /// Sets the server's wall clock this far off the true time from now on, so 0 sets it right; panics without
    /// [`Builder::shifted_clock`]. Its monotonic clock goes on undisturbed.
    pub fn shift_clock(&self, milliseconds: i64) {
        self.how.clock.as_ref().expect("the server was started with a clock of its own").shift(milliseconds);
        // Valkey since 9.1 looks at the wall clock once in a millisecond and adds what its monotonic clock says. Nothing tells when.
        std::thread::sleep(Duration::from_millis(2));
    }

    /// A new connection to this server that is already authenticated.
    pub fn connect(&self) -> io::Result<Client> {
        let mut client = Client::connect_unix(&self.unix_socket(), ANSWER)?;
        if let Some(password) = &self.how.password {
            client.command(&["AUTH", password])?;
        }
        Ok(client)
    }

    /// Runs one command on a connection of its own; panics when there is no answer within 10 s.
    #[track_caller]
    pub fn command<W: AsRef<[u8]>>(&self, words: &[W]) -> Reply {
        let answer = self.connect().and_then(|mut client| client.command(words));
        answer.unwrap_or_else(|error| panic!("redis-server at port {} gave no answer: {error}", self.port))
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
        self.how.password.as_ref().map_or_else(String::new, |password| format!(":{password}@"))
    }

    fn signal(&self, signal: Signal) {
        let mut process = self.process();
        let process = process.as_mut().expect("the server was killed");
        process.signal(signal).expect("the server runs");
    }

    fn process(&self) -> MutexGuard<'_, Option<Spawned>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the process and waits until it answers; false when its port was taken.
    fn launch(&self) -> bool {
        let mut process = self.spawn();
        let deadline = Instant::now() + START;
        while !self.answers() {
            let ended = process.child().try_wait().expect("a child of ours can be waited for");
            if let Some(status) = ended {
                let log = self.log();
                assert!(log.contains("Address already in use"), "redis-server ended with {status}:\n{log}");
                return false;
            }
            assert!(Instant::now() < deadline, "redis-server did not answer within {START:?}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(2));
        }
        *self.process() = Some(process);
        true
    }

    fn spawn(&self) -> Spawned {
        let binary = self.how.binary();
        let mut command = Command::new(&binary);
        if self.how.role == Role::Sentinel {
            command.args([SENTINEL_CONFIG, "--sentinel"]);
        }
        // The log goes to standard output, so that a complaint about the arguments stands there too.
        let log = fs::File::create(self.dir.path().join(LOG)).expect("the server's directory can be written");
        command.stdin(Stdio::null()).stderr(log.try_clone().expect("a file can be cloned")).stdout(log);
        command.current_dir(self.dir.path());
        command.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"]);
        command.args(["--unixsocket", SOCKET, "--dir", "."]);
        command.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
        // The default lets a replica wait 5 s.
        command.args(["--repl-diskless-sync-delay", "0"]);
        if let Some(clock) = &self.how.clock {
            clock.apply(&mut command);
        }
        if let Some(port) = self.tls_port {
            command.args(["--tls-port", &port.to_string()]);
        }
        // Else it would be the first plus 10,000, which may be none.
        if let Some(port) = self.bus_port {
            command.args(["--cluster-enabled", "yes", "--cluster-port", &port.to_string()]);
        }
        command.args(&self.how.arguments);
        Spawned::spawn(&mut command).unwrap_or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                panic!("{binary} not found: install it (apt-get install redis-server) or set TENURE_REDIS_SERVER")
            }
            _ => panic!("{binary} cannot be started: {error}"),
        })
    }

    /// Whether this very server answers: its socket is private and made after the TCP port is bound, so neither another
    /// server on the port nor one about to fail can pass. Any answer counts, also `-NOAUTH` and `-LOADING`.
    fn answers(&self) -> bool {
        let ping = Client::connect_unix(&self.unix_socket(), ANSWER);
        ping.and_then(|mut client| client.command(&["PING"])).is_ok()
    }
}

/// Removes all data from a server's directory.
fn remove_data(dir: &Path) {
    for name in DATA {
        let path = dir.join(name);
        let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    }
}
