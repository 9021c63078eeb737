//! A real PostgreSQL for one test, or for all tests of a process.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::clock::ShiftedClock;
use crate::guardian;
use crate::process::{Signal, Spawned, free_port};
use crate::sql_session::SqlSession;
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
        server.initialize();
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
        let mut psql = Command::new(bin("psql"));
        psql.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", &self.port.to_string()]);
        psql.args(["-U", "tenure", "-d", "postgres", "-c", statements]);
        // Also while the server is read-only for others.
        psql.env("PGOPTIONS", "-c default_transaction_read_only=off");
        if let Some(password) = &self.how.password {
            psql.env("PGPASSWORD", password);
        }
        let output = Spawned::output(&mut psql).expect("psql can be started");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "psql refused {statements:?}: {said}");
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
    }

    /// A session of psql that stays open, for statements that are to keep rows locked.
    pub fn session(&self) -> SqlSession {
        let mut psql = Command::new(bin("psql"));
        psql.args(["-XAtq", "-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "tenure", "-d", "postgres"]);
        SqlSession::start(&mut psql, |done| format!("\\echo '{done}'"))
    }

    /// Sets its clock this far off the true time.
    pub fn shift_clock(&self, milliseconds: i64) {
        self.how.clock.as_ref().expect("it was started with a clock of its own").shift(milliseconds);
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

    /// Stops it and its helpers as `SIGSTOP` does, or lets them go on.
    pub fn stop(&self, stopped: bool) {
        if let Some(process) = &mut *self.process() {
            let signal = if stopped { Signal::Stop } else { Signal::Cont };
            process.signal(signal).expect("it runs");
            for helper in crate::process::children(process.pid()) {
                // One that has ended meanwhile needs none.
                let _ = crate::process::signal(helper, signal);
            }
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
        let mut command = Command::new(bin(program));
        command.current_dir(self.dir.path()).env("LC_ALL", "C").stdin(Stdio::null());
        if let Some(user) = self.user {
            user.run(&mut command);
        }
        command
    }

    fn initialize(&self) {
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
        let output = Spawned::output(&mut initdb).expect("initdb can be started");
        assert!(output.status.success(), "initdb: {}", String::from_utf8_lossy(&output.stderr));
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
        let mut ready = Command::new(bin("pg_isready"));
        ready.args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]);
        fs::read_to_string(self.dir.path().join(DATA).join("postmaster.pid")).is_ok_and(|lines| lines.contains("ready"))
            && Spawned::output(&mut ready).is_ok_and(|output| output.status.success())
    }
}

/// A PgBouncer that lends sessions of a server for single transactions.
#[derive(Debug)]
pub struct PgBouncer {
    _dir: TempDir,
    port: u16,
    _process: Spawned,
}

impl PgBouncer {
    /// Starts one with a few sessions of `server`.
    pub fn start(server: &PostgresServer) -> Self {
        loop {
            if let Some(started) = Self::launch(server, free_port()) {
                return started;
            }
        }
    }

    fn launch(server: &PostgresServer, port: u16) -> Option<Self> {
        let dir = TempDir::with_prefix("pgbouncer-").expect("a temporary directory can be made");
        let target = server.addr().port();
        let settings = format!(
            "[databases]\npostgres = host=127.0.0.1 port={target} user=tenure\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 20\n\
             max_client_conn = 200\nlogfile = log\npidfile = pid\n"
        );
        fs::write(dir.path().join("settings.ini"), settings).expect("a directory of ours can be written");
        let mut command = Command::new("pgbouncer");
        command.args(["-q", "settings.ini"]).current_dir(dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Some(user) = User::for_server(&["postgres"]) {
            user.give(dir.path());
            user.run(&mut command);
        }
        let mut process = Spawned::spawn(&mut command).expect("pgbouncer can be started: apt-get install pgbouncer");
        let deadline = Instant::now() + START;
        while std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if process.child().try_wait().expect("a child of ours can be waited for").is_some() {
                let log = fs::read_to_string(dir.path().join("log")).unwrap_or_default();
                assert!(log.contains("already in use"), "pgbouncer ended:\n{log}");
                return None;
            }
            assert!(Instant::now() < deadline, "pgbouncer did not listen within {START:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(Self { _dir: dir, port, _process: process })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }
}

/// Where a program of PostgreSQL is.
fn bin(program: &str) -> PathBuf {
    let named = std::env::var_os("TENURE_POSTGRES_BIN").map(PathBuf::from);
    let found = named.or_else(|| newest_bin("/usr/lib/postgresql", program)).map(|bin| bin.join(program));
    // Without a directory, the one in PATH.
    found.unwrap_or_else(|| program.into())
}
