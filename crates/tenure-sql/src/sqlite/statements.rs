//! All statements of this store.
//!
//! `meta` has one row. `counter` is the grant counter. `boot` and `machine` are those on whose
//! boot-time clock the leases run. `booted` and `written` are the wall clock, in microseconds, at
//! that boot and at the last change. `hand` is the name up to which names were last swept.
//!
//! `lock` has one row for each holder of a name. `owner` is its owner token, or the lingering value
//! of the owner while the share `lingers`. `weight` out of `capacity` is its share, `fence` the
//! counter of its grant. `since` and `until` are in nanoseconds since boot. A row whose `until` has
//! passed counts for nothing until it is swept. There is no index on `until`: it would cost a page
//! with every grant, renewal and release.
//!
//! `place` has one row for each queue entry of a name, in the order of `number`: `owner` and share;
//! its heartbeat limit (`keep`) and hand-off ttl (`claim`), in nanoseconds; its end (`until`); and the
//! address of its process (`wake`).

/// Marks the file as ours: `tnre`.
pub(super) const APPLICATION: i32 = 0x746e_7265;
/// The version of the tables below.
pub(super) const VERSION: i32 = 2;

/// Run on every connection.
///
/// A commit is not synced: after a crash of the machine no lease stands anyway. The log is
/// checkpointed at 64 pages, not at 1000, because the first process that opens the file after the
/// last has closed it reads the log through.
pub(super) const SETTINGS: &str = "PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 64";

/// Run by a process that stays: while it is there nobody reads the log through, and it checkpoints
/// less often.
pub(super) const STAYING: &str = "PRAGMA wal_autocheckpoint = 1000";

/// Writes the log into the file and empties it. Waits for readers and keeps writers out meanwhile.
/// Reply: a row, not read.
pub(super) const EMPTY_LOG: &str = "PRAGMA wal_checkpoint(TRUNCATE)";

/// Run on an empty file. Small pages, because every commit writes whole ones to the log.
pub(super) const PAGES: &str = "PRAGMA page_size = 1024";

/// Kept in the file. Answers with the mode that is now in force.
pub(super) const WAL: &str = "PRAGMA journal_mode = WAL";

/// Reply: whether the file has no tables at all.
pub(super) const EMPTY: &str = "SELECT NOT EXISTS (SELECT 1 FROM sqlite_schema)";

/// Makes the tables.
pub(super) const CREATE: &str = "
CREATE TABLE meta (
  one     INTEGER PRIMARY KEY CHECK (one = 1),
  counter INTEGER NOT NULL,
  boot    TEXT NOT NULL,
  machine TEXT NOT NULL,
  hand    TEXT NOT NULL DEFAULT '',
  booted  INTEGER NOT NULL DEFAULT 0,
  written INTEGER NOT NULL DEFAULT 0
) STRICT;
PRAGMA application_id = 0x746e7265;";

/// Fails if the times are missing.
pub(super) const TIMES: &str = "SELECT booted, written FROM meta";

/// Processes that do not know the times go on.
pub(super) const ADD_TIMES: &str = "
ALTER TABLE meta ADD COLUMN booted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE meta ADD COLUMN written INTEGER NOT NULL DEFAULT 0;";

/// Makes the tables that version 1 did not have.
pub(super) const CREATE_2: &str = "
CREATE TABLE lock (
  name     TEXT NOT NULL,
  owner    BLOB NOT NULL,
  weight   INTEGER NOT NULL,
  capacity INTEGER NOT NULL,
  fence    INTEGER NOT NULL,
  since    INTEGER NOT NULL,
  until    INTEGER NOT NULL,
  lingers  INTEGER NOT NULL,
  PRIMARY KEY (name, owner)
) STRICT, WITHOUT ROWID;
CREATE TABLE place (
  name     TEXT NOT NULL,
  number   INTEGER NOT NULL,
  owner    BLOB NOT NULL,
  weight   INTEGER NOT NULL,
  capacity INTEGER NOT NULL,
  keep     INTEGER NOT NULL,
  claim    INTEGER NOT NULL,
  until    INTEGER NOT NULL,
  wake     TEXT NOT NULL,
  PRIMARY KEY (name, number)
) STRICT, WITHOUT ROWID;
PRAGMA user_version = 2;";

/// Keeps the table of version 1, which had mutexes only, for `CREATE_2`.
pub(super) const BEGIN_UPGRADE: &str = "ALTER TABLE lock RENAME TO lock_1";

