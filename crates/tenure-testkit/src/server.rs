//! A real server of a test: a process with a directory and ports of its own.
//!
//! All servers are started, stopped, killed and restarted here. [`Kind`] has what differs from one to another.

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::clock::ShiftedClock;
use crate::guardian;
use crate::process::{self, Signal, Spawned, children, free_port, is_alive, wait_until};
use crate::tls::Certificates;
use crate::unprivileged::User;

/// The longest that a server takes to start, or to follow another, on a machine that has other work.
pub(crate) const START: Duration = Duration::from_secs(60);
/// How many groups of ports are tried.
const ATTEMPTS: usize = 20;
const LOG: &str = "log";

/// The particulars of one kind of server.
pub trait Kind: Debug + Send + Sync + Sized + 'static {
    /// Its name in messages.
    const NAME: &str;
    /// The remedy if its program is missing.
    const REMEDY: &str;
    /// The user as whom it runs if the tests run as root.
    const USER: Option<&str> = None;

    /// Fills its new directory.
    fn prepare(_server: &Server<Self>) {}

    /// Returns its command, without the arguments of the builder.
    fn command(server: &Server<Self>) -> Command;

    /// Whether the process `pid` answers, and not another at the same port.
    fn is_ready(server: &Server<Self>, pid: u32) -> bool;

    /// Completes a new server that is ready.
    fn complete(_server: &Server<Self>) {}
}

/// A kind of server that takes connections with TLS.
pub trait Tls: Kind {}

/// How to start a server.
#[derive(Clone, Debug, Default)]
pub struct Builder<K> {
    pub(crate) kind: K,
    pub(crate) arguments: Vec<String>,
    pub(crate) certificates: Option<Certificates>,
    pub(crate) clock: Option<Arc<ShiftedClock>>,
}

impl<K: Kind> Builder<K> {
    pub(crate) fn of(kind: K) -> Self {
        Self { kind, arguments: Vec::new(), certificates: None, clock: None }
    }

    /// Gives the server clocks that [`Server::shift_clock`] moves; needs a C compiler.
    #[must_use]
    pub fn shifted_clock(mut self) -> Self {
        let clock = ShiftedClock::new();
        clock.open_to_all();
        self.clock = Some(Arc::new(clock));
        self
    }
}

impl<K: Tls> Builder<K> {
    /// Takes connections with TLS: etcd no others, Redis on a second port, the databases on their only one.
    #[must_use]
    pub fn tls(mut self, certificates: &Certificates) -> Self {
        self.certificates = Some(certificates.clone());
        self
    }
}

impl<K: Kind + Default> Builder<K> {
    /// Starts the server, and returns when it answers.
    pub fn start(self) -> Server<K> {
        Server::start_together(vec![self], |_| ()).remove(0)
    }
}

/// A running server, killed and reaped when this is dropped. Its directory goes with it.
#[derive(Debug)]
pub struct Server<K> {
    // It ends before its directory is removed.
    process: Mutex<Option<Spawned>>,
    dir: TempDir,
    pub(crate) user: Option<User>,
    /// The first is for clients. Each kind says what the others are for.
    pub(crate) ports: [u16; 4],
    pub(crate) how: Builder<K>,
}

impl<K: Kind + Default> Server<K> {
    /// Starts one with the defaults.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// For one with settings of its own.
    pub fn builder() -> Builder<K> {
        Builder::default()
    }

    /// The one that all tests of this process share, for those that do not harm it. It ends with the process.
    pub fn shared() -> &'static Self {
        static ALL: Mutex<BTreeMap<TypeId, &'static (dyn Any + Send + Sync)>> = Mutex::new(BTreeMap::new());
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let server = all.entry(TypeId::of::<K>()).or_insert_with(|| Box::leak(Box::new(Self::start())));
        server.downcast_ref().expect("each kind has a server of its type")
    }
}

