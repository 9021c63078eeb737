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
mod own;
mod queue;
mod quorum;
mod redis;
mod rows;
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

pub(crate) use self::own::own_server;
use self::rows::{broken, fenced, holds};
pub(crate) use self::server::{Breakable, OwnServer};
use crate::Item;

/// Every scenario.
pub fn items() -> Vec<Item> {
    let on_redis = [redis::items(), quorum::items(), schemes::items()];
    let others = [file::items(), disk::items(), table::items(), etcd::items(), memcached::items(), zookeeper::items()];
    let everywhere = [anywhere::items(), terms::items(), queue::items(), shares::items()];
    everywhere.into_iter().chain(on_redis).chain(others).flatten().collect()
}
