//! The database: the number of the last step, and what the processes did.

use std::path::Path;

use jobs::{Error, open_database};
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior};

const CREATE: &str = "
CREATE TABLE work (step INTEGER NOT NULL, fence INTEGER NOT NULL);
INSERT INTO work (step, fence) VALUES (0, 0);
-- A step that was written, one that was refused, or a new leader.
CREATE TABLE log (what TEXT NOT NULL)";

/// Leaves the fence, and reads. From then on no earlier leader can write.
const READ: &str = "UPDATE work SET fence = ?1 WHERE fence <= ?1 RETURNING step";
const WRITE: &str = "UPDATE work SET step = ?1 WHERE fence = ?2";

/// Written steps, those that do not show, refused ones, leaders.
const AUDIT: &str = "
SELECT count(*) FILTER (WHERE what = 'step'), count(*) FILTER (WHERE what = 'step') - (SELECT step FROM work),
  count(*) FILTER (WHERE what = 'refused'), count(*) FILTER (WHERE what = 'leader')
FROM log";

/// Outcome of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Audit {
    pub(crate) steps: i64,
    /// Steps that another one has overwritten.
    pub(crate) lost: i64,
    /// Steps of leaders of before that the fence refused.
    pub(crate) refused: i64,
    pub(crate) leaders: i64,
}

pub(crate) struct Work(Connection);

impl Work {
    pub(crate) fn create(path: &Path) -> Result<Self, Error> {
        let work = Self::open(path)?;
        work.0.execute_batch(CREATE)?;
        Ok(work)
    }

    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self(open_database(path)?))
    }

    /// Number of the last step; `None` if a later leader was here.
    pub(crate) fn read(&self, fence: Option<i64>) -> Result<Option<i64>, Error> {
        Ok(match fence {
            Some(fence) => self.0.query_row(READ, [fence], |row| row.get(0)).optional()?,
            None => Some(self.0.query_row("SELECT step FROM work", [], |row| row.get(0))?),
        })
    }

    /// Writes the next step. Returns false if a later leader was here.
    pub(crate) fn write(&mut self, step: i64, fence: Option<i64>) -> Result<bool, Error> {
        let transaction = self.0.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let rows = match fence {
            Some(fence) => transaction.execute(WRITE, [step, fence])?,
            None => transaction.execute("UPDATE work SET step = ?1", [step])?,
        };
        if rows == 1 {
            transaction.execute("INSERT INTO log (what) VALUES ('step')", [])?;
            transaction.commit()?;
        }
        Ok(rows == 1)
    }

    pub(crate) fn note(&self, what: &str) -> Result<(), Error> {
        self.0.execute("INSERT INTO log (what) VALUES (?1)", [what])?;
        Ok(())
    }

    pub(crate) fn audit(&self) -> Result<Audit, Error> {
        let audit = |row: &rusqlite::Row<'_>| {
            Ok(Audit { steps: row.get(0)?, lost: row.get(1)?, refused: row.get(2)?, leaders: row.get(3)? })
        };
        Ok(self.0.query_row(AUDIT, [], audit)?)
    }
}
