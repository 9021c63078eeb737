//! Leases that this process holds: how long each is valid, and the watchdog that renews them.

mod release;
mod session;
mod table;
mod terms;
mod validity;
mod watchdog;

pub use self::release::ReleaseOutcome;
pub(crate) use self::session::Session;
pub(crate) use self::table::{Id, PendingRelease};
pub(crate) use self::terms::{Terms, check_span, check_ttl};
pub(crate) use self::validity::{Current, HeldLease};
pub use self::validity::{EndReason, State};
