//! Every statement this store runs, as SQLite says it.
//!
//! `meta` has one row, for the file: the `counter` of grants; `boot` and `machine`, on whose boot-time clock the leases run; and
//! the `hand`, the name up to which names were last swept.
//!
//! `lock` has one row for each name that is not free: its `owner`, NULL while it lingers; `released_by`, whose release made it
//! linger; `fence`, the counter of its grant; `since` and `until` in nanoseconds since boot. A row whose `until` has come is a free
//! name that nobody has swept up yet. There is no index on `until`: it would cost a page with every grant, renewal and release.

/// Marks the file as ours: `tnre`.
pub(super) const APPLICATION: i32 = 0x746e_7265;
/// The version of the tables below.
pub(super) const VERSION: i32 = 1;

/// Run on every connection.
///
/// A commit is not synced: after a crash of the machine no lease stands anyway. The log is checkpointed at 200 pages, not at 1000,
/// because the first process that opens the file after the last has closed it reads the log through.
pub(super) const SETTINGS: &str = "PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 64";

/// Run by a process that turns out to stay: while it is there nobody reads the log through, and it checkpoints less often.
pub(super) const STAYING: &str = "PRAGMA wal_autocheckpoint = 1000";

/// Brings the log into the file and empties it. Waits for readers and keeps writers out meanwhile. Reply: a row, not read.
pub(super) const EMPTY_LOG: &str = "PRAGMA wal_checkpoint(TRUNCATE)";

/// Run on an empty file. Small pages, because every commit writes whole ones to the log.
pub(super) const PAGES: &str = "PRAGMA page_size = 1024";

/// Kept in the file. Answers with the mode that is now in force.
pub(super) const WAL: &str = "PRAGMA journal_mode = WAL";

/// Reply: whether the file has no tables at all.
pub(super) const EMPTY: &str = "SELECT NOT EXISTS (SELECT 1 FROM sqlite_schema)";

/// Makes the tables of version 1.
pub(super) const CREATE: &str = "
CREATE TABLE meta (
  one     INTEGER PRIMARY KEY CHECK (one = 1),
  counter INTEGER NOT NULL,
  boot    TEXT NOT NULL,
  machine TEXT NOT NULL,
  hand    TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE TABLE lock (
  name        TEXT PRIMARY KEY,
  owner       BLOB,
  released_by BLOB,
  fence       INTEGER NOT NULL,
  since       INTEGER NOT NULL,
  until       INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
PRAGMA application_id = 0x746e7265;
PRAGMA user_version = 1;";

/// ?1 boot, ?2 machine.
pub(super) const FIRST: &str = "INSERT INTO meta (one, counter, boot, machine) VALUES (1, 0, ?1, ?2)";

/// ?1 name. Reply: one row, the file's and, where there is one, the name's.
pub(super) const FIND: &str = "
SELECT meta.counter, meta.boot, meta.machine, lock.owner, lock.released_by, lock.fence, lock.since, lock.until
FROM meta LEFT JOIN lock ON lock.name = ?1";

/// ?1 boot, ?2 machine.
pub(super) const REBOOTED: &str = "UPDATE meta SET boot = ?1, machine = ?2";

/// Ends every lease.
pub(super) const FORGET: &str = "DELETE FROM lock";

/// ?1 now. Ends the leases that began after it: only a reboot explains them.
pub(super) const FORGET_FUTURE: &str = "DELETE FROM lock WHERE since > ?1";

/// ?1 counter.
pub(super) const COUNT: &str = "UPDATE meta SET counter = ?1";

/// ?1 name, ?2 owner, ?3 fence, ?4 since, ?5 until. A repetition does not shorten what its owner has.
pub(super) const GRANT: &str = "
INSERT INTO lock (name, owner, released_by, fence, since, until) VALUES (?1, ?2, NULL, ?3, ?4, ?5)
ON CONFLICT (name) DO UPDATE SET
  until = iif(owner IS excluded.owner, max(until, excluded.until), excluded.until),
  owner = excluded.owner, released_by = NULL, fence = excluded.fence, since = excluded.since";

/// ?1 how many. Reply: the last name of the next so many after the hand, or NULL at the end.
pub(super) const NEXT_HAND: &str = "
SELECT max(name) FROM (SELECT name FROM lock WHERE name > (SELECT hand FROM meta) ORDER BY name LIMIT ?1)";

/// ?1 now, ?2 the last name. Frees the names from the hand to there whose lease has ended.
pub(super) const SWEEP: &str = "
DELETE FROM lock WHERE name > (SELECT hand FROM meta) AND name <= ?2 AND until <= ?1";

/// ?1 name, empty to begin again.
pub(super) const MOVE_HAND: &str = "UPDATE meta SET hand = ?1";

/// ?1 name, ?2 owner, ?3 now, ?4 until. Changes one row or none.
pub(super) const RENEW: &str = "UPDATE lock SET until = max(until, ?4) WHERE name = ?1 AND owner = ?2 AND until > ?3";

/// ?1 name.
pub(super) const FREE: &str = "DELETE FROM lock WHERE name = ?1";

/// ?1 name, ?2 until.
pub(super) const LINGER: &str = "UPDATE lock SET released_by = owner, owner = NULL, until = ?2 WHERE name = ?1";

/// ?1 now. Reply: a row for each lease that stands.
pub(super) const LIST: &str = "
SELECT name, owner, released_by, fence, since, until FROM lock WHERE until > ?1 ORDER BY name";
