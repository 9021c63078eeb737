//! The command and the library beside other lock clients, in their schemes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod calls;
mod commands;
#[path = "../command/common.rs"]
mod common;
#[cfg(feature = "zookeeper")]
mod curator;
mod others;
mod peers;
mod redisson;
mod sides;
mod wire;
