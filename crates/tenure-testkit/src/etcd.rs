//! A real etcd of one member or of three, for one test or for all tests of a process.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::guardian;
use crate::process::{Signal, Spawned, free_port, wait_until};
use crate::proxy::Proxy;
use crate::tls::Certificates;

const START: Duration = Duration::from_secs(60);
/// The line in the log of a member that serves clients.
const READY: &str = "ready to serve client requests";

/// How to start an [`EtcdCluster`].
#[derive(Debug, Default)]
pub struct Builder {
    members: usize,
    certificates: Option<[std::path::PathBuf; 3]>,
    options: Vec<String>,
    has_links: bool,
}

impl Builder {
    /// Has a new leader elected when the present one was silent for so long. The shortest lease is one and a half of it.
    #[must_use]
    pub fn election(self, timeout: Duration) -> Self {
        let timeout = timeout.as_millis();
        self.option(format!("--election-timeout={timeout}")).option(format!("--heartbeat-interval={}", (timeout / 10).max(1)))
    }

    /// Has room for so many bytes.
    #[must_use]
    pub fn quota(self, bytes: u64) -> Self {
        self.option(format!("--quota-backend-bytes={bytes}"))
    }

    fn option(mut self, option: String) -> Self {
        self.options.push(option);
        self
    }

    /// Puts a proxy in front of each member, for the other members: [`EtcdCluster::link`].
    #[must_use]
    pub fn links(mut self) -> Self {
        self.has_links = true;
        self
    }

    /// Takes connections with TLS alone, of clients with a certificate.
    #[must_use]
    pub fn tls(mut self, certificates: &Certificates) -> Self {
        self.certificates = Some([certificates.ca(), certificates.server_cert(), certificates.server_key()]);
        self
    }

    /// Starts all members, and waits until they answer.
    pub fn start(self) -> EtcdCluster {
        guardian::watch_over_us().expect("a guardian can be started");
        loop {
            let dir = TempDir::with_prefix("etcd-").expect("a temporary directory can be made");
            let ports = (0..self.members.max(1)).map(|_| [free_port(), free_port()]).collect::<Vec<_>>();
            let processes = ports.iter().map(|_| Mutex::default()).collect();
            let link = |[_, peer]: &[u16; 2]| Proxy::start_opaque((Ipv4Addr::LOCALHOST, *peer).into());
            let links = ports.iter().filter(|_| self.has_links).map(link).collect();
            let (certificates, options) = (self.certificates.clone(), self.options.clone());
            let cluster = EtcdCluster { dir, ports, links, processes, certificates, options };
            if cluster.launch_all() {
                return cluster;
            }
        }
    }
}

/// An etcd. It and its data go when this is dropped.
#[derive(Debug)]
pub struct EtcdCluster {
    dir: TempDir,
    /// Of each member: for clients, and for other members.
    ports: Vec<[u16; 2]>,
    /// In front of each member, for the others.
    links: Vec<Proxy>,
    processes: Vec<Mutex<Option<Spawned>>>,
    certificates: Option<[std::path::PathBuf; 3]>,
    options: Vec<String>,
}

impl EtcdCluster {
    /// One with settings of its own.
    pub fn of(members: usize) -> Builder {
        Builder { members, ..Builder::default() }
    }

