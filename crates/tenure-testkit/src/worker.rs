//! A holder in a process of its own. It takes orders on its standard input, and reports on its
//! standard output.
//!
//! The controller's end is a [`Worker`]; [`entry`] becomes the process itself. Acquisitions have
//! numbers, so one process can ask for many names at once. The process reports what it sees as
//! events of the [history](crate::history), each with the time at which it saw it.

mod acquisition;
mod clock;
mod controller;
mod load;
mod orders;
mod probe;
mod process;
mod program;
mod report;
mod work;

pub use self::controller::Worker;
pub use self::load::{Load, Tally, carry};
pub use self::orders::{ByHand, Terms};
pub use self::probe::{Call, Deed, Moment, Probe};
pub use self::process::for_long;
pub use self::program::{Program, entry, role, serve};
