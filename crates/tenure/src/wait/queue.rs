//! Local queues: tasks of one process that wait for one name.
//!
//! They queue in memory, so a release finds the next waiter without a request to the store. One of
//! them, the leader, polls the store for all. The last waiter leads: it waits longest, so the role
//! changes once for as many handoffs as there are waiters.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::lease::Terms;
use crate::{BootTime, Error, Holder, Name, Owner, Share};

/// Settings that waiters of one local queue share. Their leases are alike, so one waiter can take
/// over another's lease and state.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AcquireKey {
    pub(crate) share: Share,
    pub(crate) terms: Terms,
    pub(crate) label: Arc<str>,
    pub(crate) token: Option<Owner>,
}

/// All local queues of a locker. A `G` is the guard that a waiter gets, an `S` the state that a
/// leader has reached at the store.
#[derive(Debug)]
pub(crate) struct LocalQueues<G, S> {
    inner: Mutex<Inner<G, S>>,
    /// Number of tracked names. Lets the uncontended path skip the mutex.
    tracked: AtomicUsize,
}

#[derive(Debug)]
struct Inner<G, S> {
    queues: HashMap<Name, Vec<LocalQueue<G, S>>>,
    last_id: u64,
    /// Names that were busy a moment ago.
    contended: HashMap<Name, Contended>,
    /// End of the last of them, after which all can be forgotten.
    contended_until: Option<BootTime>,
}

/// A name that was busy a moment ago.
#[derive(Clone, Copy, Debug)]
struct Contended {
    until: BootTime,
    /// End of the handoffs among tasks of this process. The store need not be asked before.
    handoffs_until: Option<BootTime>,
}

#[derive(Debug)]
struct LocalQueue<G, S> {
    id: u64,
    key: AcquireKey,
    waiters: VecDeque<Arc<Shared<G, S>>>,
    /// Number of waiters that have not left.
    live: usize,
    leader: Option<Arc<Shared<G, S>>>,
    status: LeaderStatus,
}

/// Last answer of the store to the leader, for the error of a waiter whose time is up.
#[derive(Debug, Default)]
pub(crate) struct LeaderStatus {
    pub(crate) holder: Option<Holder>,
    pub(crate) outage: Option<Error>,
}

/// Reason to wake a waiter.
#[derive(Debug)]
pub(crate) enum Wakeup<G, S> {
    /// The waiter has the name.
    Guard(G),
    /// The waiter becomes the leader, with the state that the one before has reached.
    Lead(Option<S>),
    /// For a leader: this process has released the name at the store.
    Over,
}

#[derive(Debug)]
struct Shared<G, S> {
    inbox: Mutex<Inbox<G, S>>,
    /// Its task asked for a safety margin, which every lease that it gets must leave.
    asks_margin: bool,
}

#[derive(Debug)]
struct Inbox<G, S> {
    guard: Option<G>,
    /// It was made the leader, and does not know yet.
    elected: bool,
    state: Option<S>,
    handoffs_over: bool,
    stage: Stage,
    /// Waker of the task, if the task waits for any of that.
    waker: Option<Waker>,
}

/// Stage of a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// In the queue.
    Waits,
    /// Out of the queue, with a guard.
    Served,
    /// Gone. It may still stand in the queue.
    Left,
}

/// A task's entry in a local queue; see [`LocalQueues::leave`].
#[derive(Debug)]
pub(crate) struct Waiter<G, S> {
    name: Name,
    queue: u64,
    shared: Arc<Shared<G, S>>,
}

/// Time for which a name counts as contended after a busy answer.
const CONTENDED: Duration = Duration::from_secs(2);
/// Largest number of contended names. A forgotten one costs a useless attempt.
const MOST_CONTENDED: usize = 10_000;
/// Number of waiters that have left and may stand in any queue, whatever its length.
const FEW: usize = 64;

