//! A hand-over that is pushed: when it is believed, for how long, and when it is only a hint.

use std::time::Duration;

use tenure::store::{Busy, Enqueue, Notice};
use tenure::{Acquire, ErrorKind, Fence, Guard, Owner, State};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::scripted_store::{Call, Fate, Hints, SLOW, ScriptedStore};
use crate::test_clock::TestClock;
use crate::{LONG, SOON, door, locker, ms, secs, settle, until, world};

const CLAIM: Duration = Duration::from_millis(1_500);

/// A name that another process holds, and one that waits for it with a place of its own.
struct Scene {
    store: ScriptedStore,
    _clock: TestClock,
    held: Guard,
    waiter: JoinHandle<Guard>,
}

async fn scene(acquire: impl FnOnce(Acquire) -> Acquire) -> Scene {
    let (clock, store, locks) = world();
    let held = locker(&clock, &store).mutex("door").ttl(LONG * 10).acquire().await.unwrap();
    store.hints(Hints::Pushed);
    let acquire = acquire(door(&locks));
    let waiter = tokio::spawn(async { acquire.acquire().await.unwrap() });
    settle().await;
    assert!(
        matches!(last_place(&store), Enqueue::Join { entry_ttl, handoff_ttl } if entry_ttl > handoff_ttl && handoff_ttl == CLAIM)
    );
    Scene { store, _clock: clock, held, waiter }
}

fn last_place(store: &ScriptedStore) -> Enqueue {
    let place = |(_, call): (_, Call)| if let Call::Acquire(request) = call { Some(request.enqueue) } else { None };
    store.calls().into_iter().filter_map(place).next_back().unwrap()
}

fn last_owner(store: &ScriptedStore) -> Owner {
    store.acquires().pop().unwrap().1
}

impl Scene {
    /// The counter that every answer so far carried as its mark.
    fn mark(&self) -> u64 {
        self.held.fence().unwrap().counter()
    }

    /// Pushes a hand-over to the waiter; how often the store was asked for the name since.
    async fn pushes(&self, counter: u64, claim: Duration) -> usize {
        let owner = last_owner(&self.store);
        self.store.forget_calls();
        self.store.push(&Notice::Granted { owner, fence: Fence::from_counter(counter).unwrap(), handoff_ttl: claim });
        settle().await;
        self.store.acquires().len()
    }
}

#[tokio::test(start_paused = true)]
async fn a_push_is_believed_without_asking_and_renewed_soon() {
    let scene = scene(|acquire| acquire).await;
    let fence = scene.mark() + 1;
    assert_eq!(scene.pushes(fence, CLAIM).await, 0, "the store was asked");
    let guard = timeout(SOON, scene.waiter).await.unwrap().unwrap();
    assert_eq!((guard.state(), guard.fence()), (State::Held, Fence::from_counter(fence)));
    // A claim less drift, the clocks' grain and a tenth to stop work.
    let left = guard.remaining();
    assert!(left <= ms(1_333) && left > ms(1_300), "{left:?}");
    tokio::time::sleep(ms(600)).await;
    let renewals = scene.store.renewals();
    assert_eq!(renewals[0].1[0].ttl, LONG, "it is renewed for its ttl");
}

/// A grant that is not above what was heard is an old one.
#[tokio::test(start_paused = true)]
async fn an_old_push_is_a_hint() {
    let scene = scene(|acquire| acquire).await;
    for counter in [scene.mark(), scene.mark() - 1] {
        if counter > 0 {
            assert_eq!(scene.pushes(counter, CLAIM).await, 1, "it did not look");
        }
    }
    assert!(!scene.waiter.is_finished(), "an old push was believed");
}

/// A push for a token that was given up says nothing about the one in use.
#[tokio::test(start_paused = true)]
async fn a_push_for_another_owner_is_a_hint() {
    let scene = scene(|acquire| acquire).await;
    let (owner, fence) = (Owner::generate("other").unwrap(), Fence::from_counter(scene.mark() + 1).unwrap());
    scene.store.push(&Notice::Granted { owner, fence, handoff_ttl: CLAIM });
    settle().await;
    assert!(!scene.waiter.is_finished());
}

