//! A real ZooKeeper for one test, for all tests of a process, or an ensemble of three.

mod stranger;

use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::process::{fresh, wait_until};
use crate::proxy::Proxy;
use crate::server::{Builder, Kind, START, Server};

/// Where Debian has it.
pub const CLASSES: &str = "/usr/share/java/zookeeper.jar";
/// How many digits stand at the end of a sequential node.
const SEQUENCE: usize = 10;
const PROGRAM: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";

/// The length of a tick: sessions end a tick or so after their timeout.
pub const TICK: Duration = Duration::from_millis(200);

/// A ZooKeeper. It and its data go when this is dropped.
///
/// Its ports are for clients, and in an ensemble for those that follow it, and for elections.
pub type ZooKeeperServer = Server<ZooKeeper>;

/// The particulars of ZooKeeper.
#[derive(Clone, Debug, Default)]
pub struct ZooKeeper {
    /// Settings beside those that all have, as those of its ensemble.
    settings: String,
    /// Its number in an ensemble.
    number: Option<usize>,
}

impl Kind for ZooKeeper {
    const NAME: &str = "zookeeper";
    const REMEDY: &str = "apt-get install zookeeper";

    fn prepare(server: &ZooKeeperServer) {
        fs::create_dir(server.dir().join("data")).expect("a directory of ours can be written");
        if let Some(number) = server.how.kind.number {
            server.write("data/myid", format!("{number}\n"));
        }
    }

    fn command(server: &ZooKeeperServer) -> Command {
        assert!(Path::new(CLASSES).exists(), "there is no {CLASSES}: {}", Self::REMEDY);
        let (tick, data) = (TICK.as_millis(), server.dir().join("data"));
        let mut settings = format!(
            "tickTime={tick}\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n\
             maxSessionTimeout=120000\nadmin.enableServer=false\n4lw.commands.whitelist=*\ninitLimit=50\nsyncLimit=10\n",
            data.display(),
            server.port()
        );
        settings += &server.how.kind.settings;
        server.write("zoo.cfg", settings);
        let mut java = server.command_of("java");
        // Nothing here outlives the machine.
        java.args(["-Xmx128m", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dzookeeper.forceSync=no"]);
        java.args(["-Dzookeeper.preAllocSize=64", "-Dzookeeper.jmx.log4j.disable=true", "-cp", CLASSES, PROGRAM, "zoo.cfg"]);
        java
    }

    fn is_ready(server: &ZooKeeperServer, _pid: u32) -> bool {
        server.four_letters("conf").contains(&server.dir().display().to_string())
    }
}

impl ZooKeeperServer {
    /// Starts one alone, with more lines of settings.
    pub fn start_with(settings: &str) -> Self {
        Builder::of(ZooKeeper { settings: settings.to_owned(), number: None }).start()
    }

    /// A path that nobody else in this process has.
    pub fn fresh_chroot() -> String {
        fresh("test")
    }

    /// Whether it serves.
    pub fn is_ready(&self) -> bool {
        self.four_letters("srvr").contains("Mode: ")
    }

    /// A store URL for a way to it: its own address, or that of a proxy.
    pub fn url_at(addr: SocketAddr, chroot: &str) -> String {
        format!("zookeeper://{addr}/{chroot}")
    }

    /// The store URL of a chroot.
    pub fn url(&self, chroot: &str) -> String {
        Self::url_at(self.addr(), chroot)
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
        assert!(dump.contains("ephemeral nodes"), "zookeeper at port {} shows no nodes: {dump}", self.port());
        dump
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
        let mut links = Vec::new();
        let servers = Server::start_together(vec![Builder::default(); 3], |servers| {
            let ports: Vec<_> = servers.iter().map(|server| server.ports).collect();
            links = ports.iter().map(|_| Vec::new()).collect();
            for (at, (server, links)) in servers.iter_mut().zip(&mut links).enumerate() {
                let mut settings = String::new();
                for (other, [_, port, election, _]) in ports.iter().enumerate() {
                    let mut port = *port;
                    if has_links && other != at {
                        let link = Proxy::start_link((Ipv4Addr::LOCALHOST, port).into());
                        port = link.addr().port();
                        links.push(link);
                    }
                    let _ = writeln!(settings, "server.{}=127.0.0.1:{port}:{election}", other + 1);
                }
                server.how.kind = ZooKeeper { settings, number: Some(at + 1) };
            }
        });
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
