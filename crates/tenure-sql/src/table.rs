//! Locks in a table of a database server: what is the same for every database.
//!
//! A mutex without waiters is a few columns of one row, so it is taken, renewed and released by one
//! statement each. All else is read, changed here as a
//! [`Record`](tenure::store::record::Record), and written back if nobody has changed the row
//! meanwhile.

mod connection;
pub(crate) mod failure;
mod jobs;
mod lent;
mod link;
mod row;
mod server;
mod settings;
mod store;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use tenure::store::cas::Renewed;
use tenure::store::{Request, cas};
use tenure::{Error, Lease, Name};
use tokio::time::Instant;

pub(crate) use self::connection::Connection;
pub(crate) use self::jobs::{Jobs, Worker};
pub(crate) use self::lent::{Borrowed, Lent, lend, lend_by};
pub(crate) use self::link::{Link, Session};
pub(crate) use self::row::{Found, Row, Seen, Write};
pub(crate) use self::server::{Failed, Server, end_session, no_end, silent};
pub(crate) use self::settings::{Files, Security, Settings, advisory, security, table};
pub(crate) use self::store::{SWEEP_SPAN, Terms, store};

/// The statements for one database, on one connection. Each is one transaction: it runs as a whole or
/// not at all, also if its future is dropped.
#[async_trait]
pub(crate) trait Table: fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// Address at which other processes notify this one. `None` while it does not listen.
    fn address(&self) -> Option<String>;

    /// Waiters of this process can be notified.
    fn pushes(&self) -> bool;

    /// A statement without an answer may still run.
    fn has_late_commands(&self) -> bool;

    /// Longest name that the table can keep, in bytes.
    fn max_name(&self) -> usize;

    /// By how much the clocks of servers that take writes may differ.
    fn spread(&self) -> Duration;

    /// Takes a free mutex, or one that the owner has. Returns its counter.
    async fn take(&self, request: &Request, end: Instant) -> Result<Tried<u64>, Error>;

    /// Frees a mutex that nobody waits for.
    async fn free(&self, lease: &Lease, end: Instant) -> Result<Tried<()>, Error>;

    /// Renews mutexes that nobody waits for. Leaves out those that are another case.
    async fn renew(&self, leases: &[Lease], end: Instant) -> Result<Renewed, Error>;

    /// Reads names, in their order.
    async fn read(&self, names: &[&Name], end: Instant) -> Result<Vec<Found>, Error>;

    /// Writes rows that nobody has changed since they were read, all or none, and notifies.
    async fn write(&self, rows: &[Write<'_>], pushes: &[Push], end: Instant) -> Result<Wrote, Error>;

    /// Returns the names that are in use.
    async fn list(&self, end: Instant) -> Result<Vec<Found>, Error>;

    /// Removes names behind `after` that were free for long. Returns where to go on.
    async fn sweep(&self, after: &str, end: Instant) -> Result<Option<String>, Error>;

    /// Makes sure that notifications come, if they can.
    async fn listen(&self, end: Instant) -> Result<(), Error>;
}

/// Outcome of a statement that does only the usual thing.
pub(crate) type Tried<T> = cas::Tried<T, Seen>;

/// Outcome of a write. With how the one row is now, if that is known.
pub(crate) type Wrote = cas::Wrote<Seen>;

/// A notification for another process.
#[derive(Debug)]
pub(crate) struct Push {
    pub(crate) address: String,
    pub(crate) message: String,
}
