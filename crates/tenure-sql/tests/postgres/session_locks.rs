//! Session locks of PostgreSQL, beside other programs that call `pg_advisory_lock`.

use std::net::SocketAddr;

use tenure_conformance::exceptions;

use crate::Server;

/// Sessions hold mutexes, and the lock ends with them.
pub(crate) const SESSION_EXCEPTIONS: &[&[&str]] =
    &[exceptions::NO_FOREIGN_LOCKS, exceptions::MUTEXES_ONLY, exceptions::PROCESS_BOUND];

/// Locks that nobody else in this process has: those of a database of their own.
pub(crate) fn fresh_space(server: &Server) -> String {
    let space = Server::fresh_table();
    server.sql(&format!("CREATE DATABASE {space}"));
    space
}

pub(crate) fn url_at(addr: SocketAddr, space: &str) -> String {
    format!("postgres://tenure@{addr}/{space}?scheme=advisory")
}

/// Every name has a key.
pub(crate) fn refuses(_: &str) -> bool {
    false
}
