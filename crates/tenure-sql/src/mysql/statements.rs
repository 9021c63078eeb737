//! All statements of this store.
//!
//! The table is that of PostgreSQL: `tenure_lock` has one row for each name, a mutex without waiters
//! in its columns, all else in `record`, and the table's own row with the empty name.
//!
//! Texts are bytes here, so no collation takes two names for one. Points in time are microseconds
//! since 1970 on the database's clock. `UTC_TIMESTAMP` is that of the statement, and each statement
//! is a transaction. One that waited for a row takes an earlier time for now, which ends no lease too
//! early and makes none too long.
//!
//! Columns are set from left to right, and each sees those before it as they are then.
//!
//! A row that is there already is an error, which stands for no row affected. `INSERT IGNORE` would cut
//! a text that is too long. `ON DUPLICATE KEY UPDATE` affects a row, if the connection counts those that
//! were found.
//!
//! An empty text is `X''`, and a remainder `MOD`: the `sql_mode` of a session that was lent may take
//! `''` for NULL, and has another meaning for `%`.
//!
//! The name `tenure_lock` is replaced by that of the table in use.

use std::borrow::Cow;
use std::time::Duration;

/// The name that the statements below have for the table.
pub(super) const TABLE: &str = "tenure_lock";

/// The version of the table below.
pub(super) const VERSION: u64 = 1;

/// Makes the table. May be run again, one after the other.
pub(super) const CREATE: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS tenure_lock (
  name    varbinary(1024) NOT NULL PRIMARY KEY,
  version bigint unsigned NOT NULL,
  fence   bigint unsigned NOT NULL,
  owner   blob,
  since   bigint unsigned NOT NULL DEFAULT 0,
  until   bigint unsigned NOT NULL DEFAULT 0,
  record  longblob
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC",
    "INSERT IGNORE INTO tenure_lock (name, version, fence) VALUES (X'', 1, 0)",
];

/// Run on every connection, because the server may have other settings for all.
///
/// A text that is too long is refused and not cut. Each statement is a transaction, also behind one of
/// several statements, and reads what is committed. No limit for careless statements holds up ours. A
/// connection may be idle for hours.
///
/// A row or a table that somebody keeps locked is waited for no longer than a call may take: on MariaDB,
/// which alone reads the comment, for a part of that: less than the half, after which another connection
/// is tried. MySQL knows whole seconds, so its answer is there in time only if the timeout is 5 s.
pub(super) fn session_settings(timeout: Duration) -> String {
    let patience = patience(timeout).as_secs_f64();
    format!(
        "SET SESSION sql_mode = 'STRICT_ALL_TABLES',
  SESSION autocommit = 1, SESSION completion_type = 0,
  SESSION innodb_lock_wait_timeout = 1, SESSION lock_wait_timeout = 1,
  SESSION sql_select_limit = 18446744073709551615, SESSION sql_safe_updates = 0, SESSION sql_big_selects = 1,
  SESSION wait_timeout = 28800 /*M!100101 , SESSION max_statement_time = {patience} */;
SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"
    )
}

/// For how long a statement of a session with these settings may run.
pub(super) fn patience(timeout: Duration) -> Duration {
    timeout * 2 / 5
}

/// A statement that has so much time left, where the session has it run for up to `patience`. MariaDB then ends it early enough
/// for its answer to be there in time. A power of two, because each text is prepared once.
pub(super) fn in_time(sql: &str, left: Duration, patience: Duration) -> Cow<'_, str> {
    let most = left * 4 / 5;
    if most >= patience {
        return Cow::Borrowed(sql);
    }
    let millis = most.as_millis().clamp(SHORTEST, LONGEST).ilog2();
    let seconds = Duration::from_millis(1 << millis).as_secs_f64();
    Cow::Owned(format!("/*M!100101 SET STATEMENT max_statement_time = {seconds} FOR */ {sql}"))
}

/// Bounds of that time in milliseconds.
const SHORTEST: u128 = 16;
const LONGEST: u128 = 3_600_000;

/// Stands before a statement that may take its time: the first contact has its own limit.
pub(super) const UNHURRIED: &str = "/*M!100101 SET STATEMENT max_statement_time = 0 FOR */ ";

