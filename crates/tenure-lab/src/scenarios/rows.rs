//! The lines of the matrix: what a fault does to which store, and what must survive.

use tenure_testkit::history::{Rule, Verdict};

use super::stage::Stage;
use crate::item::Run;
use crate::{Item, Kind};

/// A scenario that needs nothing but a stage.
pub(super) type Row = fn(&mut Stage<'_>);

/// A row on one store: makes the run of an id.
pub(super) type Played = Box<dyn Fn(&str) -> Run>;

/// The store that a table of rows is for.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// How the ids begin.
    pub(super) id: &'static str,
    /// A resource can recognise a stale holder by its fence.
    pub(super) fences: bool,
}

impl Rows {
    pub(super) fn holds(self, row: &str, fault: &str, run: impl Fn(&str) -> Run) -> Item {
        holds(&self.id(row), fault, run)
    }

    /// If the store has no fences, this is a documented hole: the resource accepts what the stale holder writes.
    pub(super) fn fenced(self, row: &str, fault: &str, run: impl Fn(&str) -> Run) -> Item {
        if self.fences { fenced(&self.id(row), fault, run) } else { self.broken(row, fault, Rule::StaleWrite, run) }
    }

    pub(super) fn spared(self, row: &str, fault: &str, run: impl Fn(&str) -> Run) -> Item {
        spared(&self.id(row), fault, run)
    }

    pub(super) fn broken(self, row: &str, fault: &str, because: Rule, run: impl Fn(&str) -> Run) -> Item {
        broken(&self.id(row), fault, because, run)
    }

    pub(super) fn id(self, row: &str) -> String {
        format!("{}/{row}", self.id)
    }
}

/// A fault in which one holder at a time is promised.
pub(super) fn holds(id: &str, fault: &str, run: impl Fn(&str) -> Run) -> Item {
    item(id, fault, 1, Verdict::Holds, None, &run(id))
}

/// A fault in which the store cannot keep two from holding, and the fence keeps the first from writing.
pub(super) fn fenced(id: &str, fault: &str, run: impl Fn(&str) -> Run) -> Item {
    item(id, fault, 2, Verdict::Fenced, None, &run(id))
}

/// As [`fenced`], where the holder is careful and nothing comes to be refused.
pub(super) fn spared(id: &str, fault: &str, run: impl Fn(&str) -> Run) -> Item {
    item(id, fault, 2, Verdict::Holds, None, &run(id))
}

/// A documented hole.
pub(super) fn broken(id: &str, fault: &str, because: Rule, run: impl Fn(&str) -> Run) -> Item {
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
