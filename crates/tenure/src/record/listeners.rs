//! Those who watch names in this process.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tokio::sync::mpsc;

use super::Turn;
use crate::{Fence, Name, Notice, Owner, Request};

/// More than one notice says no more than one does: look.
const PENDING: usize = 2;

/// The streams of [`Store::watch`](crate::Store::watch) within one process, for stores without a push of their own. Clones are
/// the same.
#[derive(Clone, Default)]
pub struct Listeners(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    last: u64,
    names: BTreeMap<Name, BTreeMap<Listener, mpsc::Sender<Notice>>>,
}

/// Two may listen for one owner.
type Listener = (Owner, u64);

/// Leaves the list when its stream is dropped.
struct Listening {
    listeners: Listeners,
    name: Name,
    listener: Listener,
    notices: mpsc::Receiver<Notice>,
}

impl Listeners {
    /// What is told from now on to the request's owner, and to those who wait for its name.
    pub fn listen(&self, request: &Request) -> BoxStream<'static, Notice> {
        let (sender, notices) = mpsc::channel(PENDING);
        let mut state = self.state();
        state.last += 1;
        let listener = (request.owner.clone(), state.last);
        state.names.entry(request.name.clone()).or_default().insert(listener.clone(), sender);
        drop(state);
        let listening = Listening { listeners: self.clone(), name: request.name.clone(), listener, notices };
        let next = |mut listening: Listening| async move { listening.notices.recv().await.map(|notice| (notice, listening)) };
        stream::unfold(listening, next).boxed()
    }

    /// Tells what a call made of `name`: a grant to whom it was handed, a look to all if it is free. `elsewhere` is given
    /// those who were served and do not listen here, with the notice.
    pub fn tell<T>(&self, name: &Name, turn: &Turn<T>, mut elsewhere: impl FnMut(&str, Notice)) {
        for served in &turn.served {
            let (owner, claim) = (served.owner.clone(), served.claim);
            let notice =
                Fence::from_counter(served.counter).map_or(Notice::Look, |fence| Notice::Granted { owner, fence, claim });
            if !self.notify(name, Some(&served.owner), &notice) {
                elsewhere(&served.wake, notice);
            }
        }
        if turn.freed {
            self.notify(name, None, &Notice::Look);
        }
    }

    /// Gives a notice to those who listen at `name` for `owner`, or for anybody. `false` where nobody does.
    pub fn notify(&self, name: &Name, owner: Option<&Owner>, notice: &Notice) -> bool {
        let state = self.state();
        let Some(listeners) = state.names.get(name) else { return false };
        let first = owner.map(|owner| (owner.clone(), 0));
        let mut heard = false;
        for ((to, _), sender) in listeners.range((first.map_or(Bound::Unbounded, Bound::Included), Bound::Unbounded)) {
            if owner.is_some_and(|owner| owner != to) {
                break;
            }
            // Where it is full a notice is pending already.
            heard |= !matches!(sender.try_send(notice.clone()), Err(mpsc::error::TrySendError::Closed(_)));
        }
        heard
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut state = self.listeners.state();
        if let Some(listeners) = state.names.get_mut(&self.name) {
            listeners.remove(&self.listener);
            if listeners.is_empty() {
                state.names.remove(&self.name);
            }
        }
    }
}

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listeners").field("names", &self.state().names.len()).finish_non_exhaustive()
    }
}
