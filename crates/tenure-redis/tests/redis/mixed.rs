//! A quorum of different engines, as the library makes it of any stores. Those of one engine pass conformance.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tenure::compose::quorum::{Node, Plain, Quorum};
use tenure::store::Store;
use tenure::{Locker, MemoryStore, ReleaseOutcome};
use tenure_testkit::RedisServer;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::{LONG, PATIENCE, answered};

/// Two servers, two files and a store in memory.
struct Mixed {
    servers: Vec<RedisServer>,
    files: TempDir,
    memory: MemoryStore,
}

impl Mixed {
    fn start() -> Self {
        let servers = (0..2).map(|_| RedisServer::start()).collect();
        Self { servers, files: tempfile::tempdir().unwrap(), memory: MemoryStore::new() }
    }

    async fn nodes(&self) -> Vec<Arc<dyn Store>> {
        let mut nodes: Vec<Arc<dyn Store>> = vec![Arc::new(self.memory.clone())];
        for (at, server) in self.servers.iter().enumerate() {
            nodes.push(Arc::new(crate::store(&server.url()).await));
            nodes.push(Arc::new(tenure_sql::sqlite::open(self.files.path().join(format!("{at}.db"))).unwrap()));
        }
        nodes
    }

    async fn locks(&self) -> Locker {
        let nodes = self.nodes().await.into_iter().map(|node| Arc::new(Plain(node)) as Arc<dyn Node>);
        Locker::builder(Quorum::new(nodes.collect()).unwrap()).ttl(LONG).build().unwrap()
    }
}

/// Each client reads a number from a file, and writes the next one, with nothing but the lock around it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_a_quorum_of_different_engines_exclude_each_other() {
    let mixed = Mixed::start();
    let number = mixed.files.path().join("number");
    fs::write(&number, "0").unwrap();
    let mut clients = JoinSet::new();
    for _ in 0..4 {
        let (locks, number) = (mixed.locks().await, number.clone());
        clients.spawn(async move {
            for _ in 0..25 {
                let guard = locks.mutex("door").acquire().await.unwrap();
                let before: u32 = fs::read_to_string(&number).unwrap().parse().unwrap();
                tokio::task::yield_now().await;
                fs::write(&number, (before + 1).to_string()).unwrap();
                assert!(matches!(answered(guard.release().await), ReleaseOutcome::Released));
            }
        });
    }
    let done = async { while clients.join_next().await.transpose().unwrap().is_some() {} };
    timeout(3 * PATIENCE, done).await.expect("a client waits for ever");
    assert_eq!(fs::read_to_string(&number).unwrap(), "100");
}

#[tokio::test]
async fn every_server_may_be_gone_while_they_are_a_minority() {
    let mut mixed = Mixed::start();
    let (ours, theirs) = (mixed.locks().await, mixed.locks().await);
    let held = ours.mutex("door").acquire().await.unwrap();
    let everywhere = async {
        for node in mixed.nodes().await {
            while node.inspect(Some(held.name())).await.unwrap().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    };
    timeout(PATIENCE, everywhere).await.expect("a node never grants it");
    mixed.servers.clear();
    let refused = async {
        // A file may be slower than all others.
        loop {
            match theirs.mutex("door").try_acquire().await {
                Err(error) if error.is_transient() => {}
                answer => return answer.unwrap().is_none(),
            }
        }
    };
    assert!(timeout(PATIENCE, refused).await.expect("it is neither granted nor refused"));
    assert!(matches!(answered(held.release().await), ReleaseOutcome::Released));
    let next = theirs.mutex("door").acquire().await.unwrap();
    assert!(matches!(answered(next.release().await), ReleaseOutcome::Released));
}
