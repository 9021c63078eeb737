//! Locks in the words of others: the same faults as ours, and the other side beside us as its article has it.

mod article;
mod beside;
mod plain;
mod stamps;

use super::dialect::{Dialect, GETSET, PHP, SET_NX, SETNX_EXPIRE};
use super::{anywhere, redis, rigs, terms};
use crate::Item;

/// Every row of every dialect.
pub(super) fn items() -> Vec<Item> {
    let generic =
        [every_fault(SET_NX), redis::with_ttl(SET_NX), of_processes(SETNX_EXPIRE), of_processes(PHP), every_fault(GETSET)];
    generic.into_iter().chain([plain::items(), stamps::items()]).flatten().collect()
}

/// Faults of holders and waiters, of the server and of the way to it.
fn every_fault(dialect: Dialect) -> Vec<Item> {
    [of_processes(dialect), redis::in_dialect(dialect)].concat()
}

/// Faults of holders and waiters.
fn of_processes(dialect: Dialect) -> Vec<Item> {
    [anywhere::shared, terms::shared].into_iter().flat_map(|rows| rigs::in_dialect(dialect, rows)).collect()
}
