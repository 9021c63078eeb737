//! Those who wait: their queue, hand-overs that are pushed to them, and leases that pass from task to task of one process.
//!
//! There is one name, which the first client holds at the beginning. A push travels on a path of its own: it may come late, out of
//! order, more than once or never. A connection that is lost has been ended at the server before anything is sent on the next.

mod client;
mod list;
mod protocol;
mod rules;
mod server;
mod state;
mod story;

pub(super) use list::{holes, larger, standing, without};
