//! A PgBouncer between clients and a PostgreSQL.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{LOG, PostgresServer, START, psql_at};
use crate::process::{Spawned, free_port};
use crate::session::SqlSession;
use crate::unprivileged::User;

/// A PgBouncer that lends sessions of a server for single transactions.
#[derive(Debug)]
pub struct PgBouncer {
    dir: TempDir,
    port: u16,
    process: Mutex<Option<Spawned>>,
}

impl PgBouncer {
    /// Starts one with so many sessions of `server`.
    pub fn start(server: &PostgresServer, sessions: u32) -> Self {
        Self::start_at(server.addr(), sessions)
    }

    /// Starts one on the way to a server: its own address, or that of a proxy.
    pub fn start_at(server: SocketAddr, sessions: u32) -> Self {
        loop {
            let dir = TempDir::with_prefix("pgbouncer-").expect("a temporary directory can be made");
            if let Some(user) = User::for_server(&["postgres"]) {
                user.give(dir.path());
            }
            let (port, target) = (free_port(), server.port());
            let settings = format!(
                "[databases]\npostgres = host=127.0.0.1 port={target} user=tenure\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
                 listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n\
                 default_pool_size = {sessions}\nmax_client_conn = 500\nserver_login_retry = 1\nlogfile = log\npidfile = pid\n"
            );
            fs::write(dir.path().join("settings.ini"), settings).expect("a directory of ours can be written");
            let started = Self { dir, port, process: Mutex::default() };
            if started.launch() {
                return started;
            }
        }
    }

    /// Kills it, as `SIGKILL` does, and starts it again on the same port.
    pub fn restart(&self) {
        if let Some(mut process) = self.process.lock().unwrap_or_else(PoisonError::into_inner).take() {
            process.kill();
        }
        let _ = fs::remove_file(self.dir.path().join("pid"));
        assert!(self.launch(), "the port of pgbouncer was taken meanwhile");
    }

    /// Waits until it listens; false when its port was taken.
    fn launch(&self) -> bool {
        let mut command = Command::new("pgbouncer");
        command.args(["-q", "settings.ini"]).current_dir(self.dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Some(user) = User::for_server(&["postgres"]) {
            user.run(&mut command);
        }
        let mut process = Spawned::spawn(&mut command).expect("pgbouncer can be started: apt-get install pgbouncer");
        let deadline = Instant::now() + START;
        while std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_err() {
            if process.child().try_wait().expect("a child of ours can be waited for").is_some() {
                let log = fs::read_to_string(self.dir.path().join(LOG)).unwrap_or_default();
                assert!(log.contains("already in use"), "pgbouncer ended:\n{log}");
                return false;
            }
            assert!(Instant::now() < deadline, "pgbouncer did not listen within {START:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(process);
        true
    }

    /// A session of psql through the pool.
    pub fn session(&self) -> SqlSession {
        SqlSession::of_psql(psql_at(self.port))
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }
}
