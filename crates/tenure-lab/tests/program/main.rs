//! The program behind `tenure lab` and `tenure bench`, and what the lab finds; the rows of the fault matrix are a program of their own.

#![allow(clippy::unwrap_used, reason = "a test stops where its set-up does")]

mod bench;
mod common;
mod explore;
mod lab;
mod models;
mod museum;
mod pages;
mod schemes;
mod soak;
