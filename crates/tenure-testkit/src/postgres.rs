//! A real PostgreSQL for one test, or for all tests of a process.

mod pgbouncer;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub use self::pgbouncer::PgBouncer;
use crate::clock::ShiftedClock;
use crate::guardian;
use crate::process::{Signal, Spawned, free_port};
use crate::session::SqlSession;
use crate::tls::Certificates;
use crate::unprivileged::{User, newest_bin};

const START: Duration = Duration::from_secs(60);
const LOG: &str = "log";
const DATA: &str = "data";

/// How to start a [`PostgresServer`].
#[derive(Debug, Default)]
pub struct Builder {
    settings: Vec<String>,
    password: Option<String>,
    certificates: Option<(PathBuf, PathBuf)>,
    clock: Option<ShiftedClock>,
}

impl Builder {
    /// Adds one setting, as `set("max_connections", "5")`; the last one wins.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.extend(["-c".to_owned(), format!("{name}={value}")]);
        self
    }

    /// Wants this password of everybody.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Also takes connections with TLS.
    #[must_use]
    pub fn tls(mut self, certificates: &Certificates) -> Self {
        self.certificates = Some((certificates.server_cert(), certificates.server_key()));
        self
    }

    /// Gives it a clock that jumps.
    #[must_use]
    pub fn clock(mut self) -> Self {
        self.clock = Some(ShiftedClock::new());
        self
    }

    /// Makes the database cluster, and starts the server.
    pub fn start(self) -> PostgresServer {
        self.start_from(PostgresServer::initdb)
    }

    /// Starts the server on the data that a command makes.
    fn start_from(self, data: impl FnOnce(&PostgresServer) -> Command) -> PostgresServer {
        guardian::watch_over_us().expect("a guardian can be started");
        let dir = TempDir::with_prefix("postgres-").expect("a temporary directory can be made");
        let user = User::for_server(&["postgres"]);
        if let Some(user) = user {
            user.give(dir.path());
        }
        if let Some(clock) = &self.clock {
            clock.open_to_all();
        }
        let mut server = PostgresServer { dir, port: 0, user, how: self, process: Mutex::default() };
        server.initialize(&mut data(&server));
        loop {
            server.port = free_port();
            if server.launch() {
                return server;
            }
        }
    }
}

/// A PostgreSQL with a user `tenure`. It and its data go when this is dropped.
#[derive(Debug)]
pub struct PostgresServer {
    dir: TempDir,
    port: u16,
    user: Option<User>,
    how: Builder,
    process: Mutex<Option<Spawned>>,
}

impl PostgresServer {
    /// Starts one with the defaults.
    pub fn start() -> Self {
        Builder::default().start()
    }

