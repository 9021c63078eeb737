//! Every call of the core, dropped at each of its awaits, and with each answer of the store lost.
//!
//! Afterwards a guard claims no more than the store keeps, every waiter is served, and nothing is left behind.

use std::future::{Future, poll_fn};
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tenure::store::Store;
use tenure::{Error, ErrorKind, Locker, State};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::calls::{Call, Parts, Scene, calls, claims_no_more};
use super::steps::{CLEAN_UP, LONG, PATIENCE, joined, name, timed_out};
use crate::{Fate, Faulty, Operation};
use crate::{Outcome, Subject};

/// A call that is not over after so long waits for what does not come.
const QUIET: Duration = Duration::from_millis(60);
/// More awaits than any call has.
const MOST: usize = 200;

/// Who else wants the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crowd {
    Nobody,
    /// Another task of the process.
    Here,
    /// Another process.
    There,
}

/// End of a call.
enum End {
    Done(Result<(), Error>),
    Dropped,
    /// Dropped because it waits for what does not come.
    Quiet,
}

struct Stage {
    here: Locker,
    faulty: Faulty<Arc<dyn Store>>,
    there: Locker,
    witness: Arc<dyn Store>,
    scenes: usize,
}

impl Stage {
    async fn new(subject: &dyn Subject) -> Self {
        // A short one: what has no answer is tried again after a part of it.
        let soon = |features: &mut tenure::store::Features| features.operation_timeout = Some(Duration::from_millis(200));
        let faulty = Faulty::new(subject.store().await).features(soon);
        let locker = |store: Arc<dyn Store>| Locker::builder(store).label("cancelled").ttl(LONG).build().unwrap();
        let (here, there) = (locker(Arc::new(faulty.clone())), locker(subject.store().await));
        Self { here, faulty, there, witness: subject.store().await, scenes: 0 }
    }

    fn scene(&mut self, call: &Call) -> Scene {
        self.scenes += 1;
        Scene { here: self.here.clone(), there: self.there.clone(), name: format!("door {}", self.scenes), kind: call.kind }
    }

    /// How often a call asks the store for what when all goes well.
    async fn asked(&mut self, call: &Call, crowd: Crowd) -> Vec<(Operation, u64)> {
        const KINDS: [Operation; 5] =
            [Operation::Acquire, Operation::Renew, Operation::Release, Operation::Watch, Operation::Inspect];
        let mut asked = Vec::new();
        let drive = async |scene: &Scene, parts: &mut Parts, faulty: &Faulty<_>| {
            let before = KINDS.map(|kind| faulty.calls(kind));
            let patience = if call.endless { QUIET } else { PATIENCE };
            let end = polled((call.run)(scene, parts), usize::MAX, patience).await;
            asked = KINDS.iter().zip(before).map(|(kind, before)| (*kind, faulty.calls(*kind) - before)).collect();
            end
        };
        self.run(call, crowd, drive).await;
        asked
    }

    /// Runs a call in a scene of its own by `drive`, and looks at what it has left.
    async fn run<D>(&mut self, call: &Call, crowd: Crowd, drive: D) -> End
    where
        D: AsyncFnOnce(&Scene, &mut Parts, &Faulty<Arc<dyn Store>>) -> End,
    {
        let scene = self.scene(call);
        let what = format!("{} ({}), {crowd:?}", call.name, call.when);
        let mut parts = (call.before)(&scene).await;
        let waiter = waiting(&scene, crowd, &*self.witness).await;
        let end = drive(&scene, &mut parts, &self.faulty).await;
        self.faulty.heal();
        for guard in parts.guards() {
            claims_no_more(guard, &*self.witness).await;
        }
        parts.give_up(&scene).await;
        if let Some(waiter) = waiter {
            let guard = joined(timeout(PATIENCE, waiter).await.unwrap_or_else(|_| panic!("{what}: the waiter was forgotten")));
            claims_no_more(&guard, &*self.witness).await;
            let rival = scene.lock(&scene.there).try_acquire().await.unwrap();
            let alone = guard.share().is_exclusive() && guard.state() != State::Lost;
            assert!(!alone || rival.is_none(), "{what}: {rival:?} beside {guard:?}");
            drop((guard, rival));
        }
        for locks in [&self.here, &self.there] {
            timeout(CLEAN_UP, locks.flush_releases()).await.unwrap_or_else(|_| panic!("{what}: the clean-up hangs"));
        }
        for left in scene.names() {
            let left = self.witness.inspect(Some(&name(&left))).await.unwrap();
            assert!(left.is_empty(), "{what}: it left {left:?}");
        }
        end
    }
}

