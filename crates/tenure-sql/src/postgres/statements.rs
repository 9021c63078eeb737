//! All statements of this store.
//!
//! `tenure_lock` has one row for each name. `version` is another with every write. `fence` is the
//! largest grant counter that the name has had. A mutex without waiters is in `owner`, `since` and
//! `until`, and `record` is NULL. All else of a name is in `record`, as
//! [`Record`](tenure::store::record::Record) writes it; `owner` is NULL then, and `until` is the end
//! of the last of it. A free name has neither, and `until` is when it was freed.
//!
//! The row of the empty name is the table's own. Its `version` is that of the table, and its `fence`
//! the largest of all rows that were swept.
//!
//! Points in time are microseconds since 1970 on the database's clock. It is `clock_timestamp()`:
//! `now()` stands still in a transaction, and while a statement waits for a row.
//!
//! Each statement is a transaction, and leaves nothing in the session. `lock_timeout` is set for that
//! transaction alone, so that a row which somebody keeps locked does not hold up what comes behind
//! it on the connection.
//!
//! The name `tenure_lock` is replaced by that of the table in use.

/// The name that the statements below have for the table.
pub(super) const TABLE: &str = "tenure_lock";

/// The version of the table below.
pub(super) const VERSION: i64 = 1;

/// Makes the table. May be run again.
///
/// Half of each page is left free, so that a changed row finds room on its page and no index has to
/// be changed. Records are not compressed: that costs more than half of a write.
pub(super) const CREATE: &str = "\
CREATE TABLE IF NOT EXISTS tenure_lock (
  name    text COLLATE \"C\" PRIMARY KEY,
  version bigint NOT NULL,
  fence   bigint NOT NULL,
  owner   text,
  since   bigint NOT NULL DEFAULT 0,
  until   bigint NOT NULL DEFAULT 0,
  record  text
) WITH (fillfactor = 50);
ALTER TABLE tenure_lock ALTER record SET STORAGE EXTERNAL;
INSERT INTO tenure_lock (name, version, fence) VALUES ('', 1, 0) ON CONFLICT (name) DO NOTHING;
";

/// The database's clock, in microseconds since 1970.
macro_rules! clock {
    () => {
        "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    };
}

/// The smallest fence that a new row may begin with: above all that were swept, and not below the
/// time in microseconds since 2026, unless the clock is beyond the year 2168.
macro_rules! floor {
    () => {
        concat!(
            "greatest((SELECT fence + 1 FROM tenure_lock WHERE name = ''), (",
            clock!(),
            " - 1767225600000000) % 4503599627370496)"
        )
    };
}

/// How long this transaction waits for a row, from an argument in milliseconds as text. No row if it
/// begins after the time of the other argument, by the database's clock: then it does nothing.
macro_rules! patience {
    ($patience:literal, $latest:literal) => {
        concat!(
            "patience AS MATERIALIZED (SELECT set_config('lock_timeout', ",
            $patience,
            ", true) WHERE ",
            clock!(),
            " <= ",
            $latest,
            ")"
        )
    };
}

/// Columns of the row that a statement found, if it did nothing.
macro_rules! found {
    () => {
        concat!(clock!(), ", ", floor!(), ", l.name, l.version, l.fence, l.owner, l.since, l.until, l.record")
    };
}

/// Fails in a transaction that somebody has begun, and has no effect out of one.
pub(super) const BETWEEN_TRANSACTIONS: &str = "DO 'BEGIN COMMIT; END'";

/// Takes the session's default search path for this transaction. A pool may lend a session in which
/// somebody has set another. Stands before [`CREATE`].
pub(super) const DEFAULT_PATH: &str =
    "SELECT set_config('search_path', reset_val, true) FROM pg_settings WHERE name = 'search_path';\n";

/// Looks at a fresh connection, and where the table is.
///
/// Arguments: the table as the URL names it. Reply: whether nothing may be written here, the process id
/// of the server's side and when it began, the encoding of the database, and the table with its
/// schema, found by the session's default search path, or NULL; the database's clock; and the
/// isolation level of new transactions.
/// A point in time is a number here: as a date, its text depends on `DateStyle` and may not read back.
pub(super) const FIND: &str = "\
WITH path AS MATERIALIZED (
  SELECT set_config('search_path', reset_val, true) FROM pg_settings WHERE name = 'search_path'),
