//! A real ZooKeeper for one test, for all tests of a process, or an ensemble of three.

mod stranger;

use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::guardian;
use crate::process::{Signal, Spawned, free_port, wait_until};
use crate::proxy::Proxy;

const START: Duration = Duration::from_secs(60);
const LOG: &str = "log";
/// Where Debian has it.
pub const CLASSES: &str = "/usr/share/java/zookeeper.jar";
/// How many digits stand at the end of a sequential node.
const SEQUENCE: usize = 10;
const PROGRAM: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";

/// The length of a tick: sessions end a tick or so after their timeout.
pub const TICK: Duration = Duration::from_millis(200);

/// A ZooKeeper. It and its data go when this is dropped.
#[derive(Debug)]
pub struct ZooKeeperServer {
    dir: TempDir,
    port: u16,
    /// Settings beside those that all have, as those of its ensemble.
    settings: String,
    process: Mutex<Option<Spawned>>,
}

impl ZooKeeperServer {
    /// Starts one alone.
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// Starts one alone, with more lines of settings.
    pub fn start_with(settings: &str) -> Self {
        loop {
            let server = Self { settings: settings.to_owned(), ..Self::prepared(free_port()) };
            if server.launch() {
                server.wait_until_ready();
                return server;
            }
        }
    }

    /// The one that all tests of this process share, for those that do not harm it. It ends with the process.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<ZooKeeperServer> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// A path that nobody else in this process has.
    pub fn fresh_chroot() -> String {
        static LAST: AtomicU32 = AtomicU32::new(0);
        format!("test_{}_{}", std::process::id(), LAST.fetch_add(1, Ordering::Relaxed))
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// A store URL for a way to it: its own address, or that of a proxy.
    pub fn url_at(addr: SocketAddr, chroot: &str) -> String {
        format!("zookeeper://{addr}/{chroot}")
    }

    /// The store URL of a chroot.
    pub fn url(&self, chroot: &str) -> String {
        Self::url_at(self.addr(), chroot)
    }

    /// Freezes it.
    pub fn stop(&self) {
        self.signal(Signal::Stop);
    }

    /// Lets it go on.
    pub fn cont(&self) {
        self.signal(Signal::Cont);
    }

    fn signal(&self, signal: Signal) {
        self.process().as_mut().expect("it runs").signal(signal).expect("it runs");
    }

    /// Kills it, as `SIGKILL` does.
    pub fn kill(&self) {
        if let Some(mut process) = self.process().take() {
            process.kill();
        }
    }

    /// Starts it again with the data it had, on the same port.
    pub fn restart(&self) {
        self.kill();
        assert!(self.launch(), "the port of the server was taken meanwhile");
        self.wait_until_ready();
    }

    /// The answer to one of its commands of four letters; empty if it does not serve.
    pub fn four_letters(&self, command: &str) -> String {
        let ask = || {
            let mut stream = TcpStream::connect(self.addr())?;
            stream.set_read_timeout(Some(Duration::from_secs(2)))?;
            stream.write_all(command.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).map(|_| answer)
        };
        ask().unwrap_or_default()
    }

    /// The ephemeral nodes below a path, in the order in which they were made, each with its session. Of an ensemble, only the
    /// leader knows.
    #[track_caller]
    pub fn nodes(&self, path: &str) -> Vec<(String, String)> {
        let (dump, mut session, mut nodes) = (self.dump(), "", Vec::new());
        for line in dump.lines().skip_while(|line| !line.starts_with("ephemeral nodes")) {
            match line.strip_prefix('\t') {
                Some(node) if node.strip_prefix(path).is_some_and(|rest| rest.starts_with('/')) => {
                    nodes.push((node.to_owned(), session.to_owned()));
                }
                _ => session = line.trim_end_matches(':'),
            }
        }
        nodes.sort_by_key(|(node, _)| node.get(node.len().saturating_sub(SEQUENCE)..).map(str::to_owned));
        nodes
    }

    /// Whether a session has not ended.
    #[track_caller]
    pub fn has_session(&self, session: &str) -> bool {
        let dump = self.dump();
        dump.lines().take_while(|line| !line.starts_with("ephemeral nodes")).any(|line| line.trim() == session)
    }

    /// Deletes a node, as any client may.
    #[track_caller]
    pub fn delete(&self, path: &str) {
        let code = stranger::delete(self.addr(), path).unwrap_or_else(|error| panic!("{path} cannot be deleted: {error}"));
        assert_eq!(code, 0, "{path} cannot be deleted");
    }

    /// Makes a node without data, as any client may. Returns whether it was not there.
    #[track_caller]
    pub fn create(&self, path: &str) -> bool {
        stranger::create(self.addr(), path).unwrap_or_else(|error| panic!("{path} cannot be made: {error}")) == 0
    }

    #[track_caller]
    fn dump(&self) -> String {
        let dump = self.four_letters("dump");
        assert!(dump.contains("ephemeral nodes"), "zookeeper at port {} shows no nodes: {dump}", self.port);
        dump
    }

    /// The log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join(LOG)).unwrap_or_default()
    }

    fn prepared(port: u16) -> Self {
        guardian::watch_over_us().expect("a guardian can be started");
        let dir = TempDir::with_prefix("zookeeper-").expect("a temporary directory can be made");
        Self { dir, port, settings: String::new(), process: Mutex::default() }
    }

    fn process(&self) -> MutexGuard<'_, Option<Spawned>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it serves.
    pub fn is_ready(&self) -> bool {
        self.four_letters("srvr").contains("Mode: ")
    }

