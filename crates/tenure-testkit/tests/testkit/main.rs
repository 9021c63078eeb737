//! The harness itself: each detector sees what it is for, and each fault is done as it is asked for.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test stops where its set-up does")]

mod clock;
mod crowd;
mod history;
mod proxy;
mod server;
mod workers;

/// Not a case: the workers of these tests begin here.
#[test]
fn worker() {
    tenure_testkit::worker::entry();
}
