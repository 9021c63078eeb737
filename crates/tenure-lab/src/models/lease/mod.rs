//! Leases: taken, renewed, released, cleared up, passed on as data, and their fences.
//!
//! There is one name. No time is kept back to stop work, so that what is shown needs none. Lifting the counter and taking the name are
//! one step here.

mod client;
mod list;
mod protocol;
mod rules;
mod server;
mod state;
mod story;

pub(super) use list::{holes, larger, standing, without};
