//! The `tenure` command, run as its users run it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[cfg(any(feature = "mysql", feature = "postgres"))]
mod advisory;
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
#[cfg(feature = "memcached")]
mod memcached;
#[cfg(all(feature = "etcd", feature = "memcached", feature = "mysql", feature = "postgres", feature = "zookeeper"))]
mod moved;
#[cfg(feature = "mysql")]
mod mysql;
mod pages;
#[cfg(feature = "postgres")]
mod postgres;
mod recipes;
mod redis;
mod resources;
mod run;
mod schedule;
mod several;
mod store;
mod terminal;
mod waits;
#[cfg(feature = "zookeeper")]
mod zookeeper;