/// The claim is the waiter's own number, whatever others say.
#[tokio::test(start_paused = true)]
async fn nobody_else_makes_a_claim_longer() {
    for (told, believed) in [(CLAIM * 10, ms(1_333)), (secs(1), ms(888))] {
        let scene = scene(|acquire| acquire).await;
        assert_eq!(scene.pushes(scene.mark() + 1, told).await, 0);
        let guard = timeout(SOON, scene.waiter).await.unwrap().unwrap();
        assert!(guard.remaining() <= believed, "{:?} of {told:?}", guard.remaining());
    }
}

/// Whoever needs more than a claim has, asks.
#[tokio::test(start_paused = true)]
async fn terms_that_a_claim_cannot_keep_make_it_a_hint() {
    let demanding: [fn(Acquire) -> Acquire; 3] =
        [|acquire| acquire.safety_margin(ms(151)), Acquire::fixed_lease, |acquire| acquire.min_hold(secs(1))];
    for terms in demanding {
        let scene = scene(terms).await;
        assert_eq!(scene.pushes(scene.mark() + 1, CLAIM).await, 1, "it was believed");
        assert!(!scene.waiter.is_finished());
    }
    let modest = scene(|acquire| acquire.safety_margin(ms(150))).await;
    assert_eq!(modest.pushes(modest.mark() + 1, CLAIM).await, 0);
}

/// Belief counts from the last heartbeat that was answered, from when it was sent.
#[tokio::test(start_paused = true)]
async fn belief_counts_from_the_last_heartbeat() {
    let scene = scene(|acquire| acquire).await;
    tokio::time::sleep(ms(900)).await;
    assert_eq!(scene.pushes(scene.mark() + 1, CLAIM).await, 0);
    let guard = timeout(SOON, scene.waiter).await.unwrap().unwrap();
    assert!(guard.remaining() <= ms(433), "{:?}", guard.remaining());
}

#[tokio::test(start_paused = true)]
async fn a_slow_answer_does_not_make_belief_longer() {
    let scene = scene(|acquire| acquire).await;
    scene.store.forget_calls();
    scene.store.fated(Fate::Slow);
    while scene.store.acquires().is_empty() {
        tokio::time::sleep(ms(1)).await;
    }
    scene.store.fated(Fate::Works);
    tokio::time::sleep(SLOW + ms(1)).await;
    assert_eq!(scene.pushes(scene.mark() + 1, CLAIM).await, 0);
    let guard = timeout(SOON, scene.waiter).await.unwrap().unwrap();
    assert!(guard.remaining() <= ms(1_333) - SLOW, "{:?}", guard.remaining());
}

/// Too little is left for a renewal to fail once.
#[tokio::test(start_paused = true)]
async fn a_push_after_an_old_heartbeat_is_a_hint() {
    let scene = scene(|acquire| acquire).await;
    scene.store.fated(Fate::Fails);
    tokio::time::sleep(ms(1_200)).await;
    // Else a heartbeat may be answered at the very moment of the push.
    scene.store.called().await;
    scene.store.fated(Fate::Works);
    assert!(scene.pushes(scene.mark() + 1, CLAIM).await >= 1, "it was believed");
    assert!(!scene.waiter.is_finished());
}

