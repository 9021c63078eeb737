//! The Redis store on real servers: its commands, its links and their faults, and the cases of conformance.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test stops where its set-up does")]

mod conformance;
mod counter;
mod dialects;
mod faults;
mod keys;
mod link;
mod notes;
mod optimistic;
mod plain;
mod push;
mod queue;
mod rules;
mod store;
mod subject;
mod users;
mod wire;

/// Not a case: the workers of these tests begin here.
#[test]
fn worker() {
    tenure_testkit::worker::entry();
}
