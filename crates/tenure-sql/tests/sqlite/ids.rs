//! Ids of several processes on one file, some of which are killed.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure_testkit::wait_until;

use crate::child::start;
use crate::common::fresh;

/// Processes at a time.
const PROCESSES: usize = 4;
const ROUNDS: usize = 4;
/// Ids that a process has been given before it is killed: some blocks, and the beginning of one.
const SOME: u64 = 3_000;
const LENGTH: usize = size_of::<i64>();

/// Takes ids until it is killed. Each is in its log before the next one is asked for.
pub(crate) async fn take(path: &Path) {
    let ids = tenure_sql::connect(path).await.unwrap().ids("orders");
    let log = path.with_extension(format!("{}.ids", std::process::id()));
    let mut log = OpenOptions::new().create(true).append(true).open(log).unwrap();
    loop {
        log.write_all(&ids.next().await.unwrap().to_ne_bytes()).unwrap();
    }
}

fn ids(log: &Path) -> Vec<i64> {
    let bytes = fs::read(log).unwrap();
    bytes.chunks_exact(LENGTH).map(|id| i64::from_ne_bytes(id.try_into().unwrap())).collect()
}

#[test]
fn no_id_is_given_twice_though_processes_are_killed() {
    let (_dir, path) = fresh();
    let mut all = HashSet::new();
    for round in 0..ROUNDS {
        let mut children: Vec<_> = (0..PROCESSES).map(|_| start("ids", &path)).collect();
        let logs: Vec<PathBuf> = children.iter().map(|child| path.with_extension(format!("{}.ids", child.pid()))).collect();
        let has_some = |log: &PathBuf| fs::metadata(log).is_ok_and(|log| log.len() > SOME * LENGTH as u64);
        // A process that was killed with the mutex keeps the others waiting for its ttl.
        wait_until(Duration::from_secs(30), "ids of each process", || logs.iter().all(has_some));
        for child in &mut children {
            child.kill();
        }
        for log in &logs {
            let ids = ids(log);
            assert!(ids.is_sorted_by(|a, b| a < b), "round {round}: the ids of a process do not rise");
            for id in ids {
                assert!(id > 0 && all.insert(id), "round {round}: {id} was given twice");
            }
        }
    }
    println!("{} ids of {} processes that were killed", all.len(), PROCESSES * ROUNDS);
}
