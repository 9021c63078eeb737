//! The `tenure` command, run as its users run it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod attacker;
mod breaks;
mod codes;
mod common;
mod ends;
mod errors;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(all(feature = "etcd", feature = "memcached", feature = "mysql", feature = "postgres", feature = "zookeeper"))]
mod fork;
mod guarded;
mod kinds;
mod lab;
mod lead;
mod lease;
mod logins;
#[cfg(all(feature = "etcd", feature = "memcached", feature = "mysql", feature = "postgres", feature = "zookeeper"))]
mod moved;
mod pages;
mod recipes;
mod redis;
mod resources;
mod run;
mod schedule;
mod several;
mod store;
#[cfg(all(feature = "etcd", feature = "memcached", feature = "mysql", feature = "postgres", feature = "zookeeper"))]
mod stores;
mod terminal;
mod waits;
