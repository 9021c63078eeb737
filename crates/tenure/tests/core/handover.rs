//! Pushed handoffs: when one is accepted, for how long it is valid, and when it is only a hint.

use std::time::Duration;

use tenure::store::{Busy, Enqueue, Notice, Request};
use tenure::{Acquire, ErrorKind, Fence, Guard, Owner, State};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::scripted_store::{Call, Fate, Hints, SLOW, ScriptedStore};
use crate::test_clock::TestClock;
use crate::{LONG, SOON, door, locker, ms, secs, settle, until, world};

const HANDOFF_TTL: Duration = Duration::from_millis(1_500);

/// A name that another process holds, and a process that waits for it with an entry of its own.
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
        matches!(last_place(&store), Enqueue::Join { entry_ttl, handoff_ttl } if entry_ttl > handoff_ttl && handoff_ttl == HANDOFF_TTL)
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
    /// Grant counter of every answer so far.
    fn grant_seq(&self) -> u64 {
        self.held.fence().unwrap().counter()
    }

    /// Pushes a handoff to the waiter. Returns the number of requests for the name since.
    async fn pushes(&self, counter: u64, handoff_ttl: Duration) -> usize {
        let owner = last_owner(&self.store);
        self.store.forget_calls();
        self.store.push(&Notice::Granted { owner, fence: Fence::from_counter(counter).unwrap(), handoff_ttl });
        settle().await;
        self.store.acquires().len()
    }
}

#[tokio::test(start_paused = true)]
async fn a_push_is_believed_without_asking_and_renewed_soon() {
    let scene = scene(|acquire| acquire).await;
    let fence = scene.grant_seq() + 1;
    assert_eq!(scene.pushes(fence, HANDOFF_TTL).await, 0, "the store was asked");
    let guard = timeout(SOON, scene.waiter).await.unwrap().unwrap();
    assert_eq!((guard.state(), guard.fence()), (State::Held, Fence::from_counter(fence)));
    // The handoff's ttl less drift, the resolution of the clocks and a tenth as safety margin.
    let left = guard.remaining();
    assert!(left <= ms(1_333) && left > ms(1_300), "{left:?}");
    tokio::time::sleep(ms(600)).await;
    let renewals = scene.store.renewals();
    assert_eq!(renewals[0].1[0].ttl, LONG, "it is renewed for its ttl");
}

/// A grant that is not above the last grant counter is an old one. One for a released token says nothing about the one in use.
#[tokio::test(start_paused = true)]
async fn an_old_push_is_a_hint() {
    let scene = scene(|acquire| acquire).await;
    assert_eq!(scene.pushes(scene.grant_seq(), HANDOFF_TTL).await, 1, "it did not look");
    let (owner, fence) = (Owner::generate("other").unwrap(), Fence::from_counter(scene.grant_seq() + 1).unwrap());
    scene.store.push(&Notice::Granted { owner, fence, handoff_ttl: HANDOFF_TTL });
    settle().await;
    assert!(!scene.waiter.is_finished(), "an old push was accepted");
}

/// The handoff ttl is the waiter's own number, whatever others say.
#[tokio::test(start_paused = true)]
async fn nobody_else_makes_a_claim_longer() {
    for (said, valid) in [(HANDOFF_TTL * 10, ms(1_333)), (secs(1), ms(888))] {
        let scene = scene(|acquire| acquire).await;
        assert_eq!(scene.pushes(scene.grant_seq() + 1, said).await, 0);
        let guard = timeout(SOON, scene.waiter).await.unwrap().unwrap();
        assert!(guard.remaining() <= valid, "{:?} of {said:?}", guard.remaining());
    }
}

/// A waiter that needs more than the handoff ttl polls.
#[tokio::test(start_paused = true)]
async fn terms_that_a_claim_cannot_keep_make_it_a_hint() {
    let demanding: [fn(Acquire) -> Acquire; 3] =
        [|acquire| acquire.safety_margin(ms(151)), Acquire::fixed_lease, |acquire| acquire.min_hold(secs(1))];
    for terms in demanding {
        let scene = scene(terms).await;
        assert_eq!(scene.pushes(scene.grant_seq() + 1, HANDOFF_TTL).await, 1, "it was accepted");
        assert!(!scene.waiter.is_finished());
    }
    let modest = scene(|acquire| acquire.safety_margin(ms(150))).await;
    assert_eq!(modest.pushes(modest.grant_seq() + 1, HANDOFF_TTL).await, 0);
}

/// Validity counts from the sending of the last answered heartbeat.
#[tokio::test(start_paused = true)]
async fn belief_counts_from_the_last_heartbeat() {
    let scene = scene(|acquire| acquire).await;
    tokio::time::sleep(ms(900)).await;
    assert_eq!(scene.pushes(scene.grant_seq() + 1, HANDOFF_TTL).await, 0);
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
    assert_eq!(scene.pushes(scene.grant_seq() + 1, HANDOFF_TTL).await, 0);
    let guard = timeout(SOON, scene.waiter).await.unwrap().unwrap();
    assert!(guard.remaining() <= ms(1_333) - SLOW, "{:?}", guard.remaining());
}

