//! Conformance of the store in memory: as it is, and with a fault wrapper around it that is asked for silence alone.

#![allow(clippy::unwrap_used, reason = "a test stops where its set-up does")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure::store::{AcquireReply, ReleaseReply, Request, Store};
use tenure::{MemoryStore, Name, Owner, Share};
use tenure_conformance::exceptions::{NEVER_SILENT, NO_FENCE, NO_FOREIGN_LOCKS, NO_QUEUE, ONE_BY_ONE, ONE_PROCESS};
use tenure_conformance::{Fate, Faulty, NotApplicable, Subject};

mod memory {
    use super::*;

    struct Memory(MemoryStore);

    #[async_trait]
    impl Subject for Memory {
        async fn store(&self) -> Arc<dyn Store> {
            Arc::new(self.0.clone())
        }

        fn exceptions(&self) -> Vec<&'static str> {
            [ONE_PROCESS, NO_FOREIGN_LOCKS, NEVER_SILENT].concat()
        }
    }

    fn subject() -> Memory {
        Memory(MemoryStore::new())
    }

    tenure_conformance::conformance!(subject);
}

mod faulty {
    use super::*;

    struct Silent(Faulty<MemoryStore>);

    #[async_trait]
    impl Subject for Silent {
        async fn store(&self) -> Arc<dyn Store> {
            Arc::new(self.0.clone())
        }

        fn silence(&self, silent: bool) -> Result<(), NotApplicable> {
            if silent {
                self.0.plan(|_, _| Fate::HangsBefore);
            } else {
                self.0.heal();
            }
            Ok(())
        }

        fn exceptions(&self) -> Vec<&'static str> {
            [ONE_PROCESS, NO_FOREIGN_LOCKS].concat()
        }
    }

    fn subject() -> Silent {
        Silent(Faulty::new(MemoryStore::new()))
    }

    tenure_conformance::conformance!(subject, Contract);
}

/// A quorum of stores in memory.
mod quorum {
    use tenure::compose::quorum::{Node, Plain, Quorum};

    use super::*;

    struct OfMemory(Vec<MemoryStore>);

    #[async_trait]
    impl Subject for OfMemory {
        async fn store(&self) -> Arc<dyn Store> {
            let nodes = self.0.iter().map(|node| Arc::new(Plain(node.clone())) as Arc<dyn Node>);
            Arc::new(Quorum::new(nodes.collect()).unwrap())
        }

        fn exceptions(&self) -> Vec<&'static str> {
            [ONE_PROCESS, NO_FOREIGN_LOCKS, NEVER_SILENT, NO_QUEUE, NO_FENCE, ONE_BY_ONE].concat()
        }
    }

    fn subject() -> OfMemory {
        // Enough for the semaphores of the cases.
        OfMemory((0..7).map(|_| MemoryStore::new()).collect())
    }

    tenure_conformance::conformance!(subject, Contract);

    /// The slowest node has begun before the answer of the others is heard.
    #[tokio::test]
    async fn a_release_comes_after_its_acquisition_at_every_node() {
        let all = subject();
        let store = all.store().await;
        let (name, owner) = (Name::new("door").unwrap(), Owner::generate("x").unwrap());
        let request = Request::new(name, owner, Share::MUTEX, Duration::from_secs(30));
        assert!(matches!(store.acquire(&request).await, Ok(AcquireReply::Granted(_))));
        assert_eq!(store.release(&request.lease(), Duration::ZERO).await.unwrap(), ReleaseReply::Released);
        // For the calls in the background.
        tokio::time::sleep(Duration::from_millis(10)).await;
        for node in &all.0 {
            assert_eq!(node.inspect(None).await.unwrap(), []);
        }
    }
}

/// All of two stores in memory.
mod all {
    use tenure::compose::AllOf;

    use super::*;

    struct OfMemory([MemoryStore; 2]);

    #[async_trait]
    impl Subject for OfMemory {
        async fn store(&self) -> Arc<dyn Store> {
            let [first, second] = self.0.clone();
            Arc::new(AllOf::new(vec![Arc::new(first), Arc::new(second)]).unwrap())
        }

        fn exceptions(&self) -> Vec<&'static str> {
            [ONE_PROCESS, NO_FOREIGN_LOCKS, NEVER_SILENT, NO_QUEUE, ONE_BY_ONE].concat()
        }
    }

    fn subject() -> OfMemory {
        OfMemory([MemoryStore::new(), MemoryStore::new()])
    }

    tenure_conformance::conformance!(subject, Contract);
}

/// The same, and they fall silent. Faults of one of them are tested with the core.
mod silent_all {
    use tenure::compose::AllOf;

    use super::*;

    struct Silent([Faulty<MemoryStore>; 2]);

    #[async_trait]
    impl Subject for Silent {
        async fn store(&self) -> Arc<dyn Store> {
            let [first, second] = self.0.clone();
            Arc::new(AllOf::new(vec![Arc::new(first), Arc::new(second)]).unwrap())
        }

        fn silence(&self, silent: bool) -> Result<(), NotApplicable> {
            for store in &self.0 {
                if silent {
                    store.plan(|_, _| Fate::HangsBefore);
                } else {
                    store.heal();
                }
            }
            Ok(())
        }

        fn exceptions(&self) -> Vec<&'static str> {
            [ONE_PROCESS, NO_FOREIGN_LOCKS, NO_QUEUE, ONE_BY_ONE].concat()
        }
    }

    fn subject() -> Silent {
        Silent([Faulty::new(MemoryStore::new()), Faulty::new(MemoryStore::new())])
    }

    tenure_conformance::conformance!(subject, Variant);
}

/// The files of the crate, wherever they are.
fn sources(dir: &Path) -> Vec<PathBuf> {
    let inside = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    inside.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

/// Every call that can be dropped says what that leaves, and is dropped in the conformance cases.
#[test]
fn every_call_says_what_dropping_it_leaves() {
    const OF: [&str; 5] = ["Acquire", "AcquireAll", "Guard", "Guards", "Locker"];
    let tried = tenure_conformance::cancelled_functions();
    let mut seen = 0;
    for file in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
        let source = fs::read_to_string(file).unwrap();
        let (mut of, mut docs) = (String::new(), String::new());
        for line in source.lines() {
            let code = line.trim_start();
            if let Some(name) = line.strip_prefix("impl ") {
                of = name.trim_end_matches(" {").to_owned();
            } else if let Some(text) = code.strip_prefix("///") {
                docs.push_str(text);
            } else if let Some(name) = code.strip_prefix("pub async fn ").filter(|_| OF.contains(&of.as_str())) {
                let call = format!("{of}::{}", name.split(['(', '<']).next().unwrap());
                assert!(docs.contains("# Cancel safety"), "{call} does not say what dropping it leaves");
                assert!(tried.contains(&call.as_str()), "{call} is in no conformance case that drops it");
                seen += 1;
            } else if !code.starts_with("#[") {
                docs.clear();
            }
        }
    }
    assert!(seen >= 18, "only {seen} calls were found");
}