impl<G, S> Default for LocalQueues<G, S> {
    fn default() -> Self {
        let inner = Inner { queues: HashMap::new(), last_id: 0, contended: HashMap::new(), contended_until: None };
        Self { inner: Mutex::new(inner), tracked: AtomicUsize::new(0) }
    }
}

impl<G, S> LocalQueues<G, S> {
    /// Whether no name is waited for or contended.
    pub(crate) fn are_empty(&self) -> bool {
        self.tracked.load(Ordering::Acquire) == 0
    }

    /// Whether a task should queue at once, instead of an attempt whether the name is free.
    pub(crate) fn is_contended(&self, name: &Name, now: BootTime) -> bool {
        if self.are_empty() {
            return false;
        }
        let mut inner = self.inner();
        if inner.contended_until.is_some_and(|until| now >= until) {
            (inner.contended, inner.contended_until) = <_>::default();
            self.count(&inner);
        }
        inner.queues.contains_key(name) || inner.contended.get(name).is_some_and(|tracked| now < tracked.until)
    }

    /// End of the handoffs of `name` among tasks of this process.
    pub(crate) fn handoffs_until(&self, name: &Name) -> Option<BootTime> {
        self.inner().contended.get(name)?.handoffs_until
    }

    /// Notes that the name is busy at the store.
    pub(crate) fn note_contended(&self, name: &Name, now: BootTime) {
        let mut inner = self.inner();
        if inner.contended.len() >= MOST_CONTENDED {
            inner.contended.clear();
        }
        let until = now + CONTENDED;
        inner
            .contended
            .entry(name.clone())
            .and_modify(|tracked| tracked.until = until)
            .or_insert(Contended { until, handoffs_until: None });
        inner.contended_until = Some(until);
        self.count(&inner);
    }

    /// Enters a waiter at the end. Returns whether it leads: the first one does.
    pub(crate) fn enter(&self, name: &Name, key: &AcquireKey, asks_margin: bool) -> (Waiter<G, S>, bool) {
        let shared = Arc::new(Shared { asks_margin, inbox: Mutex::new(Inbox::new(Stage::Waits)) });
        let mut inner = self.inner();
        inner.last_id += 1;
        let id = inner.last_id;
        let queues = inner.queues.entry(name.clone()).or_default();
        let at = queues.iter().position(|queue| queue.key == *key).unwrap_or_else(|| {
            queues.push(LocalQueue::new(id, key.clone()));
            queues.len() - 1
        });
        let queue = &mut queues[at];
        queue.waiters.push_back(Arc::clone(&shared));
        queue.live += 1;
        let leads = queue.leader.is_none();
        if leads {
            queue.leader = Some(Arc::clone(&shared));
        }
        let waiter = Waiter { name: name.clone(), queue: queue.id, shared };
        self.count(&inner);
        (waiter, leads)
    }

    /// Puts a waiter back to the front, after its lease proved to be lost. Returns false if the
    /// local queue is gone meanwhile.
    pub(crate) fn reenter(&self, waiter: &Waiter<G, S>) -> bool {
        let mut inner = self.inner();
        let Some(queue) = inner.queue(waiter) else { return false };
        queue.waiters.push_front(Arc::clone(&waiter.shared));
        queue.live += 1;
        waiter.shared.inbox().stage = Stage::Waits;
        true
    }

    /// Whether the first waiter of this local queue asked for a safety margin.
    pub(crate) fn next_asks_margin(&self, waiter: &Waiter<G, S>) -> bool {
        let mut inner = self.inner();
        inner.queue(waiter).and_then(LocalQueue::first).is_some_and(|shared| shared.asks_margin)
    }

    /// Gives `guard` to the first waiter of this local queue, which may hand it on until
    /// `handoffs_until`. Returns it if nobody waits any more, or if the first waiter needs a safety
    /// margin and it leaves none.
    pub(crate) fn deliver(&self, waiter: &Waiter<G, S>, guard: G, leaves_margin: bool, handoffs_until: BootTime) -> Option<G> {
        let mut guard = Some(guard);
        let mut inner = self.inner();
        let lease = |asks_margin: bool| guard.take_if(|_| !asks_margin || leaves_margin).map(|guard| (guard, handoffs_until));
        if let Some(handoffs_until) = inner.queue(waiter).and_then(|queue| queue.serve(lease)) {
            inner.begin_handoffs(&waiter.name, handoffs_until);
        }
        drop(inner);
        guard
    }

