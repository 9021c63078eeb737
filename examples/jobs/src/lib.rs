//! Parts that the examples share: where the data and the locks are, children that are killed and
//! stopped, time without progress, and a table.

#![allow(clippy::print_stdout, reason = "the programs report on standard output")]

mod children;
mod place;
mod quiet;
mod table;

pub use crate::children::{Children, Faults, crash};
pub use crate::place::{Place, Probe, has_redis_server, longest_lease, open_database, open_locks, touch};
pub use crate::quiet::Quiet;
pub use crate::table::Table;

/// Any error of an example.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