impl<K: Kind> Server<K> {
    /// Starts servers that know one another by what `introduce` tells them about their ports.
    pub(crate) fn start_together(mut how: Vec<Builder<K>>, mut introduce: impl FnMut(&mut [Self])) -> Vec<Self> {
        guardian::watch_over_us().expect("a guardian can be started");
        // Somebody else may take a port between its choice and the server's bind.
        for _ in 0..ATTEMPTS {
            let mut servers: Vec<Self> = how.drain(..).map(Self::new).collect();
            introduce(&mut servers);
            servers.iter().for_each(K::prepare);
            if Self::launch(&servers) {
                servers.iter().for_each(K::complete);
                return servers;
            }
            how.extend(servers.into_iter().map(|server| server.how));
        }
        panic!("{} found no free port in {ATTEMPTS} attempts", K::NAME)
    }

    fn new(how: Builder<K>) -> Self {
        let dir = TempDir::with_prefix(format!("{}-", K::NAME)).expect("a temporary directory can be made");
        let user = K::USER.and_then(User::for_server);
        user.inspect(|user| user.give(dir.path()));
        Self { process: Mutex::default(), dir, user, ports: [(); 4].map(|()| free_port()), how }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.ports[0]
    }

    /// The server's directory with its data and its log.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The log since it was last started.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir().join(LOG)).unwrap_or_default()
    }

    /// Whether it was started and not killed.
    pub fn is_running(&self) -> bool {
        self.process().is_some()
    }

    /// The process id; panics while the server is killed.
    pub fn pid(&self) -> u32 {
        self.process().as_ref().expect("the server was killed").pid()
    }

    /// Freezes it with all its processes. Connections can still be made, and nothing is answered.
    pub fn stop(&self) {
        self.signal(Signal::Stop);
    }

    /// Lets a frozen server go on. It executes now what was sent meanwhile.
    pub fn cont(&self) {
        self.signal(Signal::Cont);
    }

    /// The first of its processes starts the others, so it is the first to be stopped.
    fn signal(&self, signal: Signal) {
        let mut process = self.process();
        let first = process.as_mut().expect("the server was killed");
        first.signal(signal).expect("the server runs");
        for helper in children(first.pid()) {
            // It may have ended meanwhile.
            let _ = process::signal(helper, signal);
        }
    }

    /// Kills it with all its processes, as `SIGKILL` does, and reaps it; once more is no error.
    pub fn kill(&self) {
        if let Some(mut process) = self.process().take() {
            let helpers = children(process.pid());
            process.kill();
            // They notice it by themselves, but not at once, and keep the memory that they share.
            for helper in &helpers {
                let _ = process::signal(*helper, Signal::Kill);
            }
            wait_until(START, "the helpers of the server to end", || !helpers.iter().any(|helper| is_alive(*helper)));
        }
    }

    /// Kills what still runs, and starts it again with the data it had, on the same port.
    pub fn restart(&self) {
        Self::restart_together(std::slice::from_ref(self));
    }

    /// Kills servers, and starts all of them again with their data and on their ports.
    pub(crate) fn restart_together(servers: &[Self]) {
        let deadline = Instant::now() + START;
        loop {
            servers.iter().for_each(Self::kill);
            if Self::launch(servers) {
                return;
            }
            assert!(Instant::now() < deadline, "a port of {} was taken while it was down", K::NAME);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sets its wall clock this far off the true time from now on, so 0 sets it right; panics without [`Builder::shifted_clock`]. Its
    /// monotonic clock goes on undisturbed.
    pub fn shift_clock(&self, milliseconds: i64) {
        self.how.clock.as_ref().expect("the server was started with a clock of its own").shift(milliseconds);
        // Valkey since 9.1 looks at the wall clock once in a millisecond and adds what its monotonic clock says. Nothing tells when.
        std::thread::sleep(Duration::from_millis(2));
    }

    /// Returns a command that runs in the server's directory and as its user.
    pub(crate) fn command_of(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.dir()).stdin(Stdio::null());
        self.user.inspect(|user| user.run(&mut command));
        command
    }

    /// Runs a command to its end, and returns what it says; panics if it fails.
    #[track_caller]
    pub(crate) fn run(command: &mut Command) -> String {
        let output = spawn::<K>(command.stdout(Stdio::piped()).stderr(Stdio::piped())).wait_with_output();
        let output = output.expect("the output of a child can be read");
        let [said, complaint] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success(), "{command:?} failed: {said}{complaint}");
        said
    }

    /// Writes a file into the server's directory, which its user may read.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir().join(name);
        fs::write(&path, content).expect("the server's directory can be written");
        self.user.inspect(|user| user.give(&path));
        path
    }

    /// The certificate and its key, in files that the user of the server alone may read.
    pub(crate) fn certificate(&self) -> Option<[PathBuf; 2]> {
        let certificates = self.how.certificates.as_ref()?;
        let files = [("server.crt", certificates.server_cert()), ("server.key", certificates.server_key())];
        Some(files.map(|(name, file)| {
            let copy = self.write(name, fs::read(file).expect("a certificate can be read"));
            fs::set_permissions(&copy, Permissions::from_mode(0o600)).expect("our file");
            copy
        }))
    }

    fn process(&self) -> MutexGuard<'_, Option<Spawned>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the processes and waits until all of them answer; false when a port was taken.
    fn launch(servers: &[Self]) -> bool {
        let processes: Vec<Spawned> = servers.iter().map(Self::spawn).collect();
        servers.iter().zip(processes).all(|(server, process)| server.wait_for(process))
    }

    fn spawn(&self) -> Spawned {
        // The log is the output, so that a complaint about the arguments stands there too.
        let log = fs::File::create(self.dir().join(LOG)).expect("the server's directory can be written");
        let mut command = K::command(self);
        if let Some(clock) = &self.how.clock {
            clock.apply(&mut command);
        }
        command.args(&self.how.arguments).stderr(log.try_clone().expect("a file can be cloned")).stdout(log);
        spawn::<K>(&mut command)
    }

    /// Waits until the process answers; false when a port was taken.
    fn wait_for(&self, mut process: Spawned) -> bool {
        let began = Instant::now();
        while !K::is_ready(self, process.pid()) {
            if let Some(status) = process.try_wait().expect("a child of ours can be waited for") {
                let log = self.log();
                assert!(log.contains("ddress already in use"), "{} ended with {status}:\n{log}", K::NAME);
                return false;
            }
            assert!(began.elapsed() < START, "{} was not ready within {START:?}:\n{}", K::NAME, self.log());
            // A server that takes seconds is not asked all the time.
            std::thread::sleep((began.elapsed() / 8).clamp(Duration::from_millis(2), Duration::from_millis(20)));
        }
        *self.process() = Some(process);
        true
    }
}

