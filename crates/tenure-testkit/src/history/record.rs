//! Writing a history down while it happens, and waiting for what is to happen.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenure::BootTime;

use super::{Event, History, What, nanos};

/// Takes down events from any thread. Clones write the same history.
#[derive(Clone, Debug)]
pub struct Recorder(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    history: Mutex<History>,
    grown: Condvar,
}

impl Recorder {
    /// Begins to write `history` on.
    pub fn new(history: History) -> Self {
        Self(Arc::new(Shared { history: Mutex::new(history), grown: Condvar::new() }))
    }

    /// Says how much of a name there is.
    pub fn set_capacity(&self, capacity: u32) {
        self.history().capacity = capacity;
    }

    /// Something happened now.
    pub fn record(&self, who: impl Into<String>, what: What) {
        let mut history = self.history();
        // Stamped under the lock, so that the order in the list is the order in time.
        history.events.push(Event { at: nanos(BootTime::now().since_boot()), who: who.into(), what });
        drop(history);
        self.0.grown.notify_all();
    }

    /// Something happened in another process, which stamped it.
    pub fn add(&self, event: Event) {
        self.history().events.push(event);
        self.0.grown.notify_all();
    }

    /// Waits for an event, one that is there already included; panics with `what` and the story so far after `timeout`.
    #[track_caller]
    pub fn wait(&self, timeout: Duration, what: &str, is_it: impl Fn(&Event) -> bool) -> Event {
        self.wait_within(timeout, is_it)
            .unwrap_or_else(|| panic!("waited {timeout:?} in vain for {what}\n{}", super::timeline::picture(&self.take_down())))
    }

    /// Waits for an event, one that is there already included; `None` after `timeout`.
    pub fn wait_within(&self, timeout: Duration, is_it: impl Fn(&Event) -> bool) -> Option<Event> {
        let until = Instant::now() + timeout;
        let mut history = self.history();
        loop {
            if let Some(event) = history.events.iter().find(|event| is_it(event)) {
                return Some(event.clone());
            }
            let left = until.checked_duration_since(Instant::now())?;
            history = self.0.grown.wait_timeout(history, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The history so far, in order of time.
    pub fn take_down(&self) -> History {
        let mut history = self.history().clone();
        history.events.sort_by_key(|event| event.at);
        history
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.0.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
