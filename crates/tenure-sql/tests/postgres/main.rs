//! The PostgreSQL store on a real server: its table, its connection and their faults, and the cases of conformance.

#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "helpers of tests are tests")]

mod conformance;

/// Not a case: the workers of these tests begin here.
#[test]
fn worker() {
    tenure_testkit::worker::entry();
}