/// Takes over every lease of version 1.
pub(super) const END_UPGRADE: &str = "
INSERT INTO lock (name, owner, weight, capacity, fence, since, until, lingers)
SELECT name, coalesce(owner, CAST('linger:' || released_by AS BLOB)), 1, 1, fence, since, until, owner IS NULL FROM lock_1;
DROP TABLE lock_1;";

/// ?1 boot, ?2 machine, ?3 booted, ?4 written.
pub(super) const FIRST: &str = "INSERT INTO meta (one, counter, boot, machine, booted, written) VALUES (1, 0, ?1, ?2, ?3, ?4)";

/// ?1 name. Reply: the file's row, whether anybody waits for the name, and its holders; one row
/// without a holder if there is none.
pub(super) const FIND: &str = "
SELECT meta.counter, meta.boot, meta.machine, meta.booted, meta.written, EXISTS (SELECT 1 FROM place WHERE place.name = ?1),
  lock.owner, lock.weight, lock.capacity, lock.fence, lock.since, lock.until, lock.lingers
FROM meta LEFT JOIN lock ON lock.name = ?1";

/// ?1 name. Reply: its queue entries, in order.
pub(super) const ENTRIES: &str = "
SELECT number, owner, weight, capacity, keep, claim, until, wake FROM place WHERE name = ?1 ORDER BY number";

/// ?1 boot, ?2 machine, ?3 booted, ?4 written.
pub(super) const REBOOTED: &str = "UPDATE meta SET boot = ?1, machine = ?2, booted = ?3, written = ?4";

/// ?1 written.
pub(super) const WRITTEN: &str = "UPDATE meta SET written = ?1";

/// Ends every lease and every queue entry.
pub(super) const FORGET: [&str; 2] = ["DELETE FROM lock", "DELETE FROM place"];

/// ?1 now. Ends the leases and queue entries that began after it: only a reboot explains them.
pub(super) const FORGET_FUTURE: [&str; 2] = ["DELETE FROM lock WHERE since > ?1", "DELETE FROM place WHERE until - keep > ?1"];

/// ?1 counter.
pub(super) const COUNT: &str = "UPDATE meta SET counter = ?1";

/// ?1 name, ?2 owner, ?3 weight, ?4 capacity, ?5 fence, ?6 since, ?7 until, ?8 lingers.
pub(super) const PUT_HELD: &str = "
INSERT OR REPLACE INTO lock (name, owner, weight, capacity, fence, since, until, lingers) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

/// ?1 name, ?2 owner.
pub(super) const DROP_HELD: &str = "DELETE FROM lock WHERE name = ?1 AND owner = ?2";

/// ?1 name, ?2 number, ?3 owner, ?4 weight, ?5 capacity, ?6 keep, ?7 claim, ?8 until, ?9 wake.
pub(super) const PUT_ENTRY: &str = "
INSERT OR REPLACE INTO place (name, number, owner, weight, capacity, keep, claim, until, wake)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";

/// ?1 name, ?2 number.
pub(super) const DROP_ENTRY: &str = "DELETE FROM place WHERE name = ?1 AND number = ?2";

/// ?1 number of names. Reply: the last of the next names after the hand, or NULL at the end.
pub(super) const NEXT_HAND: &str = "
SELECT max(name) FROM (SELECT name FROM lock WHERE name > (SELECT hand FROM meta) ORDER BY name LIMIT ?1)";

/// ?1 now, ?2 the last name, or NULL for all from the hand. Drops rows that have ended, from the
/// hand to there.
pub(super) const SWEEP: [&str; 2] = [
    "DELETE FROM lock WHERE name > (SELECT hand FROM meta) AND (?2 IS NULL OR name <= ?2) AND until <= ?1",
    "DELETE FROM place WHERE name > (SELECT hand FROM meta) AND (?2 IS NULL OR name <= ?2) AND until <= ?1",
];

/// ?1 name, empty to begin again.
pub(super) const MOVE_HAND: &str = "UPDATE meta SET hand = ?1";

/// ?1 name, ?2 owner, ?3 now, ?4 until. Changes nothing if the lease is not the owner's.
pub(super) const RENEW: &str = "
UPDATE lock SET until = max(until, ?4) WHERE name = ?1 AND owner = ?2 AND until > ?3 AND NOT lingers";

/// ?1 now. Reply: a row for each lease that has not ended.
pub(super) const LIST: &str = "
SELECT name, owner, weight, capacity, fence, since, until, lingers FROM lock WHERE until > ?1 ORDER BY name, owner";

/// ?1 now. Reply: the waiters of each name, in order.
pub(super) const LIST_WAITERS: &str = "
SELECT name, owner, weight, capacity FROM place WHERE until > ?1 ORDER BY name, number";
