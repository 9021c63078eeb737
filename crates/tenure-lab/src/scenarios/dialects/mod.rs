//! Locks in the words of others: the same faults as ours, and the other side beside us as its article has it.

mod article;
mod beside;
mod plain;
mod stamps;
mod watch;

use super::dialect::{Dialect, GETSET, PHP, SET_NX, SETNX_EXPIRE, WATCH};
use super::{anywhere, fixtures, queue, redis, shares, terms};
use crate::Item;

/// Every row of every dialect.
pub(super) fn items() -> Vec<Item> {
    let set_nx = [every_fault(SET_NX), redis::with_ttl(SET_NX), redis::with_scripts(SET_NX)].concat();
    let getset = [every_fault(GETSET), redis::with_scripts(GETSET)].concat();
    let watch = [every_fault(WATCH), redis::with_ttl(WATCH), redis::without_scripts(WATCH), of_many(WATCH)].concat();
    let faults = [set_nx, of_processes(SETNX_EXPIRE), of_processes(PHP), getset, watch];
    faults.into_iter().chain([plain::items(), stamps::items(), watch::items()]).flatten().collect()
}

/// Faults of holders and waiters, of the server and of the way to it.
fn every_fault(dialect: Dialect) -> Vec<Item> {
    [of_processes(dialect), redis::in_dialect(dialect)].concat()
}

/// Faults of holders and waiters.
fn of_processes(dialect: Dialect) -> Vec<Item> {
    [anywhere::shared, terms::shared].into_iter().flat_map(|rows| fixtures::in_dialect(dialect, rows)).collect()
}

/// Faults of those who wait in line, and of those who hold a share.
fn of_many(dialect: Dialect) -> Vec<Item> {
    [queue::rows, shares::rows].into_iter().flat_map(|rows| fixtures::in_dialect(dialect, rows)).collect()
}