found AS MATERIALIZED (SELECT to_regclass($1) AS id FROM path)
SELECT current_setting('transaction_read_only') = 'on', pg_backend_pid(),
  (SELECT extract(epoch FROM backend_start)::text FROM pg_stat_get_activity(pg_backend_pid())), current_setting('server_encoding'),
  (SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname)
   FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = found.id),
  (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, current_setting('default_transaction_isolation')
FROM found";

/// The same for locks of sessions, which need no table. A standby has other locks than its primary.
pub(super) const FIND_NO_TABLE: &str = "\
SELECT pg_is_in_recovery(), pg_backend_pid(),
  (SELECT extract(epoch FROM backend_start)::text FROM pg_stat_get_activity(pg_backend_pid())), current_setting('server_encoding'),
  NULL::text, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, current_setting('default_transaction_isolation')";

/// Reads the version of the table.
///
/// Two statements are one transaction here. A table that somebody keeps locked is waited for no longer
/// than a call may take: else one session after another would wait for it, each given up by its client.
///
/// Reply: no row if its own row is missing.
pub(super) const OWN_VERSION: &str = "SET LOCAL lock_timeout = '1s'; SELECT version FROM tenure_lock WHERE name = ''";

/// The isolation level that the statements are written for, as the server names it.
pub(super) const LEVEL: &str = "read committed";

/// Sets that level, if the session has another. At a higher one, the server gives up statements
/// of different names because of each other.
pub(super) const SET_LEVEL: &str = "SET default_transaction_isolation = 'read committed'";

/// Ends the session of a predecessor. The number of its process may be another's by now, so the
/// time at which it began is compared as well.
///
/// Arguments: the process id of its server's side, and when it began. Reply: a row if it was still
/// there. Once it is gone, all that it had under way has run, or never will.
pub(super) const END_SESSION: &str = "\
SELECT pg_terminate_backend(pid) FROM pg_stat_get_activity($1) WHERE extract(epoch FROM backend_start)::text = $2";

/// Takes a free mutex, or one that its owner has.
///
/// Its row may be swept while the statement waits for it. Then neither the row nor the fence that the
/// sweep kept is seen, so the new row begins above the one that was there when the statement began.
///
/// Arguments: name, owner, ttl in microseconds, lock timeout, whether the owner may have it already,
/// latest time.
/// Reply: one row: the fence, or NULL and what was found.
pub(super) const TAKE: &str = concat!(
    "WITH ",
    patience!("$4", "$6"),
    ",
put AS (
  INSERT INTO tenure_lock AS l (name, version, fence, owner, since, until)
  SELECT $1, ",
    clock!(),
    ", greatest((SELECT fence + 1 FROM tenure_lock WHERE name = $1), ",
    floor!(),
    "), $2, ",
    clock!(),
    ", ",
    clock!(),
    " + $3
  FROM patience
  WHERE NOT EXISTS (
    SELECT FROM tenure_lock b WHERE b.name = $1
    AND (b.record IS NOT NULL OR b.owner IS NOT NULL AND b.until > ",
    clock!(),
    " AND (b.owner <> $2 OR NOT $5)))
  ON CONFLICT (name) DO UPDATE SET
    version = l.version + 1,
    fence = greatest(l.fence + 1, excluded.fence),
    since = CASE WHEN l.owner = $2 AND l.until > ",
    clock!(),
    " THEN l.since ELSE ",
    clock!(),
    " END,
    until = greatest(CASE WHEN l.owner = $2 THEN l.until END, ",
    clock!(),
    " + $3),
    owner = $2
  WHERE l.record IS NULL AND (l.owner IS NULL OR l.until <= ",
    clock!(),
    " OR l.owner = $2 AND $5)
  RETURNING l.fence)
SELECT (SELECT fence FROM put), ",
    found!(),
    " FROM (VALUES ($1)) AS asked (name) LEFT JOIN tenure_lock l ON l.name = asked.name"
);

/// Frees a mutex that nobody waits for.
///
/// Arguments: name, owner, lock timeout, latest time. Reply: one row: 1, or NULL and what was found.
pub(super) const FREE: &str = concat!(
    "WITH ",
    patience!("$3", "$4"),
    ",
put AS (
  UPDATE tenure_lock l SET version = l.version + 1, owner = NULL, until = ",
    clock!(),
    "
  FROM patience
  WHERE l.name = $1 AND l.owner = $2 AND l.record IS NULL AND l.until > ",
    clock!(),
    "
  RETURNING 1::bigint AS done)
SELECT (SELECT done FROM put), ",
    found!(),
    " FROM (VALUES ($1)) AS asked (name) LEFT JOIN tenure_lock l ON l.name = asked.name"
);

/// Renews mutexes that nobody waits for. A row that somebody has locked is passed over, so that it does
/// not keep the others of the batch from being renewed.
///
/// Arguments: names, owners, ttls in microseconds, lock timeout, latest time. Reply: the positions,
/// from 1, of those that were renewed.
pub(super) const RENEW: &str = concat!(
    "WITH ",
    patience!("$4", "$5"),
    ", ours AS MATERIALIZED (
  SELECT l.name, n.ttl, n.at
  FROM patience, unnest($1, $2, $3) WITH ORDINALITY AS n (name, owner, ttl, at)
  JOIN tenure_lock l ON l.name = n.name AND l.owner = n.owner
  WHERE l.record IS NULL AND l.until > ",
    clock!(),
    "
  FOR NO KEY UPDATE OF l SKIP LOCKED)
UPDATE tenure_lock l SET version = l.version + 1, until = greatest(l.until, ",
    clock!(),
    " + ours.ttl)
FROM ours WHERE l.name = ours.name
RETURNING ours.at"
);

/// Reads names.
///
/// Arguments: the names. Reply: in their order, NULL and what was found.
pub(super) const READ: &str = concat!(
    "SELECT NULL::bigint, ",
    found!(),
    " FROM unnest($1) WITH ORDINALITY AS asked (name, at) LEFT JOIN tenure_lock l ON l.name = asked.name ORDER BY asked.at"
);

/// Lists the names that are in use.
///
/// Reply: NULL and what was found.
pub(super) const LIST: &str = concat!(
    "SELECT NULL::bigint, ",
    found!(),
    " FROM tenure_lock l WHERE l.name <> '' AND l.until > ",
    clock!(),
    " ORDER BY l.name"
);

/// Writes names that nobody has changed since they were read: all of them or none. Then notifies.
///
/// The rows are locked in the order of their names, so that two who write several do not wait for
/// each other. If some were changed, the division by zero undoes the rest.
///
/// Arguments: names; versions that were read, 0 for a missing row; new versions, fences, owners,
/// since, until, records; a channel and a message for each notification; lock timeout; latest time. Reply: how
/// many rows were written. If it was to be one row, and somebody has changed it, what was found: as
/// it is after the change, because it was locked.
pub(super) const WRITE: &str = concat!(
    "WITH ",
    patience!("$11", "$12"),
    ",
new AS (
  SELECT n.* FROM patience, unnest($1, $2, $3, $4, $5, $6, $7, $8)
    AS n (name, was, version, fence, owner, since, until, record)),
kept AS MATERIALIZED (
  SELECT l.* FROM tenure_lock l WHERE l.name IN (SELECT name FROM new) ORDER BY l.name FOR UPDATE),
changed AS (
  UPDATE tenure_lock l SET version = n.version, fence = n.fence, owner = n.owner, since = n.since, until = n.until,
    record = n.record
  FROM new n, kept WHERE l.name = n.name AND kept.name = n.name AND l.version = n.was RETURNING 1),
added AS (
  INSERT INTO tenure_lock (name, version, fence, owner, since, until, record)
  SELECT name, version, fence, owner, since, until, record FROM new WHERE was = 0 ORDER BY name
  ON CONFLICT (name) DO NOTHING RETURNING 1),
written AS (SELECT (SELECT count(*) FROM changed) + (SELECT count(*) FROM added) AS rows),
told AS (
  SELECT count(pg_notify(n.channel, n.message)) FROM unnest($9, $10) AS n (channel, message), written
  WHERE written.rows = cardinality($1))
SELECT CASE WHEN rows IN (0, cardinality($1)) THEN rows ELSE rows / (rows / cardinality($1)) END + 0 * count, ",
    found!(),
    "
FROM written CROSS JOIN told LEFT JOIN kept l ON rows = 0 AND cardinality($1) = 1"
);

/// Removes names of the next few that have been free for an hour, and keeps the largest of their
/// fences.
///
/// Arguments: the name behind which it begins, how many names, lock timeout, latest time. Reply: the
/// last of those names; NULL at the end of the table.
pub(super) const SWEEP: &str = concat!(
    "WITH ",
    patience!("$3", "$4"),
    ",
looked AS (SELECT name, version, until FROM tenure_lock WHERE name > $1 ORDER BY name LIMIT $2),
dead AS (
  DELETE FROM tenure_lock l USING looked k, patience
  WHERE l.name = k.name AND l.version = k.version AND k.until < ",
    clock!(),
    " - 3600000000 RETURNING l.fence),
kept AS (
  UPDATE tenure_lock l SET fence = greatest(l.fence, d.fence) FROM (SELECT max(fence) AS fence FROM dead) d
  WHERE l.name = '' AND d.fence > l.fence)
SELECT max(name) FROM looked"
);

/// Begins to listen. Its channel is put behind it.
pub(super) const LISTEN: &str = "LISTEN ";