/// Has somebody wait for the name, in line when this returns.
async fn waiting(scene: &Scene, crowd: Crowd, witness: &dyn Store) -> Option<JoinHandle<tenure::Guard>> {
    let locks = match crowd {
        Crowd::Nobody => return None,
        Crowd::Here => &scene.here,
        Crowd::There => &scene.there,
    };
    let acquire = scene.lock(locks);
    let waiter = tokio::spawn(async move { acquire.acquire().await.unwrap() });
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let joined = async || match witness.inspect(Some(&name(&scene.name))).await.unwrap().first() {
        Some(entry) => !entry.waiters.is_empty(),
        None => true,
    };
    // A store without a queue does not tell who waits: he has looked at least once.
    if witness.features().queue {
        while !waiter.is_finished() && !joined().await {
            assert!(tokio::time::Instant::now() < deadline, "nobody came to wait");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    } else {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Some(waiter)
}

/// Polls `call` so many times, whenever it is woken, and drops it.
async fn polled(call: impl Future<Output = Result<(), Error>>, polls: usize, patience: Duration) -> End {
    let (mut call, mut left) = (pin!(call), polls);
    let ended = poll_fn(|context| match call.as_mut().poll(context) {
        Poll::Ready(outcome) => Poll::Ready(End::Done(outcome)),
        Poll::Pending if left <= 1 => Poll::Ready(End::Dropped),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    });
    timeout(patience, ended).await.unwrap_or(End::Quiet)
}

/// The calls that the store can serve; the others by name.
fn served(store: &dyn Store) -> Vec<Call> {
    let shares = store.features().shares;
    let (served, left_out): (Vec<_>, Vec<_>) = calls().into_iter().partition(|call| shares || !call.shares);
    for call in left_out {
        println!("{} ({}): left out, the store keeps mutexes only", call.name, call.when);
    }
    served
}

fn crowds(call: &Call) -> &'static [Crowd] {
    // A waiter for the name that the call is to get would get it first, and keep it.
    if call.name.starts_with("Acquire") { &[Crowd::Nobody] } else { &[Crowd::Nobody, Crowd::Here, Crowd::There] }
}

/// Whatever is awaited when a call goes away.
pub async fn a_call_dropped_at_any_await_leaves_the_truth(subject: &dyn Subject) -> Outcome {
    let mut stage = Stage::new(subject).await;
    let mut all = 0;
    for call in served(&*stage.witness) {
        let mut dropped = 0;
        for &crowd in crowds(&call) {
            for polls in 1.. {
                assert!(polls < MOST, "{} ({}) never ends", call.name, call.when);
                let drive = async |scene: &Scene, parts: &mut Parts, faulty: &Faulty<_>| {
                    // Before each call to the store and after it, also where it answers at once.
                    let fate = if call.elsewhere { Fate::DelayedAfter(Duration::from_millis(2)) } else { Fate::Yields };
                    faulty.plan(move |_, _| fate);
                    polled((call.run)(scene, parts), polls, QUIET).await
                };
                match stage.run(&call, crowd, drive).await {
                    End::Dropped => dropped += 1,
                    End::Quiet | End::Done(_) => break,
                }
            }
        }
        println!("{} ({}): dropped at {dropped} awaits", call.name, call.when);
        assert!(dropped > 0, "{} ({}) was never dropped", call.name, call.when);
        all += dropped;
    }
    println!("{all} calls were dropped");
    Ok(())
}

/// Whichever answer is lost, whether or not the store did what it was asked.
pub async fn a_call_without_an_answer_leaves_the_truth(subject: &dyn Subject) -> Outcome {
    let mut stage = Stage::new(subject).await;
    let mut all = 0;
    for call in served(&*stage.witness) {
        let mut unheard = 0;
        for &crowd in crowds(&call) {
            let asked = stage.asked(&call, crowd).await;
            let each = asked.into_iter().flat_map(|(kind, times)| (1..=times).map(move |at| (kind, at)));
            for ((kind, at), fate) in each.flat_map(|one| [(one, Fate::FailsAfter), (one, Fate::Lost)]) {
                let patience = if call.endless { QUIET } else { PATIENCE };
                let drive = async |scene: &Scene, parts: &mut Parts, faulty: &Faulty<_>| {
                    faulty.at(kind, at, fate);
                    polled((call.run)(scene, parts), usize::MAX, patience).await
                };
                match stage.run(&call, crowd, drive).await {
                    End::Done(Err(error)) => {
                        let known = error.kind() != ErrorKind::Unreachable || error.may_have_been_applied();
                        assert!(known, "{} ({}): was it applied? {error}", call.name, call.when);
                    }
                    End::Quiet => assert!(call.endless, "{} ({}) hangs without answer {at} to {kind:?}", call.name, call.when),
                    End::Done(Ok(())) | End::Dropped => {}
                }
                unheard += 1;
            }
        }
        println!("{} ({}): {unheard} answers were lost", call.name, call.when);
        all += unheard;
    }
    println!("{all} answers were lost");
    Ok(())
}

/// Calls that block go away by their time limit alone.
pub async fn a_blocking_call_that_times_out_leaves_nothing(subject: &dyn Subject) -> Outcome {
    let stage = Stage::new(subject).await;
    let (store, held) = (subject.store().await, stage.there.mutex("door").ttl(LONG).acquire().await.unwrap());
    let waits = std::thread::spawn(move || {
        let locks = tenure::blocking::Locker::connect(async move { Ok(tenure::Locker::new(store)) }).unwrap();
        for wait in [0, 1, 2, 3, 5, 8, 13, 21, 34] {
            let wait = Duration::from_millis(wait);
            let one = locks.mutex("door").ttl(LONG).wait(wait).poll_interval(Duration::from_millis(3));
            timed_out(one.acquire());
            let both = locks.mutex("attic").ttl(LONG).wait(wait).and("door");
            timed_out(both.acquire());
        }
        locks.flush_releases();
    });
    let ended = tokio::task::spawn_blocking(move || waits.join().unwrap_or_else(|panic| resume_unwind(panic)));
    joined(timeout(PATIENCE, ended).await.expect("it hangs"));
    drop(held.release().await.unwrap());
    for left in ["door", "attic"] {
        let left = stage.witness.inspect(Some(&name(left))).await.unwrap();
        assert!(left.is_empty(), "it left {left:?}");
    }
    Ok(())
}

/// The functions that are called.
pub fn functions() -> Vec<&'static str> {
    calls().into_iter().map(|call| call.name).collect()
}
