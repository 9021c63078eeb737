//! A real etcd of one member or of three, for one test or for all tests of a process.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::process::{Spawned, fresh, wait_until};
use crate::proxy::Proxy;
use crate::server::{self, Kind, START, Server, Tls};

/// How to start an [`EtcdCluster`].
pub type Builder = server::Builder<Etcd>;

/// The particulars of a member of an etcd. Its ports are for clients and for other members.
#[derive(Clone, Debug)]
pub struct Etcd {
    members: usize,
    has_links: bool,
    name: String,
    /// In front of it, for the others.
    link: Option<Arc<Proxy>>,
    /// The options that say who is in the cluster.
    cluster: Vec<String>,
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
        self.arguments.push(option);
        self
    }

    /// Puts a proxy in front of each member, for the other members: [`EtcdCluster::link`].
    #[must_use]
    pub fn links(mut self) -> Self {
        self.kind.has_links = true;
        self
    }

    /// Starts all members, and waits until they answer.
    pub fn start(self) -> EtcdCluster {
        let has_links = self.kind.has_links;
        let members = Server::start_together(vec![self.clone(); self.kind.members], |members| {
            for (number, member) in members.iter_mut().enumerate() {
                member.how.kind.name = format!("m{number}");
                let link = || Arc::new(Proxy::start_opaque((Ipv4Addr::LOCALHOST, member.ports[1]).into()));
                member.how.kind.link = has_links.then(link);
            }
            let all = peers(members);
            let cluster = [format!("--initial-cluster={all}"), "--initial-cluster-state=new".to_owned()];
            for member in members {
                member.how.kind.cluster = cluster.to_vec();
            }
        });
        EtcdCluster { members }
    }
}

impl Kind for Etcd {
    const NAME: &str = "etcd";
    const REMEDY: &str = "apt-get install etcd-server etcd-client";

    fn command(server: &Server<Self>) -> Command {
        let ([client, peer, ..], kind, scheme) = (server.ports, &server.how.kind, scheme(server));
        let mut etcd = server.command_of("etcd");
        // Its settings come as variables as well.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ETCD")) {
            etcd.env_remove(name);
        }
        etcd.args(["--data-dir=data", &format!("--name={}", kind.name)]).args(&kind.cluster);
        for option in ["--listen-client-urls", "--advertise-client-urls"] {
            etcd.arg(format!("{option}={scheme}://127.0.0.1:{client}"));
        }
        etcd.arg(format!("--listen-peer-urls=http://127.0.0.1:{peer}"));
        etcd.arg(format!("--initial-advertise-peer-urls={}", peer_url(server)));
        if let Some(certificates) = &server.how.certificates {
            etcd.arg("--client-cert-auth").arg(format!("--trusted-ca-file={}", certificates.ca().display()));
            etcd.arg(format!("--cert-file={}", certificates.server_cert().display()));
            etcd.arg(format!("--key-file={}", certificates.server_key().display()));
        }
        // Survives a kill, and no crash of the machine.
        etcd.arg("--unsafe-no-fsync");
        // Passwords that many check at once would take the whole machine.
        etcd.arg("--bcrypt-cost=4");
        etcd
    }

    fn is_ready(server: &Server<Self>, _pid: u32) -> bool {
        server.log().contains("ready to serve client requests")
    }
}

impl Tls for Etcd {}

fn scheme(member: &Server<Etcd>) -> &'static str {
    if member.how.certificates.is_some() { "https" } else { "http" }
}

/// Where the other members find this one.
fn peer_url(member: &Server<Etcd>) -> String {
    let own = (Ipv4Addr::LOCALHOST, member.ports[1]).into();
    format!("http://{}", member.how.kind.link.as_ref().map_or(own, |link| link.addr()))
}

/// All members with their addresses for each other.
fn peers(members: &[Server<Etcd>]) -> String {
    let peers: Vec<_> = members.iter().map(|member| format!("{}={}", member.how.kind.name, peer_url(member))).collect();
    peers.join(",")
}

/// An etcd. It and its data go when this is dropped.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<Server<Etcd>>,
}

impl EtcdCluster {
    /// One with settings of its own.
    pub fn of(members: usize) -> Builder {
        Builder::of(Etcd { members, has_links: false, name: String::new(), link: None, cluster: Vec::new() })
    }