    /// Hands the lease to the first local waiter with equal settings. Returns false if there is
    /// none; the caller then releases it at the store.
    ///
    /// `lease` makes the guard. It learns whether that waiter asked for a safety margin, and
    /// returns the end of the handoffs as well.
    pub(crate) fn hand_on(
        &self,
        name: &Name,
        matches: impl Fn(&AcquireKey) -> bool,
        lease: impl FnOnce(bool) -> Option<(G, BootTime)>,
    ) -> bool {
        let mut inner = self.inner();
        let queue = inner.queues.get_mut(name).and_then(|queues| queues.iter_mut().find(|queue| matches(&queue.key)));
        let handoffs_until = queue.and_then(|queue| queue.serve(lease));
        match handoffs_until {
            Some(handoffs_until) => inner.begin_handoffs(name, handoffs_until),
            None => inner.end_handoffs(name),
        }
        handoffs_until.is_some()
    }

    /// Removes a waiter. The state of a leader goes to the next leader, and a guard that was not
    /// taken to the next waiter.
    pub(crate) fn leave(&self, waiter: &Waiter<G, S>, led: bool, state: Option<S>) {
        let old = std::mem::replace(&mut *waiter.shared.inbox(), Inbox::new(Stage::Left));
        let Inbox { guard, elected, state: inherited, stage, .. } = old;
        let mut state = state.or(inherited);
        {
            let mut inner = self.inner();
            if let Some(queue) = inner.queue(waiter) {
                if stage == Stage::Waits {
                    queue.live -= 1;
                    queue.sweep();
                }
                if led || elected {
                    queue.leader = queue.elect(&mut state);
                }
                if queue.live == 0 && queue.leader.is_none() {
                    inner.remove(waiter);
                }
            }
            self.count(&inner);
        }
        // Outside the lock: both may come back here.
        drop((guard, state));
    }

    pub(crate) fn set_status(&self, waiter: &Waiter<G, S>, status: LeaderStatus) {
        // In a statement of its own, so that the old status is dropped outside the lock.
        let _old = self.inner().queue(waiter).map(|queue| std::mem::replace(&mut queue.status, status));
    }

    pub(crate) fn status(&self, waiter: &Waiter<G, S>) -> LeaderStatus {
        let mut inner = self.inner();
        let Some(queue) = inner.queue(waiter) else { return LeaderStatus::default() };
        LeaderStatus { holder: queue.status.holder.clone(), outage: queue.status.outage.clone() }
    }

    fn count(&self, inner: &Inner<G, S>) {
        self.tracked.store(inner.queues.len() + inner.contended.len(), Ordering::Release);
    }

    fn inner(&self) -> MutexGuard<'_, Inner<G, S>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<G, S> Inner<G, S> {
    fn queue(&mut self, waiter: &Waiter<G, S>) -> Option<&mut LocalQueue<G, S>> {
        self.queues.get_mut(&waiter.name)?.iter_mut().find(|queue| queue.id == waiter.queue)
    }

    /// Notes that a task of this process holds the name, and when its handoffs end.
    fn begin_handoffs(&mut self, name: &Name, handoffs_until: BootTime) {
        if let Some(tracked) = self.contended.get_mut(name) {
            tracked.handoffs_until = Some(handoffs_until);
        }
    }

    /// Notes that no task of this process holds the name any more. Leaders that waited for that
    /// poll the store.
    fn end_handoffs(&mut self, name: &Name) {
        if self.contended.get_mut(name).and_then(|tracked| tracked.handoffs_until.take()).is_some() {
            for leader in self.queues.get(name).into_iter().flatten().filter_map(|queue| queue.leader.as_ref()) {
                let mut inbox = leader.inbox();
                inbox.handoffs_over = true;
                wake(inbox);
            }
        }
    }

