//! The program behind `tenure lab` and `tenure bench`: what it prints, and how it ends.

#![allow(clippy::unwrap_used, reason = "a test stops where its set-up does")]

mod bench;
mod common;
mod lab;
mod pages;
mod schemes;
