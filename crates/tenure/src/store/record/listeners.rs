//! Watchers of names in this process.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tokio::sync::mpsc;

use super::Change;
use crate::store::{Enqueue, Notice, Request};
use crate::{Fence, Name, Owner};

/// Length of a watcher's buffer. Two notices say no more than one does: poll.
const PENDING: usize = 2;

/// Streams of [`Store::watch`](crate::store::Store::watch) within one process, for stores without a
/// push of their own. Clones are the same.
#[derive(Clone, Default)]
pub struct Listeners(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    last: u64,
    names: BTreeMap<Name, Watched>,
}

/// Those that listen at a name.
#[derive(Default)]
struct Watched {
    waiters: BTreeMap<Listener, mpsc::Sender<Notice>>,
    /// Those with [`Enqueue::No`]. Nobody serves them, and each change is for them.
    observers: BTreeMap<Listener, mpsc::Sender<Notice>>,
}

/// Owner and number, because two may listen for one owner.
type Listener = (Owner, u64);

fn poll(those: &BTreeMap<Listener, mpsc::Sender<Notice>>) {
    for sender in those.values() {
        // A full buffer has a notice already.
        let _ = sender.try_send(Notice::Changed);
    }
}

/// Entry in the list. Its stream's drop removes it.
struct Listening {
    listeners: Listeners,
    name: Name,
    listener: Listener,
    notices: mpsc::Receiver<Notice>,
}

