//! Seeded random exploration of the core against a simulated store in virtual time.
//!
//! Each run makes up some processes, names and faults from its seed, lets the processes contend
//! while the faults last, and then asks that everything comes to rest. Names are of every kind,
//! alone and together, and each call is dropped half-way now and then. The history is judged by the
//! [checker][check] that judges real servers, and besides:
//!
//! - at every step no guard claims more than the store keeps for it: no larger share, no longer
//!   lease, no fence that it did not give;
//! - no token is sent after its release, no name passes on before its shortest hold, no validity
//!   outlasts the longest;
//! - a loss is reported when the validity ends, and none is reported that did not happen;
//! - after the last fault every name is granted again, every task ends, every clean-up ends, and
//!   every name is free.
//!
//! In half of the runs commands that were given up may run late, as
//! [`late_commands`](tenure::store::Features::late_commands) says; in the others a new connection ends
//! what the old one had under way. The same seed makes the same history, to the byte.
//!
//! [check]: tenure_testkit::history::check()

mod clock;
mod compare;
mod coverage;
mod explored;
mod flaw;
mod mix;
mod network;
mod notice;
mod plan;
mod process;
mod report;
mod run;
mod server;
mod steps;
mod store;
mod watched;
mod way;
mod world;

pub use coverage::{Coverage, Met};
pub use explored::Explored;
pub use flaw::Flaw;
pub use report::{Extent, Report, many, search};

/// Makes the run of `seed`.
pub fn one(seed: u64) -> Explored {
    run::one(seed, None)
}

/// Makes the run of `seed` with something broken that must be found.
pub fn flawed(seed: u64, flaw: Flaw) -> Explored {
    run::one(seed, Some(flaw))
}
