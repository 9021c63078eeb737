//! The lab: breaks the locks that people use in front of the reader, and shows where tenure's own hold and where they say that they
//! cannot.
//!
//! - A **scenario** is a fault done to one of tenure's stores while real processes hold and wait; its tier says what must survive.
//! - A **broken lock** is a lock as it is written in articles and libraries, under a fault that breaks it. The museum tells how,
//!   as a story that is played on a real server.
//!
//! Both write a [`History`](tenure_testkit::History) and are judged by the same checker: a broken lock that is not caught says that
//! the checker has no teeth.

// Examples are code that users copy: they compile without a warning, but for a value that an example only shows.
#![doc(test(attr(deny(warnings), allow(dead_code, unused_variables))))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a test rig: a broken set-up must stop the run that asked for it, and the runner tells it"
)]

pub mod bench;
pub mod counterparts;
mod cut;
pub mod explore;
pub mod item;
pub mod models;
pub mod museum;
pub mod report;
pub mod run;
pub mod scenarios;
pub mod soak;
mod tables;
pub mod worker;

pub use item::{Item, Kind, Lab, Outcome, Shown};

/// Everything the lab can run: the scenarios, then the broken locks.
pub fn items() -> Vec<Item> {
    scenarios::items().into_iter().chain(museum::items()).collect()
}
