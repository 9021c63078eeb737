//! Tools that the tests of every `tenure` store share: real servers, faults on the way to them, and
//! detectors that say when two holders overlapped.
//!
//! A missing server is a named failure, never a silent skip. Everything here is synchronous or brings its own thread,
//! so it serves tests of any runtime; a call that waits says so.

// Examples are code that users copy: they compile without a warning, but for a value that an example only shows.
#![doc(test(attr(deny(warnings), allow(dead_code, unused_variables))))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::missing_panics_doc,
    clippy::print_stdout,
    clippy::unused_async,
    clippy::future_not_send,
    reason = "test support: a broken set-up must stop the test that asked for it"
)]

pub mod client;
pub mod clock;
pub mod crowd;
pub mod etcd;
pub mod guardian;
pub mod history;
pub mod lines;
pub mod mariadb;
pub mod memcached;
pub mod page;
mod patience;
pub mod postgres;
mod preload;
pub mod process;
pub mod proxy;
mod quorum;
pub mod redis;
pub mod register;
mod resp;
mod rotation;
pub mod server;
pub mod session;
pub mod tls;
mod unprivileged;
pub mod worker;
pub mod zookeeper;

pub use client::{Client, Reply};
pub use clock::ShiftedClock;
pub use etcd::EtcdCluster;
pub use history::{History, Recorder};
pub use mariadb::MariaDbServer;
pub use memcached::MemcachedServer;
pub use patience::{answered, patient, patiently, some_of};
pub use postgres::{PgBouncer, PostgresServer};
pub use preload::Preload;
pub use process::{Signal, Spawned, free_port, is_alive, signal, wait_until};
pub use proxy::Proxy;
pub use quorum::admit;
pub use redis::{RedisCluster, RedisServer, SentinelGroup, Snapshot};
pub use register::Register;
pub use rotation::{Passwords, rotation};
pub use session::SqlSession;
pub use tenure_conformance::{Counter, Fate, Faulty, Operation, overlap};
pub use tls::Certificates;
pub use worker::{Program, Worker};
pub use zookeeper::{ZooKeeperEnsemble, ZooKeeperServer};
