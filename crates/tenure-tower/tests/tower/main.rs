//! Tests of the layer: in front of functions, and behind real sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod bad_input;
mod crowd;
mod frameworks;
mod grpc;
mod joining;
mod layer;
mod outage;
mod pairs;
mod support;
