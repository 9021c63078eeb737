//! The SQL stores of tenure: [`SqliteStore`], a file on this machine, with no server. With the feature
//! `postgres`, `postgres::Options` opens a table in PostgreSQL, for any number of machines. With the
//! feature `mysql`, `mysql::Options` does so in MariaDB or MySQL. Over a pool that an application has,
//! `postgres::over` and `mysql::over` do, with the features `tokio-postgres-0_7` and `mysql_async-0_37`.
//! The same URLs open session locks: those of `pg_advisory_lock` and `GET_LOCK`.
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
//! let locks = tenure_sql::connect("/var/lib/app/locks.db").await?;
//! let guard = locks.mutex("invoice/42").acquire().await?;
//! guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! The rest of this page is about the file.
//!
//! # Guarantees
//! - Every kind of lock. Waiters are served in order, and are notified by the process that serves them.
//! - One holder at a time among all processes of one machine, through crashes and kills at any moment.
//! - Each later holder has a larger fence, even after the file was deleted or an older one put in its
//!   place.
//!
//! # Limits
//! - One machine. SQLite cannot share a file over a network file system, and leases are counted on the
//!   clock of one machine. A file that another machine wrote to is refused. If both have the same
//!   machine id, or none, the wall clock decides: was it written to since this machine booted?
//! - Thousands of holders of one name are slow: every acquisition and release reads them all.
//! - No push between processes of different users: a hand-over between them may take a second.
//! - A time namespace (`unshare --time`) with a shifted boot-time clock is refused, as another machine
//!   is.
//! - If the file is deleted while processes hold locks in it, those locks are free at once. The holders
//!   learn it at their next renewal, and only the fence protects until then. The `-wal` and `-shm`
//!   companions belong to the file and go with it.

// Examples are code that users copy: they compile without a warning, but for a value that an example only shows.
#![doc(test(attr(deny(warnings), allow(dead_code, unused_variables))))]

#[cfg(any(feature = "mysql", feature = "postgres"))]
mod advisory;
pub mod fenced;
mod handover;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod sqlite;
#[cfg(any(feature = "mysql", feature = "postgres"))]
#[cfg_attr(not(feature = "postgres"), allow(dead_code, unused_imports, reason = "PostgreSQL alone notifies"))]
mod table;

pub use crate::sqlite::{SqliteStore, connect};
