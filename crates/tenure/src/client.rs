//! What users call: take locks, hold them, give them up.

mod acquire;
pub mod blocking;
mod guard;
mod locker;
mod multi;

pub use self::acquire::Acquire;
pub use self::locker::{Locker, LockerBuilder, default_label};
pub use self::multi::{AcquireAll, Guards};