/// Its first renewal may fail once, at any age of the heartbeat.
#[tokio::test(start_paused = true)]
async fn a_believed_lease_survives_one_error() {
    for age in [0, 500, 900, 990].into_iter().cycle().take(160) {
        let scene = scene(|acquire| acquire).await;
        tokio::time::sleep(ms(age)).await;
        let (fence, owner) = (Fence::from_counter(scene.mark() + 1).unwrap(), last_owner(&scene.store));
        let Scene { store, held, waiter, .. } = scene;
        let _ = held.release().await.unwrap();
        store.forget_calls();
        store.push(&Notice::Granted { owner, fence, handoff_ttl: CLAIM });
        let guard = timeout(SOON, waiter).await.unwrap().unwrap();
        // The last of these may be too old; what is asked for instead is granted for its full ttl.
        assert!(store.acquires().is_empty() || age > 900, "a push after {age} ms was not believed");
        store.fated(Fate::Says(ErrorKind::Unavailable));
        until(|| !store.renewals().is_empty()).await;
        store.fated(Fate::Works);
        tokio::time::sleep(secs(2)).await;
        assert_eq!((guard.state(), guard.end_reason()), (State::Held, None), "after a heartbeat of {age} ms ago");
    }
}

/// A heartbeat never makes a place: where the place is gone, its token is used up.
#[tokio::test(start_paused = true)]
async fn a_place_that_is_gone_is_taken_anew_with_another_token() {
    let scene = scene(|acquire| acquire).await;
    let first = last_owner(&scene.store);
    let gone = Busy::new(secs(1)).with_grant_seq(1);
    scene.store.answers([tenure::store::AcquireReply::Busy(gone)]);
    tokio::time::sleep(ms(1_300)).await;
    assert_ne!(last_owner(&scene.store), first);
    assert!(matches!(last_place(&scene.store), Enqueue::Join { .. } | Enqueue::Heartbeat));
    let joins = scene.store.calls().into_iter().filter(|(_, call)| {
        matches!(call, Call::Acquire(request) if request.owner == first && matches!(request.enqueue, Enqueue::Join { .. }))
    });
    assert_eq!(joins.count(), 1, "a token was queued twice");
}

/// The one for the token before would tell it nothing, and it would find out by its heartbeat.
#[tokio::test(start_paused = true)]
async fn another_token_is_listened_for() {
    let scene = scene(|acquire| acquire).await;
    let watches = || scene.store.calls().iter().filter(|(_, call)| matches!(call, Call::Watch)).count();
    let before = watches();
    scene.store.answers([tenure::store::AcquireReply::Busy(Busy::new(secs(1)).with_grant_seq(1))]);
    tokio::time::sleep(ms(1_300)).await;
    assert_eq!(watches(), before + 1);
}

/// Between the two the name may be handed to it.
#[tokio::test(start_paused = true)]
async fn who_queues_listens_already() {
    let scene = scene(|acquire| acquire).await;
    let asked = scene.store.calls();
    let join = |call: &Call| matches!(call, Call::Acquire(request) if matches!(request.enqueue, Enqueue::Join { .. }));
    let queued = asked.iter().position(|(_, call)| join(call)).unwrap();
    assert!(asked[..queued].iter().any(|(_, call)| matches!(call, Call::Watch)), "{asked:?}");
}

/// The one that was tried may have been given something, and have had to give it back.
#[tokio::test(start_paused = true)]
async fn a_token_that_was_tried_is_not_queued() {
    let (clock, store, locks) = world();
    let _held = locker(&clock, &store).mutex("door").ttl(LONG * 10).acquire().await.unwrap();
    store.forget_calls();
    let _waiter = tokio::spawn(door(&locks).acquire());
    settle().await;
    let asked = store.acquires();
    assert_eq!(asked.len(), 2, "a try, and a place");
    assert_ne!(asked[0].1, asked[1].1);
}

/// Whoever asks for less than a claim gets less: that is what its death costs those behind it.
#[tokio::test(start_paused = true)]
async fn no_claim_is_longer_than_the_ttl() {
    let (clock, store, locks) = world();
    let _held = locker(&clock, &store).mutex("door").ttl(LONG * 10).acquire().await.unwrap();
    let _waiter = tokio::spawn(locks.mutex("door").ttl(ms(900)).acquire());
    settle().await;
    assert!(
        matches!(last_place(&store), Enqueue::Join { handoff_ttl, .. } if handoff_ttl <= ms(900)),
        "{:?}",
        last_place(&store)
    );
}