/// Too little is left for a renewal to fail once.
#[tokio::test(start_paused = true)]
async fn a_push_after_an_old_heartbeat_is_a_hint() {
    let scene = scene(|acquire| acquire).await;
    scene.store.fated(Fate::Fails);
    tokio::time::sleep(ms(1_200)).await;
    // Else a heartbeat may be answered in the same moment as the push.
    scene.store.called().await;
    scene.store.fated(Fate::Works);
    assert!(scene.pushes(scene.grant_seq() + 1, HANDOFF_TTL).await >= 1, "it was accepted");
    assert!(!scene.waiter.is_finished());
}

/// The store may have confirmed the hold by a heartbeat that nobody heard of. Its number is later than the pushed one, and
/// others see it.
#[tokio::test(start_paused = true)]
async fn a_push_after_an_unheard_heartbeat_is_a_hint() {
    for (fate, asked) in [(Fate::Fails, 0), (Fate::Unheard, 1)] {
        let scene = scene(|acquire| acquire).await;
        scene.store.fated(fate);
        tokio::time::sleep(ms(1_300)).await;
        scene.store.fated(Fate::Works);
        scene.store.called().await;
        settle().await;
        assert_eq!(scene.pushes(scene.grant_seq() + 1, HANDOFF_TTL).await, asked, "{fate:?}");
    }
}

/// Its first renewal may fail once, at any age of the heartbeat.
#[tokio::test(start_paused = true)]
async fn a_believed_lease_survives_one_error() {
    for age in [0, 500, 900, 990].into_iter().cycle().take(160) {
        let scene = scene(|acquire| acquire).await;
        tokio::time::sleep(ms(age)).await;
        let (fence, owner) = (Fence::from_counter(scene.grant_seq() + 1).unwrap(), last_owner(&scene.store));
        let Scene { store, held, waiter, .. } = scene;
        let _ = held.release().await.unwrap();
        store.forget_calls();
        store.push(&Notice::Granted { owner, fence, handoff_ttl: HANDOFF_TTL });
        let guard = timeout(SOON, waiter).await.unwrap().unwrap();
        // The last of these may be too old. The poll instead is granted for its full ttl.
        assert!(store.acquires().is_empty() || age > 900, "a push after {age} ms was not accepted");
        store.fated(Fate::Says(ErrorKind::Unavailable));
        until(|| !store.renewals().is_empty()).await;
        store.fated(Fate::Works);
        tokio::time::sleep(secs(2)).await;
        assert_eq!((guard.state(), guard.end_reason()), (State::Held, None), "after a heartbeat of {age} ms ago");
    }
}

/// A heartbeat never makes an entry: if the entry is gone, its token is used up. A watch for that token would say nothing.
#[tokio::test(start_paused = true)]
async fn a_place_that_is_gone_is_taken_anew_with_another_token() {
    let scene = scene(|acquire| acquire).await;
    let (first, before) = (last_owner(&scene.store), scene.store.calls());
    let gone = Busy::new(secs(1)).with_grant_seq(1);
    scene.store.answers([tenure::store::AcquireReply::Busy(gone)]);
    tokio::time::sleep(ms(1_300)).await;
    assert_ne!(last_owner(&scene.store), first);
    assert!(matches!(last_place(&scene.store), Enqueue::Join { .. } | Enqueue::Heartbeat));
    let calls = scene.store.calls();
    let joins = |call: &Call| matches!(call, Call::Acquire(request) if request.owner == first && is_join(request));
    assert_eq!(calls.iter().filter(|(_, call)| joins(call)).count(), 1, "a token was queued twice");
    let watches = |calls: &[(tenure::BootTime, Call)]| calls.iter().filter(|(_, call)| matches!(call, Call::Watch)).count();
    assert_eq!(watches(&calls), watches(&before) + 1);
}

fn is_join(request: &Request) -> bool {
    matches!(request.enqueue, Enqueue::Join { .. })
}

/// It listens already: the name may be handed to it at once. The token that was tried may have been granted, and had to be released.
#[tokio::test(start_paused = true)]
async fn who_queues_listens_already_and_has_a_token_of_its_own() {
    let scene = scene(|acquire| acquire).await;
    let calls = scene.store.calls();
    let queued = calls.iter().position(|(_, call)| matches!(call, Call::Acquire(request) if is_join(request))).unwrap();
    assert!(calls[..queued].iter().any(|(_, call)| matches!(call, Call::Watch)), "{calls:?}");
    let asked = scene.store.acquires();
    assert_eq!(asked.len(), 3, "the holder's, a try, and a place");
    assert_ne!(asked[1].1, asked[2].1);
}

/// A waiter with a shorter ttl gets less: its death costs the waiters behind it this much.
#[tokio::test(start_paused = true)]
async fn no_claim_is_longer_than_the_ttl() {
    let (clock, store, locks) = world();
    let _held = locker(&clock, &store).mutex("door").ttl(LONG * 10).acquire().await.unwrap();
    let _waiter = tokio::spawn(locks.mutex("door").ttl(ms(900)).acquire());
    settle().await;
    let place = last_place(&store);
    assert!(matches!(place, Enqueue::Join { handoff_ttl, .. } if handoff_ttl <= ms(900)), "{place:?}");
}
