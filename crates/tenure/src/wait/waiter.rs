//! A waiter of a local queue: its inbox, and how it is woken.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crate::Name;

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

/// State that a waiter shares with the tasks that wake it.
#[derive(Debug)]
pub(super) struct Shared<G, S> {
    pub(super) inbox: Mutex<Inbox<G, S>>,
    /// Its task asked for a safety margin, which every lease that it gets must leave.
    pub(super) asks_margin: bool,
}

#[derive(Debug)]
pub(super) struct Inbox<G, S> {
    pub(super) guard: Option<G>,
    /// It was made the leader, and does not know yet.
    pub(super) elected: bool,
    pub(super) state: Option<S>,
    pub(super) handoffs_over: bool,
    pub(super) stage: Stage,
    /// Waker of the task, if the task waits for any of that.
    waker: Option<Waker>,
}

/// Stage of a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// In the queue.
    Waits,
    /// Out of the queue, with a guard.
    Served,
    /// Gone. It may still stand in the queue.
    Left,
}

/// A task's entry in a local queue; see [`LocalQueues::leave`](super::queue::LocalQueues::leave).
#[derive(Debug)]
pub(crate) struct Waiter<G, S> {
    pub(super) name: Name,
    pub(super) queue: u64,
    pub(super) shared: Arc<Shared<G, S>>,
}

impl<G, S> Shared<G, S> {
    pub(super) fn inbox(&self) -> MutexGuard<'_, Inbox<G, S>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<G, S> Inbox<G, S> {
    pub(super) const fn new(stage: Stage) -> Self {
        Self { guard: None, elected: false, state: None, handoffs_over: false, stage, waker: None }
    }
}

/// Wakes the task of an inbox, outside its lock.
pub(super) fn wake<G, S>(mut inbox: MutexGuard<'_, Inbox<G, S>>) {
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
