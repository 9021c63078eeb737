//! Calls of one process about one name take turns, because each would make all others read again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, timeout_at};

use crate::{Error, Name};

/// A name is there as long as somebody has its turn or waits for it.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<Name, Arc<tokio::sync::Mutex<()>>>>);

/// The turn of a call, or its place among those that wait.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    name: &'a Name,
    queue: Arc<tokio::sync::Mutex<()>>,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    /// Waits for the turn. What was `found` before a wait is out of date, and forgotten.
    pub(super) async fn take<'a, F>(&'a self, name: &'a Name, found: &mut Option<F>, end: Instant) -> Result<Turn<'a>, Error> {
        let queue = Arc::clone(self.names().entry(name.clone()).or_default());
        let mut turn = Turn { turns: self, name, queue, guard: None };
        turn.guard = Arc::clone(&turn.queue).try_lock_owned().ok();
        if turn.guard.is_none() {
            *found = None;
            let late = |_| Error::unavailable("other calls of this process took all the time there was");
            turn.guard = Some(timeout_at(end, Arc::clone(&turn.queue).lock_owned()).await.map_err(late)?);
        }
        Ok(turn)
    }

    fn names(&self) -> MutexGuard<'_, HashMap<Name, Arc<tokio::sync::Mutex<()>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.guard = None;
        let mut names = self.turns.names();
        // This one and the list: nobody else has it.
        if Arc::strong_count(&self.queue) == 2 {
            names.remove(self.name);
        }
    }
}
