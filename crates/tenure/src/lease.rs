//! Leases that this process holds: how long each is valid, and the watchdog that renews them.
//!
//! A lease is valid for its ttl from the moment its request was *sent*, less clock drift and the
//! safety margin. No reply makes it valid for longer. See the module `terms`.

mod release;
mod session;
mod state;
mod table;
mod terms;
mod validity;
mod watchdog;

pub use self::release::ReleaseOutcome;
pub(crate) use self::session::Session;
pub use self::state::{EndReason, State};
pub(crate) use self::table::{Id, PendingRelease};
pub(crate) use self::terms::{Terms, check_span, check_ttl};
pub(crate) use self::validity::{Current, HeldLease};
