//! The command and the library beside other lock clients, in their schemes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod articles;
mod calls;
mod commands;
#[cfg(feature = "zookeeper")]
mod curator;
#[path = "../command/common.rs"]
mod common;
mod peers;
mod redisson;
mod sides;
mod timestamps;
mod wire;
