//! The database: each run of the job, and how each host's turn at a tick went.

use std::path::Path;

use jobs::{Error, open_database};
use rusqlite::{Connection, params};

const CREATE: &str = "
-- Each tick should be here once.
CREATE TABLE runs (tick INTEGER NOT NULL, host INTEGER NOT NULL);
CREATE TABLE turns (tick INTEGER NOT NULL, ended REAL NOT NULL, is_late INTEGER NOT NULL, is_gone INTEGER NOT NULL)";

/// For the first ticks and a number of hosts. A late turn says nothing about its tick and all that it reached into, and
/// the one after that.
const AUDIT: &str = "
WITH RECURSIVE all_ticks (tick) AS (SELECT 0 UNION ALL SELECT tick + 1 FROM all_ticks WHERE tick + 1 < ?1),
seen AS (
  SELECT (SELECT count(*) FROM runs WHERE runs.tick = all_ticks.tick) AS runs,
    (SELECT count(*) FROM turns WHERE turns.tick = all_ticks.tick AND NOT is_gone) AS turns,
    EXISTS (
      SELECT 1 FROM turns
      WHERE is_late AND turns.tick <= all_ticks.tick AND all_ticks.tick <= ended + 1) AS is_late
  FROM all_ticks)
SELECT (SELECT count(*) FROM runs), sum(NOT is_late AND runs = 1), sum(NOT is_late AND runs > 1),
  sum(NOT is_late AND runs = 0 AND turns >= ?2), sum(NOT is_late AND runs = 0 AND turns < ?2), sum(is_late)
FROM seen";

/// A host's turn at a tick.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) tick: u32,
    /// In periods since the first tick.
    pub(crate) ended: f64,
    /// The machine stood still for too long.
    pub(crate) is_late: bool,
    /// The host was killed, lost its lease, or got no answer of the store.
    pub(crate) is_gone: bool,
}

/// Outcome: all runs of the job, and each tick under one of the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Audit {
    pub(crate) runs: i64,
    pub(crate) once: i64,
    /// Twice or more.
    pub(crate) twice: i64,
    /// Not run, though each host came and none was killed.
    pub(crate) not_run: i64,
    /// Not run because a host was killed, or did not come.
    pub(crate) lost: i64,
    /// A host came so late that the tick says nothing.
    pub(crate) late: i64,
}

pub(crate) struct Record(Connection);

impl Record {
    pub(crate) fn create(path: &Path) -> Result<Self, Error> {
        let record = Self::open(path)?;
        record.0.execute_batch(CREATE)?;
        Ok(record)
    }

    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self(open_database(path)?))
    }

    /// The effect of the job: a host has run it.
    pub(crate) fn ran(&self, tick: u32, host: u32) -> Result<(), Error> {
        self.0.execute("INSERT INTO runs (tick, host) VALUES (?1, ?2)", [tick, host])?;
        Ok(())
    }

    pub(crate) fn note(&self, turn: &Turn) -> Result<(), Error> {
        let Turn { tick, ended, is_late, is_gone } = *turn;
        let note = "INSERT INTO turns (tick, ended, is_late, is_gone) VALUES (?1, ?2, ?3, ?4)";
        self.0.execute(note, params![tick, ended, is_late, is_gone])?;
        Ok(())
    }

    pub(crate) fn audit(&self, ticks: u32, hosts: u32) -> Result<Audit, Error> {
        let audit = |row: &rusqlite::Row<'_>| {
            let [runs, once, twice] = [row.get(0)?, row.get(1)?, row.get(2)?];
            Ok(Audit { runs, once, twice, not_run: row.get(3)?, lost: row.get(4)?, late: row.get(5)? })
        };
        Ok(self.0.query_row(AUDIT, [ticks, hosts], audit)?)
    }
}
