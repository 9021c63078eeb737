//! Calls for users: take locks, hold them, release them.

mod acquire;
pub mod blocking;
mod election;
mod guard;
pub mod ids;
mod locker;
mod multi;

pub use self::acquire::Acquire;
pub use self::election::{Candidate, Election, Leader, Leadership};
pub use self::locker::{Locker, LockerBuilder, default_label};
pub use self::multi::{AcquireAll, Guards};