    /// For one with settings of its own.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The one that all tests of this process share, for those that do not harm it. It ends with the process.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<PostgresServer> = OnceLock::new();
        SHARED.get_or_init(|| Self::builder().set("max_connections", "500").start())
    }

    /// The name of a table that nobody else in this process has.
    pub fn fresh_table() -> String {
        static LAST: AtomicU32 = AtomicU32::new(0);
        format!("locks_{}_{}", std::process::id(), LAST.fetch_add(1, Ordering::Relaxed))
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// A store URL for a way to it: its own address, or that of a proxy. The table is made.
    pub fn url_at(addr: SocketAddr, table: &str) -> String {
        format!("postgres://tenure@{addr}/postgres?create=yes&table={table}")
    }

    /// The store URL of a table.
    pub fn url(&self, table: &str) -> String {
        Self::url_at(self.addr(), table)
    }

    /// The log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join(LOG)).unwrap_or_default()
    }

    /// Runs statements, and returns the rows of the last with `|` between columns; panics if they are refused.
    #[track_caller]
    pub fn sql(&self, statements: &str) -> Vec<String> {
        let mut psql = self.psql();
        psql.args(["-v", "ON_ERROR_STOP=1", "-c", statements]);
        let output = Spawned::output(&mut psql).expect("psql can be started");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "psql refused {statements:?}: {said}");
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
    }

    /// A session that stays open.
    pub fn session(&self) -> SqlSession {
        SqlSession::of_psql(self.psql())
    }

    fn psql(&self) -> Command {
        let mut psql = psql_at(self.port);
        // Also while the server is read-only for others.
        psql.env("PGOPTIONS", "-c default_transaction_read_only=off");
        if let Some(password) = &self.how.password {
            psql.env("PGPASSWORD", password);
        }
        psql
    }

    /// Sets its clock this far off the true time.
    pub fn shift_clock(&self, milliseconds: i64) {
        self.how.clock.as_ref().expect("it was started with a clock of its own").shift(milliseconds);
    }

    /// Starts one that copies `primary` as it writes, and serves reads alone.
    pub fn replica_of(primary: &Self) -> Self {
        let how = Builder { settings: primary.how.settings.clone(), ..Builder::default() };
        how.start_from(|server| {
            let mut copy = server.command("pg_basebackup");
            copy.args(["-D", DATA, "-R", "-X", "stream", "-c", "fast", "--no-sync"]);
            copy.args(["-h", "127.0.0.1", "-p", &primary.port.to_string(), "-U", "tenure"]);
            copy
        })
    }

    /// Makes a replica a primary, and waits until it is.
    pub fn promote(&self) {
        assert_eq!(self.sql("SELECT pg_promote(true, 60)"), ["t"], "it is not promoted");
    }

    /// Waits until a replica has all that its primary has written so far.
    pub fn wait_for_all_of(&self, primary: &Self) {
        let written = primary.sql("SELECT pg_current_wal_lsn()").concat();
        let is_here = || self.sql(&format!("SELECT pg_last_wal_replay_lsn() >= '{written}'")) == ["t"];
        crate::process::wait_until(START, "the replica to have it", is_here);
    }

    /// Freezes it with all its sessions.
    pub fn stop(&self) {
        self.signal_all(Signal::Stop);
    }

    /// Lets it go on.
    pub fn cont(&self) {
        self.signal_all(Signal::Cont);
    }

    /// The first of its processes starts the others, so it is the first to be stopped.
    fn signal_all(&self, signal: Signal) {
        let first = self.process().as_ref().map(Spawned::pid).expect("it runs");
        crate::process::signal(first, signal).expect("it runs");
        for helper in crate::process::children(first) {
            // It may have ended meanwhile.
            let _ = crate::process::signal(helper, signal);
        }
    }

    /// Kills it, with all sessions, as `SIGKILL` does.
    pub fn kill(&self) {
        if let Some(mut process) = self.process().take() {
            let helpers = crate::process::children(process.pid());
            // They notice it by themselves, but not at once, and keep the memory that they share.
            for helper in &helpers {
                let _ = crate::process::signal(*helper, Signal::Kill);
            }
            process.kill();
            let is_gone = || !helpers.iter().any(|helper| crate::process::is_alive(*helper));
            crate::process::wait_until(START, "the helpers of the server to end", is_gone);
        }
    }

    /// Starts it again with the data it had, on the same port.
    pub fn restart(&self) {
        self.kill();
        let _ = fs::remove_file(self.dir.path().join(DATA).join("postmaster.pid"));
        assert!(self.launch(), "the port of the server was taken meanwhile");
    }

    fn process(&self) -> MutexGuard<'_, Option<Spawned>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self::program(program));
        command.current_dir(self.dir.path()).env("LC_ALL", "C").stdin(Stdio::null());
        if let Some(user) = self.user {
            user.run(&mut command);
        }
        command
    }

    fn initdb(&self) -> Command {
        let mut initdb = self.command("initdb");
        initdb.args(["-D", DATA, "-U", "tenure", "-E", "UTF8", "--no-locale", "--no-sync"]);
        match &self.how.password {
            Some(password) => {
                let file = self.dir.path().join("password");
                fs::write(&file, password).expect("the server's directory can be written");
                initdb.args(["-A", "scram-sha-256", "--pwfile", "password"]);
            }
            None => {
                initdb.args(["-A", "trust"]);
            }
        }
        initdb
    }

    fn initialize(&self, data: &mut Command) {
        let output = Spawned::output(data).expect("initdb can be started: apt-get install postgresql");
        assert!(output.status.success(), "{}: {}", data.get_program().display(), String::from_utf8_lossy(&output.stderr));
        for (certificate, name) in
            self.how.certificates.iter().flat_map(|(cert, key)| [(cert, "server.crt"), (key, "server.key")])
        {
            let copy = self.dir.path().join(DATA).join(name);
            fs::copy(certificate, &copy).expect("a certificate can be copied");
            fs::set_permissions(&copy, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("our file");
            if let Some(user) = self.user {
                user.give(&copy);
            }
        }
    }

    /// Starts the process and waits until it is ready; false when its port was taken.
    fn launch(&self) -> bool {
        let log = fs::File::create(self.dir.path().join(LOG)).expect("the server's directory can be written");
        let mut postgres = self.command("postgres");
        postgres.args(["-D", DATA, "-p", &self.port.to_string(), "-k", "", "-c", "listen_addresses=127.0.0.1"]);
        // Nothing here outlives the machine.
        postgres.args(["-c", "fsync=off", "-c", "log_min_messages=warning", "-c", "log_statement=none"]);
        if let Some(clock) = &self.how.clock {
            clock.apply(&mut postgres);
        }
        if self.how.certificates.is_some() {
            postgres.args(["-c", "ssl=on"]);
        }
        postgres.args(&self.how.settings);
        postgres.stderr(log.try_clone().expect("a file can be cloned")).stdout(log);
        let mut process = Spawned::spawn(&mut postgres).expect("postgres can be started");
        let deadline = Instant::now() + START;
        while !self.is_ready() {
            if let Some(status) = process.child().try_wait().expect("a child of ours can be waited for") {
                let log = self.log();
                assert!(log.contains("Address already in use"), "postgres ended with {status}:\n{log}");
                return false;
            }
            assert!(Instant::now() < deadline, "postgres was not ready within {START:?}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        *self.process() = Some(process);
        true
    }

    fn is_ready(&self) -> bool {
        let mut ready = Command::new(program("pg_isready"));
        ready.args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]);
        fs::read_to_string(self.dir.path().join(DATA).join("postmaster.pid")).is_ok_and(|lines| lines.contains("ready"))
            && Spawned::output(&mut ready).is_ok_and(|output| output.status.success())
    }
}

fn psql_at(port: u16) -> Command {
    let mut psql = Command::new(program("psql"));
    psql.args(["-XAtq", "-h", "127.0.0.1", "-p", &port.to_string(), "-U", "tenure", "-d", "postgres"]);
    psql
}

/// Where a program of PostgreSQL is.
pub fn program(name: &str) -> PathBuf {
    let named = std::env::var_os("TENURE_POSTGRES_BIN").map(PathBuf::from);
    let found = named.or_else(|| newest_bin("/usr/lib/postgresql", name)).map(|bin| bin.join(name));
    // Without a directory, the one in PATH.
    found.unwrap_or_else(|| name.into())
}