/// The database's clock, in microseconds since 1970.
macro_rules! clock {
    () => {
        "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    };
}

/// The smallest fence by the clock: microseconds since 2026, unless that is beyond the year 2168.
macro_rules! since_2026 {
    () => {
        concat!("MOD(GREATEST(CAST(", clock!(), " - 1767225600000000 AS SIGNED), 0), 4503599627370496)")
    };
}

/// The smallest fence that a new row may begin with.
macro_rules! floor {
    () => {
        concat!("GREATEST(COALESCE((SELECT m.fence FROM tenure_lock m WHERE m.name = X''), 0) + 1, ", since_2026!(), ")")
    };
}

macro_rules! found {
    () => {
        concat!(clock!(), ", ", floor!(), ", l.name, l.version, l.fence, l.owner, l.since, l.until, l.record")
    };
}

/// Looks at a fresh connection.
///
/// Reply: whether nothing may be written here, the number of the session at the server, its client's
/// address, and the version of the table; NULL if its own row is missing.
pub(super) const HELLO: &str = "SELECT @@read_only <> 0, CONNECTION_ID(),
  (SELECT host FROM information_schema.processlist WHERE id = CONNECTION_ID()),
  (SELECT version FROM tenure_lock WHERE name = X'')";

/// Reads how long a statement waits for a row that somebody keeps locked.
///
/// Reply: seconds.
pub(super) const LOCK_WAIT: &str = "SELECT @@innodb_lock_wait_timeout";

/// Looks for the session of a predecessor. Numbers of sessions begin anew with the server, so the
/// client's address is compared as well.
///
/// Arguments: its number, its client's address. Reply: how many there are.
pub(super) const FIND_SESSION: &str = "SELECT COUNT(*) FROM information_schema.processlist WHERE id = ? AND host = ?";

/// Ends a session. Its number is put behind it.
pub(super) const END_SESSION: &str = "KILL CONNECTION ";

/// Takes a free mutex, or one that its owner has, if there is a row.
///
/// Arguments: owner, owner, ttl in microseconds, ttl, owner, name, owner, whether the owner may have it
/// already. Reply: one row affected, and its fence as the last insert id.
pub(super) const TAKE: &str = concat!(
    "UPDATE tenure_lock SET version = version + 1, fence = LAST_INSERT_ID(GREATEST(fence + 1, ",
    since_2026!(),
    ")), since = IF(owner <=> ? AND until > ",
    clock!(),
    ", since, ",
    clock!(),
    "), until = IF(owner <=> ?, GREATEST(until, ",
    clock!(),
    " + ?), ",
    clock!(),
    " + ?), owner = ? WHERE name = ? AND record IS NULL AND (owner IS NULL OR until <= ",
    clock!(),
    " OR owner = ? AND ?)"
);

/// Takes a mutex that has no row. The table's own row is joined, because MySQL lets no subquery read the
/// table that is written.
///
/// Arguments: name, owner, ttl in microseconds. Reply: one row affected, and its fence as the last
/// insert id.
pub(super) const ADD: &str = concat!(
    "INSERT INTO tenure_lock (name, version, fence, owner, since, until) SELECT ?, ",
    clock!(),
    ", LAST_INSERT_ID(GREATEST(COALESCE(m.fence, 0) + 1, ",
    since_2026!(),
    ")), ?, ",
    clock!(),
    ", ",
    clock!(),
    " + ? FROM (SELECT 1 AS one) one LEFT JOIN tenure_lock m ON m.name = X''"
);

/// Frees a mutex that nobody waits for.
///
/// Arguments: name, owner. Reply: one row affected.
pub(super) const FREE: &str = concat!(
    "UPDATE tenure_lock SET version = version + 1, until = ",
    clock!(),
    ", owner = NULL WHERE name = ? AND owner = ? AND record IS NULL AND until > ",
    clock!()
);

/// Renews mutexes that nobody waits for. Stands between [`RENEWED`] for each of them.
///
/// Arguments: name, owner and ttl in microseconds of each. Reply: as many rows affected.
pub(super) const RENEW: [&str; 2] = [
    "UPDATE tenure_lock l JOIN (",
    concat!(
        ") n ON l.name = n.name AND l.owner = n.owner SET l.version = l.version + 1, l.until = GREATEST(l.until, ",
        clock!(),
        " + n.ttl) WHERE l.record IS NULL AND l.until > ",
        clock!()
    ),
];
pub(super) const RENEWED: &str = "SELECT ? AS name, ? AS owner, ? AS ttl";

/// Finds the rows that no other transaction has locked. The `?` stands once for each name.
///
/// Arguments: each name. Reply: the names.
pub(super) const UNLOCKED: &str = "SELECT name FROM tenure_lock FORCE INDEX (PRIMARY) WHERE name IN (?) FOR UPDATE SKIP LOCKED";

/// Reads names. Stands between [`ASKED`] for each of them.
///
/// Arguments: the position and the name of each. Reply: in their order, what was found.
pub(super) const READ: [&str; 2] =
    [concat!("SELECT ", found!(), " FROM ("), ") asked LEFT JOIN tenure_lock l ON l.name = asked.name ORDER BY asked.at"];
pub(super) const ASKED: &str = "SELECT ? AS at, ? AS name";

/// Lists the names that are in use.
///
/// Reply: what was found.
pub(super) const LIST: &str =
    concat!("SELECT ", found!(), " FROM tenure_lock l WHERE l.name <> X'' AND l.until > ", clock!(), " ORDER BY l.name");

/// Writes a name that nobody has changed since it was read.
///
/// Arguments: version, fence, owner, since, until, record, name, the version that was read. Reply: one
/// row affected.
pub(super) const CHANGE: &str = "UPDATE tenure_lock SET version = ?, fence = ?, owner = ?, since = ?, until = ?, record = ?
  WHERE name = ? AND version = ?";

/// Writes a name that had no row.
///
/// Arguments: version, fence, owner, since, until, record, name. Reply: one row affected.
pub(super) const INSERT: &str =
    "INSERT INTO tenure_lock (version, fence, owner, since, until, record, name) VALUES (?, ?, ?, ?, ?, ?, ?)";

/// Looks at the next few names.
///
/// Arguments: the name behind which it begins, how many. Reply: name, version, fence, and whether it has
/// been free for an hour.
pub(super) const LOOK: &str = concat!(
    "SELECT name, version, fence, until + 3600000000 < ",
    clock!(),
    " FROM tenure_lock WHERE name > ? ORDER BY name LIMIT ?"
);

/// Keeps a fence in the table's own row. Before the row that had it goes.
///
/// Arguments: the fence.
pub(super) const KEEP: &str = "UPDATE tenure_lock SET fence = GREATEST(fence, ?) WHERE name = X''";

/// Removes a name that nobody has changed.
///
/// Arguments: name, version.
pub(super) const REMOVE: &str = "DELETE FROM tenure_lock WHERE name = ? AND version = ?";
