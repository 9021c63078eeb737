//! Statements for a table of fences, by which a database refuses the writes of a stale holder.
//!
//! They run on your own connection, in the transaction that writes. `docs/fenced-writes.md` says when
//! to use them, and has the patterns for a column in the guarded row. Pass a fence as
//! `i64::from(fence)`.

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
}