fn spawn<K: Kind>(command: &mut Command) -> Spawned {
    Spawned::spawn(command).unwrap_or_else(|error| {
        let program = command.get_program().display();
        match error.kind() {
            std::io::ErrorKind::NotFound => panic!("{program} not found: {}", K::REMEDY),
            _ => panic!("{program} cannot be started: {error}"),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Finds a port taken the first two times, and has a process that helps it.
    #[derive(Debug, Default)]
    struct Unlucky(AtomicUsize);

    impl Kind for Unlucky {
        const NAME: &str = "unlucky";
        const REMEDY: &str = "every system has it";

        fn command(server: &Server<Self>) -> Command {
            let is_taken = server.how.kind.0.fetch_add(1, Ordering::Relaxed) < 2;
            let mut shell = server.command_of("sh");
            shell.args(["-c", if is_taken { "echo Address already in use" } else { "sleep 60 & echo ready; wait" }]);
            shell
        }

        fn is_ready(server: &Server<Self>, _pid: u32) -> bool {
            server.log().contains("ready\n")
        }
    }

    #[test]
    fn a_new_server_gets_other_ports_if_one_is_taken_and_its_helpers_end_with_it() {
        let server = Server::<Unlucky>::start();
        assert_eq!(server.how.kind.0.load(Ordering::Relaxed), 3);
        let helpers = children(server.pid());
        assert!(helpers.iter().any(|helper| is_alive(*helper)));
        server.stop();
        assert!(helpers.iter().all(|helper| process::is_stopped(*helper)));
        server.kill();
        assert!(!helpers.iter().any(|helper| is_alive(*helper)));
    }
}
