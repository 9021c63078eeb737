//! The SQLite store on real files, and with real processes where it matters.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "helpers of tests are tests")]

mod all;
mod child;
mod common;
mod conformance;
mod cost;
mod crowds;
mod damage;
mod dropped;
mod faults;
mod fenced;
mod identity;
mod machines;
mod processes;
mod replaced;
#[path = "../shared/requests.rs"]
mod requests;
mod semantics;
mod strangers;
mod upgrade;
mod waking;

/// Not a case: the workers of these tests begin here.
#[test]
fn worker() {
    tenure_testkit::worker::entry();
}
