//! State that goes along with a lease from task to task, and state that must not.

use tenure::store::Notice;
use tenure::{Fence, State};

use crate::scripted_store::{Fate, Hints};
use crate::{LONG, door, locker, ms, served, waiter, world};

/// Jeopardy of the lease goes along.
#[tokio::test(start_paused = true)]
async fn a_doubt_passes_on() {
    let (_clock, store, locks) = world();
    let guard = door(&locks).acquire().await.unwrap();
    let next = waiter(door(&locks)).await;
    store.fated(Fate::Fails);
    guard.extend(LONG).await.unwrap_err();
    assert_eq!(guard.state(), State::Jeopardy);
    let fence = guard.fence().unwrap();
    drop(guard);
    let next = served(next).await;
    assert_eq!((next.fence(), next.state()), (fence.next(), State::Jeopardy));
}

/// The handoff window begins with the handoff, however old the last heartbeat is.
#[tokio::test(start_paused = true)]
async fn what_was_handed_over_passes_on() {
    let (clock, store, locks) = world();
    let held = door(&locker(&clock, &store)).acquire().await.unwrap();
    store.hints(Hints::Pushed);
    let (first, second) = (waiter(door(&locks)).await, waiter(door(&locks)).await);
    let owner = store.acquires().pop().unwrap().1;
    let fence = Fence::from_counter(held.fence().unwrap().counter() + 1).unwrap();
    tokio::time::sleep(ms(500)).await;
    store.push(&Notice::Granted { owner, fence, handoff_ttl: ms(1_500) });
    let first = served(first).await;
    store.forget_calls();
    drop(first);
    assert_eq!(served(second).await.fence(), fence.next());
    assert!(store.acquires().is_empty(), "it went through the store");
}
