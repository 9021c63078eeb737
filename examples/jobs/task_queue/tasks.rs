//! The table of tasks: what is to be done, and each time that it was done.

use std::path::Path;
use std::time::Duration;

use jobs::{Error, open_database};
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior};

const CREATE: &str = "
CREATE TABLE tasks (
  id INTEGER PRIMARY KEY, is_done INTEGER NOT NULL DEFAULT 0, fence INTEGER NOT NULL DEFAULT 0,
  made_at REAL NOT NULL DEFAULT (unixepoch('subsec')));
-- Effects of tasks on the world. Each task should be here once.
CREATE TABLE effects (task INTEGER NOT NULL);
CREATE TABLE refused (task INTEGER NOT NULL);
-- The queue, if no Redis has it.
CREATE TABLE queue (seq INTEGER PRIMARY KEY, task INTEGER NOT NULL UNIQUE)";

/// Leaves the fence, and reads. From then on no earlier holder can write.
const READ: &str = "UPDATE tasks SET fence = ?2 WHERE id = ?1 AND fence <= ?2 RETURNING is_done";
const DONE: &str = "UPDATE tasks SET is_done = 1 WHERE id = ?1 AND fence = ?2";
const READ_UNFENCED: &str = "SELECT is_done FROM tasks WHERE id = ?1";
const DONE_UNFENCED: &str = "UPDATE tasks SET is_done = 1 WHERE id = ?1";

/// Tasks made, tasks done, effects too many, refused writes.
const AUDIT: &str = "
SELECT (SELECT count(*) FROM tasks), (SELECT count(DISTINCT task) FROM effects),
  (SELECT count(*) - count(DISTINCT task) FROM effects), (SELECT count(*) FROM refused)";

/// Outcome of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Audit {
    pub(crate) made: i64,
    pub(crate) done: i64,
    /// Effects of tasks that had theirs.
    pub(crate) twice: i64,
    /// Writes of stale holders that the fence refused.
    pub(crate) refused: i64,
}

pub(crate) struct Tasks(pub(crate) Connection);

impl Tasks {
    pub(crate) fn create(path: &Path) -> Result<Self, Error> {
        let tasks = Self::open(path)?;
        tasks.0.execute_batch(CREATE)?;
        Ok(tasks)
    }

    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self(open_database(path)?))
    }

    /// Makes a task, unless it is there. Returns whether it was made.
    pub(crate) fn make(&self, id: i64) -> Result<bool, Error> {
        Ok(self.0.execute("INSERT OR IGNORE INTO tasks (id) VALUES (?1)", [id])? == 1)
    }

    /// Whether a task is done; `None` if a later holder was here.
    pub(crate) fn is_done(&self, id: i64, fence: Option<i64>) -> Result<Option<bool>, Error> {
        Ok(match fence {
            Some(fence) => self.0.query_row(READ, [id, fence], |row| row.get(0)).optional()?,
            None => Some(self.0.query_row(READ_UNFENCED, [id], |row| row.get(0))?),
        })
    }

    /// Notes the effect of a task and that it is done, both or neither. Returns false if a later holder
    /// was here.
    pub(crate) fn done(&mut self, id: i64, fence: Option<i64>) -> Result<bool, Error> {
        let transaction = self.0.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let rows = match fence {
            Some(fence) => transaction.execute(DONE, [id, fence])?,
            None => transaction.execute(DONE_UNFENCED, [id])?,
        };
        if rows == 1 {
            transaction.execute("INSERT INTO effects (task) VALUES (?1)", [id])?;
            transaction.commit()?;
        }
        Ok(rows == 1)
    }

    pub(crate) fn note_refused(&self, id: i64) -> Result<(), Error> {
        self.0.execute("INSERT INTO refused (task) VALUES (?1)", [id])?;
        Ok(())
    }

    /// Tasks that are not done, and were made so long ago.
    pub(crate) fn open_tasks(&self, age: Duration) -> Result<Vec<i64>, Error> {
        let open = "SELECT id FROM tasks WHERE NOT is_done AND made_at <= unixepoch('subsec') - ?1";
        let mut statement = self.0.prepare_cached(open)?;
        Ok(statement.query_map([age.as_secs_f64()], |row| row.get(0))?.collect::<Result<_, _>>()?)
    }

    pub(crate) fn audit(&self) -> Result<Audit, Error> {
        let audit = |row: &rusqlite::Row<'_>| {
            Ok(Audit { made: row.get(0)?, done: row.get(1)?, twice: row.get(2)?, refused: row.get(3)? })
        };
        Ok(self.0.query_row(AUDIT, [], audit)?)
    }
}
