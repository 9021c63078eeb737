//! The SQL stores of tenure. So far one: [`SqliteStore`], a file on this machine, with no server.
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
//! let locks = tenure_sql::connect("/var/lib/app/locks.db").await?;
//! let guard = locks.mutex("invoice/42").acquire().await?;
//! guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! # What is promised
//! Every kind of lock, and those who wait are served in order and told by the process that serves them. One holder at a time among all processes of one machine, through crashes and kills at any moment, and a fence that is larger
//! for every later holder, also after the file was deleted or an older one put in its place.
//!
//! # What is not
//! - Several machines. SQLite cannot share a file over a network file system, and the leases in it are counted on the clock of one
//!   machine. A file that another machine wrote to is refused. Where both have one machine id, or none, it is told by the wall clock:
//!   written to since this machine booted.
//! - Thousands of holders of one name: every acquisition and release reads them all.
//! - A push between processes of different users: a hand-over from one to another may take a second.
//! - A time namespace (`unshare --time`) with a shifted boot clock of its own: refused, as another machine is.
//! - Deleting the file while processes hold locks in it frees those locks at once: the holders learn it at their next renewal,
//!   and only the fence protects until then. Its `-wal` and `-shm` companions belong to it and go with it.

// Examples are code that users copy: they compile without a warning, but for a value that an example only shows.
#![doc(test(attr(deny(warnings), allow(dead_code, unused_variables))))]

pub mod sqlite;

pub use crate::sqlite::{SqliteStore, connect};
