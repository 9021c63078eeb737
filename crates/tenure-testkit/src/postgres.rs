//! A real PostgreSQL for one test, or for all tests of a process.

mod pgbouncer;

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

pub use self::pgbouncer::PgBouncer;
use crate::process::{fresh, wait_until};
use crate::server::{self, Kind, START, Server, Tls};
use crate::session::SqlSession;
use crate::unprivileged::newest_bin;

const DATA: &str = "data";
const REMEDY: &str = "apt-get install postgresql";
const USER: Option<&str> = Some("postgres");

/// A PostgreSQL with a user `tenure`. It and its data go when this is dropped.
pub type PostgresServer = Server<Postgres>;

/// How to start a [`PostgresServer`].
pub type Builder = server::Builder<Postgres>;

/// The particulars of PostgreSQL.
#[derive(Debug, Default)]
pub struct Postgres {
    password: Option<String>,
    /// The port of the server whose data it copies.
    primary: Option<u16>,
}

impl Builder {
    /// Adds one setting, as `set("max_connections", "5")`; the last one wins.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.arguments.extend(["-c".to_owned(), format!("{name}={value}")]);
        self
    }

    /// Wants this password of everybody.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.kind.password = Some(password.to_owned());
        self
    }
}

impl Kind for Postgres {
    const NAME: &str = "postgres";
    const REMEDY: &str = REMEDY;
    const USER: Option<&str> = USER;

    fn prepare(server: &PostgresServer) {
        let Self { password, primary } = &server.how.kind;
        let mut data = server.command_of(program(if primary.is_some() { "pg_basebackup" } else { "initdb" }));
        data.args(["-D", DATA, "-U", "tenure", "--no-sync"]).env("LC_ALL", "C");
        if let Some(primary) = primary {
            data.args(["-R", "-X", "stream", "-c", "fast", "-h", "127.0.0.1", "-p", &primary.to_string()]);
        } else if let Some(password) = password {
            server.write("password", password);
            data.args(["-E", "UTF8", "--no-locale", "-A", "scram-sha-256", "--pwfile", "password"]);
        } else {
            data.args(["-E", "UTF8", "--no-locale", "-A", "trust"]);
        }
        PostgresServer::run(&mut data);
    }

    fn command(server: &PostgresServer) -> Command {
        // A server that was killed leaves it.
        let _ = fs::remove_file(server.dir().join(DATA).join("postmaster.pid"));
        let mut postgres = server.command_of(program("postgres"));
        postgres.args(["-D", DATA, "-p", &server.port().to_string(), "-k", "", "-c", "listen_addresses=127.0.0.1"]);
        // Nothing here outlives the machine.
        postgres.args(["-c", "fsync=off", "-c", "log_min_messages=warning", "-c", "log_statement=none"]);
        postgres.args(["-c", "max_connections=500"]).env("LC_ALL", "C");
        if let Some([certificate, key]) = server.certificate().map(|files| files.map(|file| file.display().to_string())) {
            postgres.args(["-c", "ssl=on", "-c", &format!("ssl_cert_file={certificate}"), "-c", &format!("ssl_key_file={key}")]);
        }
        postgres
    }

    fn is_ready(server: &PostgresServer, _pid: u32) -> bool {
        server.log().contains("database system is ready to accept")
    }
}

impl Tls for Postgres {}

impl PostgresServer {
    /// The name of a table that nobody else in this process has.
    pub fn fresh_table() -> String {
        fresh("locks")
    }

    /// A store URL for a way to it: its own address, or that of a proxy. The table is made.
    pub fn url_at(addr: SocketAddr, table: &str) -> String {
        format!("postgres://tenure@{addr}/postgres?create=yes&table={table}")
    }

    /// The store URL of a table.
    pub fn url(&self, table: &str) -> String {
        Self::url_at(self.addr(), table)
    }

    /// Runs statements, and returns the rows of the last with `|` between columns; panics if they are refused.
    #[track_caller]
    pub fn sql(&self, statements: &str) -> Vec<String> {
        let rows = Self::run(self.psql().args(["-v", "ON_ERROR_STOP=1", "-c", statements]));
        rows.lines().map(str::to_owned).collect()
    }

    /// A session that stays open.
    pub fn session(&self) -> SqlSession {
        SqlSession::of_psql(self.psql())
    }

    fn psql(&self) -> Command {
        let mut psql = psql_at(self.port());
        // Also while the server is read-only for others.
        psql.env("PGOPTIONS", "-c default_transaction_read_only=off");
        if let Some(password) = &self.how.kind.password {
            psql.env("PGPASSWORD", password);
        }
        psql
    }

    /// Starts one that copies `primary` as it writes, and serves reads alone.
    pub fn replica_of(primary: &Self) -> Self {
        let replica = Postgres { password: None, primary: Some(primary.port()) };
        Builder { arguments: primary.how.arguments.clone(), ..Builder::of(replica) }.start()
    }

    /// Makes a replica a primary, and waits until it is.
    pub fn promote(&self) {
        assert_eq!(self.sql("SELECT pg_promote(true, 60)"), ["t"], "it is not promoted");
    }

    /// Waits until a replica has all that its primary has written so far.
    pub fn wait_for_all_of(&self, primary: &Self) {
        let written = primary.sql("SELECT pg_current_wal_lsn()").concat();
        let is_here = || self.sql(&format!("SELECT pg_last_wal_replay_lsn() >= '{written}'")) == ["t"];
        wait_until(START, "the replica to have it", is_here);
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
