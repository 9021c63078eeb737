//! Statements for a table of fences, by which a database refuses the writes of a stale holder.
//!
//! They run on your own connection, in the transaction that writes. `docs/fenced-writes.md` says when
//! to use them, and has the patterns for a column in the guarded row. Pass a fence as
//! `i64::from(fence)`.
//!
//! The table of numbers gives numbers without gaps as well. `docs/numbers.md` says when to use it.

/// For PostgreSQL. For SQLite as well.
pub mod postgres {
    /// Makes the table.
    pub const CREATE: &str = "\
CREATE TABLE fences (
  resource text PRIMARY KEY,
  fence    bigint NOT NULL
)";

    /// Raises the fence of a resource. No row changed: the holder is stale, so roll back.
    ///
    /// `$1` name of the lock, `$2` fence.
    pub const RAISE: &str = "\
INSERT INTO fences (resource, fence) VALUES ($1, $2)
ON CONFLICT (resource) DO UPDATE SET fence = excluded.fence WHERE fences.fence <= excluded.fence";

    /// Makes the table of numbers.
    pub const NUMBERS: &str = "\
CREATE TABLE numbers (
  name   text PRIMARY KEY,
  number bigint NOT NULL,
  fence  bigint NOT NULL
)";

    /// Makes the next number of a name, from 1 on. No row: the holder is stale, so roll back.
    ///
    /// `$1` name of the numbers, `$2` fence of the lock of that name. Without a lock: 0.
    pub const NEXT: &str = "\
INSERT INTO numbers (name, number, fence) VALUES ($1, 1, $2)
ON CONFLICT (name) DO UPDATE SET number = numbers.number + 1, fence = excluded.fence
WHERE numbers.fence <= excluded.fence
RETURNING number";
}

/// For MySQL and MariaDB.
pub mod mysql {
    /// Makes the table.
    pub const CREATE: &str = "\
CREATE TABLE fences (
  resource varbinary(255) PRIMARY KEY,
  fence    bigint NOT NULL
)";

    /// Raises the fence of a resource, if it is not larger already.
    ///
    /// Parameters: name of the lock, fence.
    pub const RAISE: &str = "\
INSERT INTO fences (resource, fence) VALUES (?, ?)
ON DUPLICATE KEY UPDATE fence = GREATEST(fence, VALUES(fence))";

    /// Reads the largest fence. Another than that of the holder: it is stale, so roll back.
    ///
    /// Parameter: name of the lock.
    pub const LARGEST: &str = "SELECT fence FROM fences WHERE resource = ? FOR UPDATE";

    /// Makes the table of numbers.
    pub const NUMBERS: &str = "\
CREATE TABLE numbers (
  name   varbinary(255) PRIMARY KEY,
  number bigint NOT NULL,
  fence  bigint NOT NULL
)";

    /// Makes the next number of a name, from 1 on, unless the fence is stale.
    ///
    /// Parameters: name of the numbers, fence of the lock of that name. Without a lock: 0.
    pub const NEXT: &str = "\
INSERT INTO numbers (name, number, fence) VALUES (?, 1, ?)
ON DUPLICATE KEY UPDATE number = number + (fence <= VALUES(fence)), fence = GREATEST(fence, VALUES(fence))";

    /// Reads the number, and the largest fence. Another than that of the holder: it is stale, so roll
    /// back.
    ///
    /// Parameter: name of the numbers.
    pub const NUMBER: &str = "SELECT number, fence FROM numbers WHERE name = ? FOR UPDATE";
}