    /// The one that all tests of this process share, for those that do not harm it. It has one member, and ends with the process.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<EtcdCluster> = OnceLock::new();
        SHARED.get_or_init(|| Self::of(1).start())
    }

    /// A prefix that nobody else in this process has.
    pub fn fresh_prefix() -> String {
        fresh("test") + "/"
    }

    /// Where a member listens.
    pub fn addr(&self, member: usize) -> SocketAddr {
        self.members[member].addr()
    }

    /// The way of the other members to this one.
    pub fn link(&self, member: usize) -> &Proxy {
        self.members[member].how.kind.link.as_ref().expect("it was started with links")
    }

    /// Writes a snapshot of the data to a file of this name, in the directory of the first member.
    pub fn save(&self, name: &str) {
        self.ctl(&["snapshot", "save", &self.members[0].dir().join(name).display().to_string()]);
    }

    /// Replaces the data of the one member by a snapshot, and starts it.
    pub fn restore(&self, name: &str) {
        let member = &self.members[0];
        member.kill();
        fs::remove_dir_all(member.dir().join("data")).expect("the server's data can be removed");
        let (cluster, peer) = (&member.how.kind.cluster[0], format!("--initial-advertise-peer-urls={}", peer_url(member)));
        let mut restore = self.etcdctl();
        restore.current_dir(member.dir()).args(["snapshot", "restore", name, "--name=m0", "--data-dir=data", cluster, &peer]);
        Server::<Etcd>::run(&mut restore);
        member.restart();
    }

    /// A store URL for a way to a member: its own address, or that of a proxy.
    pub fn url_at(addr: SocketAddr, prefix: &str) -> String {
        format!("etcd://{addr}?prefix={prefix}")
    }

    /// The store URL of all members.
    pub fn url(&self, prefix: &str) -> String {
        let members: Vec<_> = self.members.iter().map(|member| member.addr().to_string()).collect();
        format!("etcd://{}?prefix={prefix}", members.join(","))
    }

    /// `etcdctl`, for all members.
    pub fn etcdctl(&self) -> Command {
        self.etcdctl_of(&self.members)
    }

    fn etcdctl_of(&self, members: &[Server<Etcd>]) -> Command {
        let urls: Vec<_> = members.iter().map(|member| format!("{}://{}", scheme(member), member.addr())).collect();
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", urls.join(","))).stdin(Stdio::null());
        if let Some(certificates) = &self.members[0].how.certificates {
            let files = [("cacert", certificates.ca()), ("cert", certificates.server_cert()), ("key", certificates.server_key())];
            command.args(files.map(|(option, file)| format!("--{option}={}", file.display())));
        }
        command
    }

    /// Runs `etcdctl` with arguments and returns its output; panics if it fails.
    #[track_caller]
    pub fn ctl(&self, arguments: &[&str]) -> String {
        Server::<Etcd>::run(self.etcdctl().args(arguments))
    }

    /// The member that leads now.
    pub fn leader(&self) -> usize {
        let leads = |member: &Server<Etcd>| {
            let mut status = self.etcdctl_of(std::slice::from_ref(member));
            status.args(["--command-timeout=2s", "endpoint", "status", "--write-out=fields"]);
            let output = Spawned::output(&mut status).expect("etcdctl can be started");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let field = |name: &str| {
                let line = text.lines().find(|line| line.starts_with(&format!("\"{name}\"")))?;
                line.split(':').nth(1).map(|value| value.trim().to_owned())
            };
            field("Leader").is_some() && field("Leader") == field("MemberID")
        };
        let mut leader = None;
        wait_until(START, "a member to lead", || {
            leader = self.members.iter().position(leads);
            leader.is_some()
        });
        leader.expect("just seen")
    }

    /// Freezes a member.
    pub fn stop(&self, member: usize) {
        self.members[member].stop();
    }

    /// Lets it go on.
    pub fn cont(&self, member: usize) {
        self.members[member].cont();
    }

    /// Kills a member as `SIGKILL` does.
    pub fn kill(&self, member: usize) {
        self.members[member].kill();
    }

    /// Starts a member again with the data it had, on the same ports.
    pub fn restart(&self, member: usize) {
        self.members[member].restart();
    }

    /// Kills all members, and starts them again with their data.
    pub fn restart_all(&self) {
        Server::restart_together(&self.members);
    }

    /// Starts a member more, which learns and has no vote, and waits until it answers clients. It goes when this is dropped.
    pub fn add_learner(&self) -> Server<Etcd> {
        let mut how = Self::of(1);
        "learner".clone_into(&mut how.kind.name);
        let mut learner = Server::start_together(vec![how], |learner| {
            self.ctl(&["member", "add", "learner", "--learner", &format!("--peer-urls={}", peer_url(&learner[0]))]);
            let all = [peers(&self.members), peers(learner)].join(",");
            learner[0].how.kind.cluster = vec![format!("--initial-cluster={all}"), "--initial-cluster-state=existing".to_owned()];
        });
        learner.remove(0)
    }
}
