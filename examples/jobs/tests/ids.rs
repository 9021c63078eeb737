//! Ids of several processes at one store, all of which are killed.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test stops where its set-up does")]

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tenure_testkit::{
    EtcdCluster, MariaDbServer, MemcachedServer, PostgresServer, RedisServer, Spawned, ZooKeeperServer, wait_until,
};

/// Processes at a time.
const PROCESSES: usize = 4;
const ROUNDS: usize = 3;
/// Ids that a process has been given before it is killed: some blocks, and the beginning of one.
const SOME: u64 = 3_000;
const LENGTH: u64 = size_of::<i64>() as u64;
/// The store, and the log, of a process that takes ids.
const STORE: &str = "TENURE_IDS_STORE";
const LOG: &str = "TENURE_IDS_LOG";

/// Not a case: the other processes begin here. Takes ids until it is killed. Each is in the log before the next one is
/// asked for.
#[tokio::test]
async fn entry() {
    let Ok(store) = std::env::var(STORE) else { return };
    let ids = tenure_stores::connect(store).await.unwrap().ids("orders");
    let mut log = OpenOptions::new().create_new(true).append(true).open(std::env::var_os(LOG).unwrap()).unwrap();
    loop {
        log.write_all(&ids.next().await.unwrap().to_ne_bytes()).unwrap();
    }
}

fn start(store: &str, log: &Path) -> Spawned {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "entry", "--nocapture"]).env(STORE, store).env(LOG, log);
    Spawned::spawn(command.stdin(Stdio::null()).stdout(Stdio::null())).unwrap()
}

fn ids(log: &Path) -> Vec<i64> {
    let bytes = fs::read(log).unwrap();
    bytes.chunks_exact(size_of::<i64>()).map(|id| i64::from_ne_bytes(id.try_into().unwrap())).collect()
}

/// Kills processes that take ids, when each has `some`. A later one goes on where they were.
fn no_id_is_given_twice(store: &str, some: u64) {
    let (dir, mut all) = (tempfile::tempdir().unwrap(), HashSet::new());
    for round in 0..ROUNDS {
        let logs: Vec<PathBuf> = (0..PROCESSES).map(|number| dir.path().join(format!("{round}-{number}.ids"))).collect();
        let mut children: Vec<_> = logs.iter().map(|log| start(store, log)).collect();
        let has_some = |log: &PathBuf| fs::metadata(log).is_ok_and(|log| log.len() > some * LENGTH);
        // One that was killed with the mutex keeps the others waiting for its lease.
        wait_until(Duration::from_secs(60), "ids of each process", || logs.iter().all(has_some));
        for child in &mut children {
            child.kill();
        }
        for log in &logs {
            let ids = ids(log);
            assert!(ids.is_sorted_by(|a, b| a < b), "{store}, round {round}: the ids of a process do not rise");
            for id in ids {
                assert!(id > 0 && all.insert(id), "{store}, round {round}: {id} was given twice");
            }
        }
    }
    println!("{store}: {} ids of {} processes that were killed", all.len(), PROCESSES * ROUNDS);
}

#[test]
fn no_id_of_a_file_or_a_redis_is_given_twice() {
    let dir = tempfile::tempdir().unwrap();
    no_id_is_given_twice(&format!("sqlite:{}", dir.path().join("locks.db").display()), SOME);
    no_id_is_given_twice(&RedisServer::start().url(), SOME);
}

#[test]
fn no_id_of_a_table_is_given_twice() {
    no_id_is_given_twice(&PostgresServer::start().url("ids"), SOME);
    no_id_is_given_twice(&MariaDbServer::start().url("ids"), SOME);
}

#[test]
fn no_id_of_etcd_is_given_twice() {
    no_id_is_given_twice(&EtcdCluster::of(1).start().url("ids"), SOME);
}

/// A block of ZooKeeper is one id.
#[test]
fn no_id_of_zookeeper_is_given_twice() {
    no_id_is_given_twice(&ZooKeeperServer::start().url("ids"), 100);
}

#[test]
fn no_id_of_memcached_is_given_twice() {
    no_id_is_given_twice(&MemcachedServer::start().url(), SOME);
}
