//! The processes: producers put tasks in, workers do them. Each may die or stall at any step.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use jobs::{Error, crash};
use tenure::{Guard, Locker};
use tokio::time::sleep;

use crate::queue::Queue;
use crate::tasks::Tasks;

/// Time between two looks at an empty queue.
const LOOK: Duration = Duration::from_millis(10);
/// Time between two looks for tasks that no queue has.
const SWEEP: Duration = Duration::from_millis(500);
/// A producer puts a task into the queue in less time, or has died.
const LATE: Duration = Duration::from_millis(500);

/// Means that keep two workers from one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Mode {
    /// A lock for each task, and its fence with each write.
    Fence,
    /// A lock for each task.
    Lock,
    /// Nothing: a task stays in the queue until it is done.
    Nothing,
    /// Nothing: a task is taken out of the queue before it is done.
    Pop,
}

pub(crate) struct Worker {
    mode: Mode,
    locks: Locker,
    /// In front of the names of locks.
    prefix: String,
    pub(crate) tasks: Tasks,
    pub(crate) queue: Queue,
    crashes: f64,
}

impl Worker {
    pub(crate) const fn new(mode: Mode, locks: Locker, prefix: String, tasks: Tasks, queue: Queue, crashes: f64) -> Self {
        Self { mode, locks, prefix, tasks, queue, crashes }
    }

    /// Makes tasks, and puts each into the queue.
    pub(crate) async fn produce(&mut self, ids: std::ops::Range<i64>) -> Result<(), Error> {
        for id in ids {
            // A producer that took the place of a dead one finds its tasks. Only the last may be missing in
            // the queue.
            if self.tasks.make(id)? {
                crash(self.crashes);
                self.queue.put(id).await?;
            }
        }
        Ok(())
    }

    /// Does tasks until it is ended.
    pub(crate) async fn work(&mut self) -> Result<(), Error> {
        let mut swept = Instant::now();
        loop {
            // However full the queue is: under steady load it is never empty.
            if self.mode != Mode::Pop && swept.elapsed() >= SWEEP {
                self.sweep().await?;
                swept = Instant::now();
            }
            let is_busy = if self.mode == Mode::Pop { self.pop_one().await? } else { self.one_of_the_first().await? };
            if !is_busy {
                sleep(LOOK).await;
            }
        }
    }

    /// Puts tasks into the queue that are in none. The table is what counts: a producer may have died
    /// before it put one in.
    async fn sweep(&mut self) -> Result<(), Error> {
        // In this order: what is done meanwhile may be put in again, and is found done.
        let late = self.tasks.open_tasks(LATE)?;
        let queued: HashSet<i64> = self.queue.all().await?.into_iter().collect();
        for id in late.into_iter().filter(|id| !queued.contains(id)) {
            self.queue.put(id).await?;
        }
        Ok(())
    }

    async fn pop_one(&mut self) -> Result<bool, Error> {
        let Some(id) = self.queue.pop().await? else { return Ok(false) };
        self.attempt(id, None).await?;
        Ok(true)
    }

    pub(crate) async fn one_of_the_first(&mut self) -> Result<bool, Error> {
        let mut head = self.queue.head().await?;
        if self.mode == Mode::Nothing {
            // They would all begin with the same one.
            fastrand::shuffle(&mut head);
        }
        for id in head {
            let guard = match self.mode {
                Mode::Nothing | Mode::Pop => None,
                Mode::Fence | Mode::Lock => match self.take(id).await? {
                    None => continue,
                    guard => guard,
                },
            };
            let fence = guard.as_ref().filter(|_| self.mode == Mode::Fence).and_then(Guard::fence);
            // A stale worker leaves it: the later holder may die, and nobody else would find it.
            if self.attempt(id, fence.map(i64::from)).await? {
                self.queue.remove(id).await?;
            }
            if let Some(guard) = guard {
                drop(guard.release().await);
            }
            return Ok(true);
        }
        Ok(false)
    }

    async fn take(&self, id: i64) -> Result<Option<Guard>, Error> {
        match self.locks.mutex(format!("{}task/{id}", self.prefix)).try_acquire().await {
            // As if it were busy: it is tried again.
            Err(error) if error.is_transient() => Ok(None),
            guard => Ok(guard?),
        }
    }

    /// Does a task, unless it is done. Returns whether it is done now, and false if a later holder was
    /// here.
    async fn attempt(&mut self, id: i64, fence: Option<i64>) -> Result<bool, Error> {
        crash(self.crashes);
        match self.tasks.is_done(id, fence)? {
            Some(true) => return Ok(true),
            None => {
                self.tasks.note_refused(id)?;
                return Ok(false);
            }
            Some(false) => {}
        }
        // Without `guard.run`, which would end the work of a worker that was stopped here. No check could
        // end that of one that is stopped after it.
        sleep(Duration::from_millis(10 + fastrand::u64(..20))).await;
        crash(self.crashes);
        let is_done = self.tasks.done(id, fence)?;
        if !is_done {
            self.tasks.note_refused(id)?;
        }
        crash(self.crashes);
        Ok(is_done)
    }
}
