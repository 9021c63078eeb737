//! A second server that copies the first, and takes its place.

use std::net::SocketAddr;

use super::{Builder, RedisServer, Role};
use crate::process::wait_until;
use crate::server::START;

impl Builder {
    /// Makes the server a replica of `primary`, with its password.
    #[must_use]
    pub fn replica_of(mut self, primary: &RedisServer) -> Self {
        if let Some(password) = &primary.how.kind.password {
            self = self.arg("masterauth", password);
        }
        self.replica_at(primary.addr())
    }

    /// Makes the server a replica of what answers at `address`, as a proxy in front of a primary.
    #[must_use]
    pub fn replica_at(mut self, address: SocketAddr) -> Self {
        self.kind.role = Role::Replica;
        let words = ["--replicaof".to_owned(), address.ip().to_string(), address.port().to_string()];
        self.arguments.extend(words);
        self
    }
}

impl RedisServer {
    /// Starts a replica of `primary`; returns when it has its data. What is written later arrives later.
    pub fn replica_of(primary: &Self) -> Self {
        Self::builder().replica_of(primary).start()
    }

    /// Waits until this replica has all that `primary` has now; panics after a minute.
    #[track_caller]
    pub fn catch_up(&self, primary: &Self) {
        let offset = |server: &Self| server.info("replication", "master_repl_offset").parse::<u64>().expect("Redis tells it");
        let there = offset(primary);
        wait_until(START, "the replica to catch up", || offset(self) >= there);
    }

    /// Waits until so many replicas confirm a write. A new one confirms none before its first sign of life, a second later.
    #[track_caller]
    pub fn wait_for_copies(&self, replicas: usize) {
        let mut client = self.connect().expect("the server answers");
        let mut said = |words: &[&str]| client.command(words).expect("the server answers");
        said(&["SET", "a write", "1"]);
        said(&["DEL", "a write"]);
        assert_eq!(said(&["WAIT", &replicas.to_string(), "5000"]).text(), replicas.to_string(), "the replicas confirm nothing");
    }

    /// Makes a replica a primary of its own, with what it has by now; returns when it is. A restart makes it a replica
    /// again.
    pub fn promote(&self) {
        assert_eq!(self.cli("REPLICAOF NO ONE"), "OK");
    }

    /// For a replica, waits until it follows its primary.
    pub(super) fn wait_for_link(&self) {
        if self.how.kind.role == Role::Replica {
            wait_until(START, "the replica to follow its primary", || self.info("replication", "master_link_status") == "up");
        }
    }
}