    fn wait_until_ready(&self) {
        let deadline = Instant::now() + START;
        while !self.is_ready() {
            assert!(Instant::now() < deadline, "zookeeper was not ready within {START:?}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Starts the process, and waits until it listens; false when its port was taken.
    fn launch(&self) -> bool {
        let (dir, port, tick) = (self.dir.path(), self.port, TICK.as_millis());
        let mut settings = format!(
            "tickTime={tick}\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n\
             maxSessionTimeout=120000\nadmin.enableServer=false\n4lw.commands.whitelist=*\ninitLimit=50\nsyncLimit=10\n",
            dir.join("data").display()
        );
        settings += &self.settings;
        fs::create_dir_all(dir.join("data")).expect("a directory of ours can be written");
        fs::write(dir.join("zoo.cfg"), settings).expect("a directory of ours can be written");
        let log = fs::File::create(dir.join(LOG)).expect("a directory of ours can be written");
        assert!(Path::new(CLASSES).exists(), "there is no {CLASSES}: apt-get install zookeeper");
        let mut java = Command::new("java");
        // Nothing here outlives the machine.
        java.args(["-Xmx128m", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dzookeeper.forceSync=no"]);
        java.args(["-Dzookeeper.preAllocSize=64", "-Dzookeeper.jmx.log4j.disable=true", "-cp", CLASSES, PROGRAM, "zoo.cfg"]);
        java.current_dir(dir).stdin(Stdio::null());
        java.stderr(log.try_clone().expect("a file can be cloned")).stdout(log);
        let mut process = Spawned::spawn(&mut java).expect("java can be started: apt-get install zookeeper");
        let deadline = Instant::now() + START;
        while TcpStream::connect(self.addr()).is_err() {
            if let Some(status) = process.child().try_wait().expect("a child of ours can be waited for") {
                let log = self.log();
                assert!(log.contains("in use"), "zookeeper ended with {status}:\n{log}");
                return false;
            }
            assert!(Instant::now() < deadline, "zookeeper did not listen within {START:?}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        *self.process() = Some(process);
        true
    }
}

/// Three servers, of which two are enough.
#[derive(Debug)]
pub struct ZooKeeperEnsemble {
    /// Its servers.
    pub servers: Vec<ZooKeeperServer>,
    /// Of each server: its ways to the others, when one of them leads.
    links: Vec<Vec<Proxy>>,
}

impl ZooKeeperEnsemble {
    /// Starts three, and waits until all serve.
    pub fn start() -> Self {
        Self::launch(false)
    }

    /// As [`start`](Self::start), for [`cut_off`](Self::cut_off). The leader has to stay: on a link to one that is gone, the others
    /// wait for seconds.
    pub fn start_with_links() -> Self {
        Self::launch(true)
    }

    fn launch(has_links: bool) -> Self {
        let mut servers: Vec<_> = (0..3).map(|_| ZooKeeperServer::prepared(free_port())).collect();
        let ports: Vec<_> = servers.iter().map(|_| [free_port(), free_port()]).collect();
        let mut links: Vec<Vec<Proxy>> = servers.iter().map(|_| Vec::new()).collect();
        for (at, (server, links)) in servers.iter_mut().zip(&mut links).enumerate() {
            for (other, [port, election]) in ports.iter().enumerate() {
                let mut port = *port;
                if has_links && other != at {
                    let link = Proxy::start_link((Ipv4Addr::LOCALHOST, port).into());
                    port = link.addr().port();
                    links.push(link);
                }
                let _ = writeln!(server.settings, "server.{}=127.0.0.1:{port}:{election}", other + 1);
            }
            let data = server.dir.path().join("data");
            fs::create_dir_all(&data).expect("a directory of ours can be written");
            fs::write(data.join("myid"), format!("{}\n", at + 1)).expect("a directory of ours can be written");
            assert!(server.launch(), "a port of the ensemble was taken meanwhile");
        }
        servers.iter().for_each(ZooKeeperServer::wait_until_ready);
        Self { servers, links }
    }

    /// Lets nothing pass between a server that follows and the one that leads. Elections go on.
    pub fn cut_off(&self, server: usize) {
        self.links[server].iter().for_each(Proxy::black_hole);
    }

    /// Lets each message between a server that follows and the one that leads take so long.
    pub fn slow_down(&self, server: usize, delay: Duration) {
        self.links[server].iter().for_each(|link| link.delay(delay));
    }

    /// Ends that a server is cut off.
    pub fn mend(&self, server: usize) {
        self.links[server].iter().for_each(Proxy::heal);
    }

    /// The store URL of a chroot, with all its servers.
    pub fn url(&self, chroot: &str) -> String {
        let hosts: Vec<_> = self.servers.iter().map(|server| server.addr().to_string()).collect();
        format!("zookeeper://{}/{chroot}", hosts.join(","))
    }

    /// The number of a server that follows.
    pub fn follower(&self) -> usize {
        let leader = self.leader().addr();
        self.servers.iter().position(|server| server.addr() != leader).expect("two follow")
    }

    /// The server that leads now. Waits for one.
    pub fn leader(&self) -> &ZooKeeperServer {
        let leads = |server: &&ZooKeeperServer| server.four_letters("srvr").contains("Mode: leader");
        let mut leader = None;
        wait_until(START, "a leader", || {
            leader = self.servers.iter().find(leads);
            leader.is_some()
        });
        leader.expect("it was just there")
    }
}
