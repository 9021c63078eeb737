//! Calls of one process about one name take turns, because each would make all others read again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use crate::{Error, Name};

/// The lines of names, each with the number of its calls.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<Name, (usize, Arc<Line>)>>);

/// Calls about one name.
#[derive(Debug)]
struct Line {
    /// Has one permit: the turn.
    turn: Semaphore,
    /// Turns in which the server has answered.
    answered: AtomicU32,
}

/// The turn of a call, or its place in the line.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    name: &'a Name,
    line: Arc<Line>,
    has_come: bool,
    /// Others came first, so what was read before is out of date.
    pub(super) waited: bool,
}

impl Turns {
    /// Waits until all calls that came before have ended.
    pub(super) async fn take<'a>(&'a self, name: &'a Name, end: Instant) -> Result<Turn<'a>, Error> {
        let line = {
            let mut lines = self.lines();
            let (calls, line) = lines.entry(name.clone()).or_default();
            *calls += 1;
            Arc::clone(line)
        };
        let answered = line.answered.load(Ordering::Relaxed);
        let mut turn = Turn { turns: self, name, line, has_come: false, waited: false };
        if turn.line.turn.try_acquire().map(SemaphorePermit::forget).is_err() {
            turn.waited = true;
            match timeout_at(end, turn.line.turn.acquire()).await {
                Ok(permit) => permit.into_iter().for_each(SemaphorePermit::forget),
                Err(_) if turn.line.answered.load(Ordering::Relaxed) == answered => {
                    return Err(Error::unavailable("the server has not answered earlier calls of this process about the name"));
                }
                Err(_) => {
                    return Err(Error::overloaded("other calls of this process about the name took all the time there was"));
                }
            }
        }
        turn.has_come = true;
        Ok(turn)
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<Name, (usize, Arc<Line>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn<'_> {
    /// The server has answered.
    pub(super) fn answered(&self) {
        self.line.answered.fetch_add(1, Ordering::Relaxed);
    }
}

impl Default for Line {
    fn default() -> Self {
        Self { turn: Semaphore::new(1), answered: AtomicU32::new(0) }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.has_come {
            self.line.turn.add_permits(1);
        }
        let mut lines = self.turns.lines();
        if let Some((calls, _)) = lines.get_mut(self.name) {
            *calls -= 1;
            if *calls == 0 {
                lines.remove(self.name);
            }
        }
    }
}