    /// The one that all tests of this process share, for those that do not harm it. It has one member, and ends with the process.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<EtcdCluster> = OnceLock::new();
        SHARED.get_or_init(|| Self::of(1).start())
    }

    /// A prefix that nobody else in this process has.
    pub fn fresh_prefix() -> String {
        static LAST: AtomicU32 = AtomicU32::new(0);
        format!("test{}-{}/", std::process::id(), LAST.fetch_add(1, Ordering::Relaxed))
    }

    /// Where a member listens.
    pub fn addr(&self, member: usize) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.ports[member][0]).into()
    }

    /// The way of the other members to this one.
    pub fn link(&self, member: usize) -> &Proxy {
        &self.links[member]
    }

    /// Where the other members find this one.
    fn peer(&self, member: usize) -> SocketAddr {
        self.links.get(member).map_or((Ipv4Addr::LOCALHOST, self.ports[member][1]).into(), Proxy::addr)
    }

    /// Writes a snapshot of the data to a file of this name, in the directory of the cluster.
    pub fn save(&self, name: &str) {
        self.ctl(&["snapshot", "save", &self.dir.path().join(name).display().to_string()]);
    }

    /// Replaces the data of the one member by a snapshot, and starts it.
    pub fn restore(&self, name: &str) {
        self.kill(0);
        let data = self.dir.path().join("data0");
        fs::remove_dir_all(&data).expect("the server's data can be removed");
        let peer = format!("http://{}", self.peer(0));
        let (snapshot, data) = (self.dir.path().join(name).display().to_string(), data.display().to_string());
        let (cluster, peers) = (format!("--initial-cluster=m0={peer}"), format!("--initial-advertise-peer-urls={peer}"));
        self.ctl(&["snapshot", "restore", &snapshot, "--name=m0", &format!("--data-dir={data}"), &cluster, &peers]);
        self.restart(0);
    }

    /// A store URL for a way to a member: its own address, or that of a proxy.
    pub fn url_at(addr: SocketAddr, prefix: &str) -> String {
        format!("etcd://{addr}?prefix={prefix}")
    }

    /// The store URL of all members.
    pub fn url(&self, prefix: &str) -> String {
        let members: Vec<_> = (0..self.ports.len()).map(|member| self.addr(member).to_string()).collect();
        format!("etcd://{}?prefix={prefix}", members.join(","))
    }

    /// `etcdctl`, for all members.
    pub fn etcdctl(&self) -> Command {
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        let members: Vec<_> = (0..self.ports.len()).map(|member| format!("{scheme}://{}", self.addr(member))).collect();
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", members.join(","))).stdin(Stdio::null());
        if let Some([ca, cert, key]) = &self.certificates {
            for (option, file) in [("cacert", ca), ("cert", cert), ("key", key)] {
                command.arg(format!("--{option}={}", file.display()));
            }
        }
        command
    }

    /// Runs `etcdctl` with arguments and returns its output; panics if it fails.
    #[track_caller]
    pub fn ctl(&self, arguments: &[&str]) -> String {
        let output =
            Spawned::output(self.etcdctl().args(arguments)).expect("etcdctl can be started: apt-get install etcd-client");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "etcdctl {arguments:?} failed: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The member that leads now.
    pub fn leader(&self) -> usize {
        let deadline = Instant::now() + START;
        loop {
            for member in 0..self.ports.len() {
                let mut one = Command::new("etcdctl");
                one.env("ETCDCTL_API", "3").args(["--command-timeout=2s", "endpoint", "status", "--write-out=fields"]);
                one.arg(format!("--endpoints=http://{}", self.addr(member))).stdin(Stdio::null());
                let output = Spawned::output(&mut one).expect("etcdctl can be started");
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                let field = |name: &str| {
                    let line = text.lines().find(|line| line.starts_with(&format!("\"{name}\"")))?;
                    line.split(':').nth(1).map(|value| value.trim().to_owned())
                };
                if field("Leader").is_some() && field("Leader") == field("MemberID") {
                    return member;
                }
            }
            assert!(Instant::now() < deadline, "no member leads");
        }
    }

    /// Freezes a member.
    pub fn stop(&self, member: usize) {
        self.signal(member, Signal::Stop);
    }

    /// Lets it go on.
    pub fn cont(&self, member: usize) {
        self.signal(member, Signal::Cont);
    }

    fn signal(&self, member: usize, signal: Signal) {
        self.process(member).as_mut().expect("it runs").signal(signal).expect("it runs");
    }

    /// Kills a member as `SIGKILL` does.
    pub fn kill(&self, member: usize) {
        if let Some(mut process) = self.process(member).take() {
            process.kill();
        }
    }

    /// Starts a member again with the data it had, on the same ports.
    pub fn restart(&self, member: usize) {
        self.kill(member);
        self.launch(member);
        assert!(self.is_ready(member), "a port of the member was taken meanwhile");
    }

    /// Kills all members, and starts them again with their data.
    pub fn restart_all(&self) {
        for member in 0..self.ports.len() {
            self.kill(member);
        }
        assert!(self.launch_all(), "a port of a member was taken meanwhile");
    }

    fn process(&self, member: usize) -> MutexGuard<'_, Option<Spawned>> {
        self.processes[member].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn launch_all(&self) -> bool {
        for member in 0..self.ports.len() {
            self.launch(member);
        }
        (0..self.ports.len()).all(|member| self.is_ready(member))
    }

    fn log(&self, member: usize) -> std::path::PathBuf {
        self.dir.path().join(format!("log{member}"))
    }

    /// Starts a member more, which learns and has no vote, and waits until it answers clients. It goes when this is dropped.
    pub fn add_learner(&self) -> Learner {
        let [client, peer] = [free_port(), free_port()];
        let url = format!("http://127.0.0.1:{peer}");
        self.ctl(&["member", "add", "learner", "--learner", &format!("--peer-urls={url}")]);
        let mut command = self.command("learner", [client, peer], &url);
        command.arg(format!("--initial-cluster={},learner={url}", self.peers())).arg("--initial-cluster-state=existing");
        let log = self.dir.path().join("log-learner");
        let process = spawned(&mut command, &log);
        wait_until(START, "a learner", || fs::read_to_string(&log).unwrap_or_default().contains(READY));
        Learner { addr: (Ipv4Addr::LOCALHOST, client).into(), _process: process }
    }

    /// All members with their addresses for each other.
    fn peers(&self) -> String {
        let peers: Vec<_> = (0..self.ports.len()).map(|member| format!("m{member}=http://{}", self.peer(member))).collect();
        peers.join(",")
    }

    fn launch(&self, member: usize) {
        let mut command = self.command(&format!("m{member}"), self.ports[member], &format!("http://{}", self.peer(member)));
        command.arg(format!("--initial-cluster={}", self.peers())).arg("--initial-cluster-state=new");
        *self.process(member) = Some(spawned(&mut command, &self.log(member)));
    }

    /// The command of a member, without the cluster that it is of. `url`: where the others find it.
    fn command(&self, name: &str, [client, peer]: [u16; 2], url: &str) -> Command {
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        let mut etcd = Command::new("etcd");
        etcd.current_dir(self.dir.path()).stdin(Stdio::null());
        // Its settings come as variables as well.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ETCD")) {
            etcd.env_remove(name);
        }
        etcd.arg(format!("--name={name}")).arg(format!("--data-dir=data{}", name.trim_start_matches('m')));
        for option in ["--listen-client-urls", "--advertise-client-urls"] {
            etcd.arg(format!("{option}={scheme}://127.0.0.1:{client}"));
        }
        etcd.arg(format!("--listen-peer-urls=http://127.0.0.1:{peer}"));
        etcd.arg(format!("--initial-advertise-peer-urls={url}"));
        if let Some([ca, cert, key]) = &self.certificates {
            etcd.arg("--client-cert-auth").arg(format!("--trusted-ca-file={}", ca.display()));
            etcd.arg(format!("--cert-file={}", cert.display())).arg(format!("--key-file={}", key.display()));
        }
        etcd.args(&self.options);
        // Survives a kill, and no crash of the machine.
        etcd.arg("--unsafe-no-fsync");
        // Passwords that many check at once would take the whole machine.
        etcd.arg("--bcrypt-cost=4");
        etcd
    }

    /// Waits until a member serves clients; false when a port was taken.
    fn is_ready(&self, member: usize) -> bool {
        let deadline = Instant::now() + START;
        let log = || fs::read_to_string(self.log(member)).unwrap_or_default();
        while !log().contains(READY) {
            if let Some(process) = self.process(member).as_mut()
                && let Some(status) = process.child().try_wait().expect("a child of ours can be waited for")
            {
                assert!(log().contains("address already in use"), "etcd ended with {status}:\n{}", log());
                return false;
            }
            assert!(Instant::now() < deadline, "etcd was not ready within {START:?}:\n{}", log());
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }
}

/// A member that learns.
#[derive(Debug)]
pub struct Learner {
    /// Where it listens.
    pub addr: SocketAddr,
    _process: Spawned,
}

fn spawned(etcd: &mut Command, log: &Path) -> Spawned {
    let log = fs::File::create(log).expect("the server's directory can be written");
    etcd.stderr(log.try_clone().expect("a file can be cloned")).stdout(log);
    Spawned::spawn(etcd).expect("etcd can be started: apt-get install etcd-server")
}
