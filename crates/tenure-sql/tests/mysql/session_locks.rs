//! Session locks of MariaDB, beside other programs that call `GET_LOCK`.

use std::net::SocketAddr;

use tenure_conformance::exceptions;

use crate::Server;

/// Sessions hold mutexes, the lock ends with them, and the server lists none.
pub(crate) const SESSION_EXCEPTIONS: &[&[&str]] =
    &[exceptions::NO_FOREIGN_LOCKS, exceptions::MUTEXES_ONLY, exceptions::PROCESS_BOUND, exceptions::NO_LIST];

/// Locks that nobody else in this process has: those with a prefix of their own.
pub(crate) fn fresh_space(_: &Server) -> String {
    Server::fresh_table() + "."
}

pub(crate) fn url_at(addr: SocketAddr, space: &str) -> String {
    format!("mysql://root@{addr}/locks?scheme=advisory&prefix={space}")
}

/// `GET_LOCK` does not tell these names apart from others.
pub(crate) fn refuses(name: &str) -> bool {
    !name.is_ascii() || name.trim_end() != name || name.to_lowercase() != name
}
