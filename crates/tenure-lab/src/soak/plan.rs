//! The plan of a soak, and where it runs.

use std::time::Duration;

use tenure::Error;

use crate::bench::Address;

/// Where a soak runs.
#[derive(Clone, Debug)]
pub enum Where {
    /// In the memory of this process.
    Memory,
    /// In a file of its own.
    Sqlite,
    /// On a server of its own, to which faults are done.
    Redis,
    /// On five servers of its own, to which faults are done. Many names are taken, for the order of the fences.
    Quorum,
    /// On so many servers of its own, one of which is always away. A few names are contended, and no call may fail.
    QuorumOneAway(usize),
    /// On a server of its own of another engine, to which faults are done.
    Engine(Engine),
    /// On a store that is there. Faults are done to our own processes alone.
    At(Address),
}

/// Server that a soak can start beside Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// One member.
    Etcd,
    /// A table.
    MariaDb,
    /// One server. It is not killed: it would forget who holds.
    Memcached,
    /// A table.
    Postgres,
    /// One server.
    ZooKeeper,
}

impl Engine {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Etcd, Self::MariaDb, Self::Memcached, Self::Postgres, Self::ZooKeeper];

    /// That of a word.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|engine| engine.word() == word)
    }

    /// As `--store` has it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::MariaDb => "mariadb",
            Self::Memcached => "memcached",
            Self::Postgres => "postgres",
            Self::ZooKeeper => "zookeeper",
        }
    }

    /// It has its data when it was killed and is back.
    pub(super) fn keeps(self) -> bool {
        self != Self::Memcached
    }
}

/// One soak.
#[derive(Clone, Debug)]
pub struct Plan {
    /// On what.
    pub place: Where,
    /// For how long.
    pub time: Duration,
    /// By which tasks and faults make their choices.
    pub seed: u64,
    /// How many processes; memory has one.
    pub processes: u32,
    /// The server loses its data again and again: two may hold then, and only the order of the fences is judged.
    pub flushes: bool,
    /// The password changes again and again, and nothing else happens: no lease is lost. On a server of its own.
    pub rotates: bool,
    /// Ends when the store has granted so often, if that is before the end of the time.
    pub grants: Option<u64>,
}

pub(super) fn unmade(error: std::io::Error) -> Error {
    Error::unavailable("what a soak needs cannot be made").with_source(error)
}
