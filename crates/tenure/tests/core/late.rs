//! At a store with late commands: what an abandoned command does after the release is released, too.

use std::time::Duration;

use crate::scripted_store::{Fate, ScriptedStore};
use crate::{released, secs, served, settle, waiter, world_with};

#[derive(Clone, Copy, Debug)]
enum End {
    Released,
    Dropped,
    /// By the task that it was passed on to.
    PassedOn,
}

async fn is_free_within(store: &ScriptedStore, limit: Duration) {
    let free = async {
        while !tenure::store::Store::inspect(store, None).await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(limit, free).await.expect("the name is taken for nobody");
}

#[tokio::test(start_paused = true)]
async fn a_late_acquire_after_the_release_is_cleared_up() {
    for end in [End::Released, End::Dropped, End::PassedOn] {
        let (_clock, store, locks) = world_with(|features| features.late_commands = true);
        drop(locks.mutex("warm").acquire().await.unwrap());
        locks.flush_releases().await;
        let acquire = || locks.mutex("x").ttl(secs(3)).acquire();
        store.fated(Fate::Late);
        let waiting = tokio::spawn(acquire());
        store.called().await;
        store.fated(Fate::Works);
        let guard = waiting.await.unwrap().unwrap();
        match end {
            End::Released => released(guard).await,
            End::Dropped => drop(guard),
            End::PassedOn => {
                let next = waiter(locks.mutex("x").ttl(secs(3))).await;
                let fence = guard.fence().unwrap();
                drop(guard);
                let next = served(next).await;
                assert_eq!(next.fence(), fence.next(), "it was not passed on");
                drop(next);
            }
        }
        settle().await;
        is_free_within(&store, secs(1)).await;
        store.run_late().await;
        is_free_within(&store, secs(1)).await;
    }
}
