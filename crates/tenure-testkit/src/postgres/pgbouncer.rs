//! A PgBouncer between clients and a PostgreSQL.

use std::net::SocketAddr;
use std::process::Command;

use super::{PostgresServer, USER, psql_at};
use crate::server::{Builder, Kind, Server};
use crate::session::SqlSession;

/// A PgBouncer that lends sessions of a server for single transactions.
pub type PgBouncer = Server<Pool>;

/// The particulars of PgBouncer.
#[derive(Debug)]
pub struct Pool {
    sessions: u32,
    /// The port of the server, or of a proxy in front of it.
    of: u16,
}

impl PgBouncer {
    /// Starts one with so many sessions of `server`.
    pub fn start(server: &PostgresServer, sessions: u32) -> Self {
        Self::start_at(server.addr(), sessions)
    }

    /// Starts one on the way to a server: its own address, or that of a proxy.
    pub fn start_at(server: SocketAddr, sessions: u32) -> Self {
        Self::start_together(vec![Builder::of(Pool { sessions, of: server.port() })], |_| ()).remove(0)
    }

    /// A session of psql through the pool.
    pub fn session(&self) -> SqlSession {
        SqlSession::of_psql(psql_at(self.port()))
    }
}

impl Kind for Pool {
    const NAME: &str = "pgbouncer";
    const REMEDY: &str = "apt-get install pgbouncer";
    const USER: Option<&str> = USER;

    fn command(server: &PgBouncer) -> Command {
        let (port, Self { sessions, of }) = (server.port(), &server.how.kind);
        let settings = format!(
            "[databases]\npostgres = host=127.0.0.1 port={of} user=tenure\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n\
             default_pool_size = {sessions}\nmax_client_conn = 500\nserver_login_retry = 1\n"
        );
        server.write("settings.ini", settings);
        let mut pgbouncer = server.command_of("pgbouncer");
        pgbouncer.arg("settings.ini");
        pgbouncer
    }

    fn is_ready(server: &PgBouncer, _pid: u32) -> bool {
        server.log().contains("process up")
    }
}