impl Listeners {
    /// Returns the notices from now on for the request's owner, and for all who wait for its name.
    pub fn listen(&self, request: &Request) -> BoxStream<'static, Notice> {
        let (sender, notices) = mpsc::channel(PENDING);
        let mut state = self.state();
        state.last += 1;
        let listener = (request.owner.clone(), state.last);
        let Watched { waiters, observers } = state.names.entry(request.name.clone()).or_default();
        let those = if request.enqueue == Enqueue::No { observers } else { waiters };
        those.insert(listener.clone(), sender);
        drop(state);
        let listening = Listening { listeners: self.clone(), name: request.name.clone(), listener, notices };
        let next = |mut listening: Listening| async move { listening.notices.recv().await.map(|notice| (notice, listening)) };
        stream::unfold(listening, next).boxed()
    }

    /// Publishes a change of `name`: a grant to the owner that was served, [`Notice::Changed`] to
    /// observers, and to all if something is free. `elsewhere` gets the notices for owners that do
    /// not listen here.
    pub fn publish<T>(&self, name: &Name, change: &Change<T>, mut elsewhere: impl FnMut(&str, Notice)) {
        for served in &change.served {
            let (owner, handoff_ttl) = (served.owner.clone(), served.handoff_ttl);
            let notice = Fence::from_counter(served.counter).map_or(Notice::Changed, |fence| Notice::Granted {
                owner,
                fence,
                handoff_ttl,
            });
            if !self.notify(name, Some(&served.owner), &notice) {
                elsewhere(&served.wake, notice);
            }
        }
        if change.freed {
            self.notify(name, None, &Notice::Changed);
        } else if change.taken {
            self.taken(name);
        }
    }

    /// Sends a notice to those that listen at `name` for `owner`, or for anybody, and has its
    /// observers poll. Returns false if nobody listens for `owner`.
    pub fn notify(&self, name: &Name, owner: Option<&Owner>, notice: &Notice) -> bool {
        let state = self.state();
        let Some(watched) = state.names.get(name) else { return false };
        let first = owner.map(|owner| (owner.clone(), 0));
        let mut heard = false;
        for ((to, _), sender) in watched.waiters.range((first.map_or(Bound::Unbounded, Bound::Included), Bound::Unbounded)) {
            if owner.is_some_and(|owner| owner != to) {
                break;
            }
            // A full buffer has a notice already.
            heard |= !matches!(sender.try_send(notice.clone()), Err(mpsc::error::TrySendError::Closed(_)));
        }
        poll(&watched.observers);
        heard
    }

    /// Has the observers of `name` poll: a client holds it that did not wait. For a store that grants
    /// without a [`Change`].
    pub fn taken(&self, name: &Name) {
        if let Some(watched) = self.state().names.get(name) {
            poll(&watched.observers);
        }
    }

    /// Has everybody poll, because notices from elsewhere may have been lost.
    pub fn poll_all(&self) {
        for watched in self.state().names.values() {
            poll(&watched.waiters);
            poll(&watched.observers);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut state = self.listeners.state();
        if let Some(Watched { waiters, observers }) = state.names.get_mut(&self.name) {
            // The number is this stream's alone.
            let _ = waiters.remove(&self.listener).or_else(|| observers.remove(&self.listener));
            if waiters.is_empty() && observers.is_empty() {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;
    use crate::Share;
    use crate::store::record::Served;

    fn request(name: &str, owner: &str) -> Request {
        let (name, owner) = (Name::new(name).unwrap(), Owner::from_bytes(owner.as_bytes()));
        let enqueue = Enqueue::Join { entry_ttl: Duration::MAX, handoff_ttl: Duration::MAX };
        Request { name, owner, share: Share::MUTEX, ttl: Duration::ZERO, enqueue, generated: true, from: None }
    }

    fn served(owner: &str, counter: u64) -> Change<()> {
        let (owner, handoff_ttl) = (Owner::from_bytes(owner.as_bytes()), Duration::from_secs(1));
        Change {
            answer: (),
            served: vec![Served { owner, counter, handoff_ttl, wake: "there".into() }],
            freed: false,
            taken: false,
        }
    }

    #[test]
    fn those_who_are_elsewhere_are_named() {
        let listeners = Listeners::default();
        let stream = listeners.listen(&request("door", "b"));
        let mut elsewhere = Vec::new();
        listeners.publish(&request("door", "a").name, &served("a", 7), |wake, notice| elsewhere.push((wake.to_owned(), notice)));
        assert!(matches!(&elsewhere[..], [(wake, Notice::Granted { .. })] if wake == "there"), "{elsewhere:?}");
        drop(stream);
        listeners.publish(&request("door", "b").name, &served("b", 0), |_, notice| elsewhere.push((String::new(), notice)));
        assert_eq!(elsewhere[1].1, Notice::Changed, "a number that is no fence");
        assert_eq!(format!("{listeners:?}"), "Listeners { names: 0, .. }", "one that has left is kept in mind");
    }

    #[test]
    fn each_change_is_for_observers() {
        let listeners = Listeners::default();
        let (door, freed) = (request("door", "a"), Change { answer: (), served: Vec::new(), freed: true, taken: false });
        let mut observer = listeners.listen(&request("door", "z").with_enqueue(Enqueue::No));
        let mut waiter = listeners.listen(&door);
        let mut seen = || observer.next().now_or_never().flatten();
        assert_eq!(seen(), None);
        listeners.publish(&door.name, &Change { taken: true, freed: false, ..freed.clone() }, |_, _| ());
        assert_eq!((seen(), waiter.next().now_or_never()), (Some(Notice::Changed), None));
        listeners.publish(&door.name, &served("a", 7), |_, _| panic!("it is here"));
        assert_eq!(seen(), Some(Notice::Changed));
        listeners.publish(&door.name, &served("elsewhere", 8), |_, _| ());
        assert_eq!(seen(), Some(Notice::Changed));
        listeners.publish(&door.name, &freed, |_, _| ());
        assert_eq!(seen(), Some(Notice::Changed));
        listeners.publish(&request("gate", "a").name, &freed, |_, _| ());
        assert_eq!(seen(), None);
        drop((observer, waiter));
        assert_eq!(format!("{listeners:?}"), "Listeners { names: 0, .. }", "one that has left is kept in mind");
    }

    #[test]
    fn a_free_name_is_for_all_who_listen_at_it() {
        let listeners = Listeners::default();
        let (mut first, mut second) = (listeners.listen(&request("door", "a")), listeners.listen(&request("door", "b")));
        let mut other = listeners.listen(&request("gate", "a"));
        for _ in 0..100 {
            listeners.publish(
                &request("door", "z").name,
                &Change { answer: (), served: Vec::new(), freed: true, taken: false },
                |_, _| (),
            );
        }
        for notices in [&mut first, &mut second] {
            assert_eq!(notices.next().now_or_never(), Some(Some(Notice::Changed)));
        }
        assert_eq!(other.next().now_or_never(), None);
    }
}