    fn remove(&mut self, waiter: &Waiter<G, S>) {
        let Some(queues) = self.queues.get_mut(&waiter.name) else { return };
        queues.retain(|queue| queue.id != waiter.queue);
        if queues.is_empty() {
            self.queues.remove(&waiter.name);
        }
    }
}

impl<G, S> LocalQueue<G, S> {
    fn new(id: u64, key: AcquireKey) -> Self {
        Self { id, key, waiters: VecDeque::new(), live: 0, leader: None, status: LeaderStatus::default() }
    }

    /// Returns the first waiter that has not left.
    fn first(&mut self) -> Option<Arc<Shared<G, S>>> {
        while let Some(shared) = self.waiters.front() {
            if shared.inbox().stage != Stage::Left {
                return Some(Arc::clone(shared));
            }
            self.waiters.pop_front();
        }
        None
    }

    /// Gives the guard that `lease` makes to the first waiter; `lease` is called only if there is
    /// one. Returns the end of its handoffs.
    fn serve(&mut self, lease: impl FnOnce(bool) -> Option<(G, BootTime)>) -> Option<BootTime> {
        while let Some(shared) = self.first() {
            let mut inbox = shared.inbox();
            // It may have left since.
            if inbox.stage == Stage::Left {
                continue;
            }
            let (guard, handoffs_until) = lease(shared.asks_margin)?;
            (inbox.guard, inbox.stage) = (Some(guard), Stage::Served);
            wake(inbox);
            self.waiters.pop_front();
            self.live -= 1;
            return Some(handoffs_until);
        }
        None
    }

    /// Makes the last waiter the leader. `state` stays if nobody waits.
    fn elect(&self, state: &mut Option<S>) -> Option<Arc<Shared<G, S>>> {
        for shared in self.waiters.iter().rev() {
            let mut inbox = shared.inbox();
            if inbox.stage == Stage::Waits {
                (inbox.elected, inbox.state) = (true, state.take());
                wake(inbox);
                return Some(Arc::clone(shared));
            }
        }
        None
    }

    /// Drops waiters that have left, if they are many.
    fn sweep(&mut self) {
        if self.waiters.len() > 2 * self.live + FEW {
            self.waiters.retain(|shared| shared.inbox().stage != Stage::Left);
        }
    }
}

impl<G, S> Shared<G, S> {
    fn inbox(&self) -> MutexGuard<'_, Inbox<G, S>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<G, S> Inbox<G, S> {
    const fn new(stage: Stage) -> Self {
        Self { guard: None, elected: false, state: None, handoffs_over: false, stage, waker: None }
    }
}

/// Wakes the task of an inbox, outside its lock.
fn wake<G, S>(mut inbox: MutexGuard<'_, Inbox<G, S>>) {
    let waker = inbox.waker.take();
    drop(inbox);
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl<G, S> Clone for Waiter<G, S> {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), queue: self.queue, shared: Arc::clone(&self.shared) }
    }
}

impl<G, S> Waiter<G, S> {
    /// Waits to be woken.
    ///
    /// # Cancel safety
    /// A dropped future loses nothing: the inbox keeps it.
    pub(crate) async fn woken(&self) -> Wakeup<G, S> {
        poll_fn(|context| {
            let mut inbox = self.shared.inbox();
            if let Some(guard) = inbox.guard.take() {
                return Poll::Ready(Wakeup::Guard(guard));
            }
            if std::mem::take(&mut inbox.elected) {
                return Poll::Ready(Wakeup::Lead(inbox.state.take()));
            }
            if std::mem::take(&mut inbox.handoffs_over) {
                return Poll::Ready(Wakeup::Over);
            }
            let _old = inbox.waker.replace(context.waker().clone());
            drop(inbox);
            Poll::Pending
        })
        .await
    }
}
