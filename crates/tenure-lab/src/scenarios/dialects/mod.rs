//! Locks in the words of others: the same faults as ours, and the other side beside us as its article has it.

mod article;
mod plain;

use super::dialect::{Dialect, SET_NX, SETNX_EXPIRE};
use super::{anywhere, redis, rigs, terms};
use crate::Item;

/// Every row of every dialect.
pub(super) fn items() -> Vec<Item> {
    [every_fault(SET_NX), of_processes(SETNX_EXPIRE), plain::items()].concat()
}

/// Faults of holders and waiters, of the server and of the way to it.
fn every_fault(dialect: Dialect) -> Vec<Item> {
    [of_processes(dialect), redis::in_dialect(dialect)].concat()
}

/// Faults of holders and waiters.
fn of_processes(dialect: Dialect) -> Vec<Item> {
    [anywhere::shared, terms::shared].into_iter().flat_map(|rows| rigs::in_dialect(dialect, rows)).collect()
}
