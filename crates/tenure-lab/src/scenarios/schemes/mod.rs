//! Locks in the schemes of other clients: the same faults as ours, and the other side as its article has it.

mod article;
mod beside;
mod plain;
mod timestamps;
mod watch;

use super::scheme::{GETSET, PHP, REDISSON, REDISSON_FAIR, SET_NX, SETNX_EXPIRE, Scheme, WATCH};
use super::{anywhere, fixtures, queue, redis, shares, terms};
use crate::Item;

/// Every row of every scheme.
pub(super) fn items() -> Vec<Item> {
    let set_nx = [every_fault(SET_NX), redis::with_ttl(SET_NX), redis::with_scripts(SET_NX)].concat();
    let getset = [every_fault(GETSET), redis::with_scripts(GETSET)].concat();
    let watch = [every_fault(WATCH), redis::with_ttl(WATCH), redis::without_scripts(WATCH), of_many(WATCH)].concat();
    let redisson = [every_fault(REDISSON), redis::with_ttl(REDISSON), redis::with_scripts(REDISSON)].concat();
    let mut in_line = fixtures::in_scheme(REDISSON_FAIR, queue::rows);
    // Who is served there has asked for it, and holds for its whole ttl.
    in_line.retain(|row| !row.id.ends_with("46-served-and-stopped"));
    let fair = [every_fault(REDISSON_FAIR), redis::with_ttl(REDISSON_FAIR), redis::with_scripts(REDISSON_FAIR), in_line].concat();
    let faults = [set_nx, of_processes(SETNX_EXPIRE), of_processes(PHP), getset, watch, redisson, fair];
    faults.into_iter().chain([plain::items(), timestamps::items(), watch::items()]).flatten().collect()
}

/// Faults of holders and waiters, of the server and of the way to it.
fn every_fault(scheme: Scheme) -> Vec<Item> {
    [of_processes(scheme), redis::in_scheme(scheme)].concat()
}

/// Faults of holders and waiters.
fn of_processes(scheme: Scheme) -> Vec<Item> {
    [anywhere::shared, terms::shared].into_iter().flat_map(|rows| fixtures::in_scheme(scheme, rows)).collect()
}

/// Faults of those who wait in line, and of those who hold a share.
fn of_many(scheme: Scheme) -> Vec<Item> {
    [queue::rows, shares::rows].into_iter().flat_map(|rows| fixtures::in_scheme(scheme, rows)).collect()
}
