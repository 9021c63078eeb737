//! Faults done to tenure's own stores.
//!
//! A row of the matrix is a function that plays the fault on a [`Stage`](stage::Stage), and a line in a table: which store, what must
//! survive, and what the checker must say. Numbers follow the faults, so one fault has one number on every store.

mod actor;
mod anywhere;
mod database;
mod disk;
mod etcd;
mod file;
mod fixtures;
mod memcached;
mod outages;
mod queue;
mod quorum;
mod redis;
mod scheme;
mod schemes;
mod server;
mod shares;
mod stage;
mod table;
mod terms;
mod times;
mod told;
mod zookeeper;

use tenure_testkit::history::{Rule, Verdict};

pub(crate) use self::server::{Breakable, OwnServer};
use crate::item::Run;
use crate::soak::Engine;
use crate::{Item, Kind};

/// Every scenario.
pub fn items() -> Vec<Item> {
    let on_redis = [redis::items(), quorum::items(), schemes::items()];
    let others = [file::items(), disk::items(), table::items(), etcd::items(), memcached::items(), zookeeper::items()];
    let everywhere = [anywhere::items(), terms::items(), queue::items(), shares::items()];
    everywhere.into_iter().chain(on_redis).chain(others).flatten().collect()
}

/// Starts a server for a soak.
pub(crate) fn own_server(engine: Engine) -> OwnServer {
    match engine {
        Engine::Etcd => etcd::own_server(),
        Engine::MariaDb => database::MARIADB.own_server(),
        Engine::Memcached => memcached::own_server(),
        Engine::Postgres => database::POSTGRES.own_server(),
        Engine::ZooKeeper => zookeeper::own_server(),
    }
}

/// The store that a table of rows is for.
#[derive(Clone, Copy)]
struct Rows {
    /// How the ids begin.
    id: &'static str,
    /// A resource can recognise a stale holder by its fence.
    fences: bool,
}

impl Rows {
    fn holds(self, row: &str, fault: &str, run: impl Fn(&str) -> Run) -> Item {
        holds(&self.id(row), fault, run)
    }

    /// If the store has no fences, this is a documented hole: the resource accepts what the stale holder writes.
    fn fenced(self, row: &str, fault: &str, run: impl Fn(&str) -> Run) -> Item {
        if self.fences { fenced(&self.id(row), fault, run) } else { self.broken(row, fault, Rule::StaleWrite, run) }
    }

    fn spared(self, row: &str, fault: &str, run: impl Fn(&str) -> Run) -> Item {
        spared(&self.id(row), fault, run)
    }

    fn broken(self, row: &str, fault: &str, because: Rule, run: impl Fn(&str) -> Run) -> Item {
        broken(&self.id(row), fault, because, run)
    }

    fn id(self, row: &str) -> String {
        format!("{}/{row}", self.id)
    }
}

/// A fault in which one holder at a time is promised.
fn holds(id: &str, fault: &str, run: impl Fn(&str) -> Run) -> Item {
    item(id, fault, 1, Verdict::Holds, None, &run(id))
}

/// A fault in which the store cannot keep two from holding, and the fence keeps the first from writing.
fn fenced(id: &str, fault: &str, run: impl Fn(&str) -> Run) -> Item {
    item(id, fault, 2, Verdict::Fenced, None, &run(id))
}

/// As [`fenced`], where the holder is careful and nothing comes to be refused.
fn spared(id: &str, fault: &str, run: impl Fn(&str) -> Run) -> Item {
    item(id, fault, 2, Verdict::Holds, None, &run(id))
}

/// A documented hole.
fn broken(id: &str, fault: &str, because: Rule, run: impl Fn(&str) -> Run) -> Item {
    item(id, fault, 3, Verdict::Broken, Some(because), &run(id))
}

fn item(id: &str, fault: &str, tier: u8, expected: Verdict, because: Option<Rule>, run: &Run) -> Item {
    let subject = match id.split('/').next() {
        Some("redis") => "tenure on one Redis",
        Some("sentinel") => "tenure on a Sentinel group",
        Some("cluster") => "tenure on a Redis Cluster",
        Some("quorum") => "tenure on a quorum of Redis",
        Some("postgres") => "tenure on a table of PostgreSQL",
        Some("mariadb") => "tenure on a table of MariaDB",
        Some("etcd") => "tenure on etcd",
        Some("memcached") => "tenure on memcached",
        Some("zookeeper") => "tenure on ZooKeeper",
        Some("sqlite") => "tenure on an SQLite file",
        Some("memory") => "tenure in memory",
        scheme => &format!("tenure on one Redis, scheme={}", scheme.unwrap_or_default()),
    };
    let (subject, fault, run) = (subject.to_owned(), fault.to_owned(), std::sync::Arc::clone(run));
    Item { id: id.to_owned(), kind: Kind::Scenario, subject, fault, tier: Some(tier), expected, because, run }
}
