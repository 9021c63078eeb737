//! Memory of the store in memory. Its answers are those of the conformance cases.

use tenure::store::{AcquireReply, Request, Store};
use tenure::{MemoryStore, Name, Owner, Share};

use crate::LONG;
use crate::test_clock::TestClock;

/// Names that nobody asks for again do not stay.
#[tokio::test(start_paused = true)]
async fn dead_names_are_forgotten() {
    for several in [false, true] {
        let clock = TestClock::new();
        let store = MemoryStore::with_clock(clock.clone());
        for i in 0..10_000 {
            let (name, owner) = (Name::new(i.to_string()).unwrap(), Owner::generate("m").unwrap());
            let request = Request::new(name, owner, Share::MUTEX, LONG);
            if several {
                assert!(store.acquire_all(&[request]).await.unwrap().is_some());
            } else {
                assert!(matches!(store.acquire(&request).await.unwrap(), AcquireReply::Granted(_)));
            }
            clock.sleep(LONG / 100);
        }
        let text = format!("{store:?}");
        let names = text.strip_prefix("MemoryStore { names: ").and_then(|rest| rest.strip_suffix(", .. }"));
        assert!((100..400).contains(&names.unwrap().parse::<usize>().unwrap()), "{text}");
    }
}
