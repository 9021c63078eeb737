//! Floors of a thread: each post has the next number, without a gap.

use std::path::Path;

use jobs::{Error, open_database};
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};
use tenure::Locker;
use tenure_sql::fenced::postgres::{NEXT, NUMBERS};

// Without a UNIQUE constraint, which would hide a mistake here. A real table has one.
const POSTS: &str = "CREATE TABLE posts (floor INTEGER NOT NULL, author INTEGER NOT NULL)";

/// The guarded table.
pub(crate) struct Thread(pub(crate) Connection);

/// Numbers in it.
pub(crate) struct Audit {
    pub(crate) floors: i64,
    pub(crate) distinct: i64,
    pub(crate) largest: i64,
}

impl Thread {
    pub(crate) fn create(path: &Path) -> Result<Self, Error> {
        let thread = Self::open(path)?;
        thread.0.execute_batch(NUMBERS)?;
        thread.0.execute_batch(POSTS)?;
        Ok(thread)
    }

    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self(open_database(path)?))
    }

    fn posts_of(&self, author: i64) -> Result<i64, Error> {
        Ok(self.0.query_row("SELECT count(*) FROM posts WHERE author = ?1", [author], |row| row.get(0))?)
    }

    pub(crate) fn audit(&self) -> Result<Audit, Error> {
        let statement = "SELECT count(*), count(DISTINCT floor), coalesce(max(floor), 0) FROM posts";
        let audit = |row: &rusqlite::Row<'_>| Ok(Audit { floors: row.get(0)?, distinct: row.get(1)?, largest: row.get(2)? });
        Ok(self.0.query_row(statement, [], audit)?)
    }
}

/// Writes posts until the author has as many as wanted. One who takes the place of a dead one goes on.
pub(crate) async fn write(locks: &Locker, name: &str, thread: &mut Thread, author: i64, wanted: i64) -> Result<(), Error> {
    let mut posts = thread.posts_of(author)?;
    while posts < wanted {
        posts += i64::from(post(locks, name, &mut thread.0, author).await?.is_some());
    }
    Ok(())
}

/// Writes one post under the lock `name`, which is that of the numbers as well. Returns its floor; `None` if a later holder was here, and nothing was written.
pub(crate) async fn post(locks: &Locker, name: &str, database: &mut Connection, author: i64) -> Result<Option<i64>, Error> {
    let guard = locks.mutex(name).acquire().await?;
    let fence = guard.fence().map(i64::from).ok_or("a store without fences")?;
    // Work that must be alone, and is too long for a transaction, goes here.
    let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let floor: Option<i64> = transaction.query_row(NEXT, params![name, fence], |row| row.get(0)).optional()?;
    if let Some(floor) = floor {
        transaction.execute("INSERT INTO posts (floor, author) VALUES (?1, ?2)", [floor, author])?;
        // The number and its row are there, or neither is.
        transaction.commit()?;
    }
    // A failed release undoes nothing: the lease ends by itself.
    let _ = guard.release().await;
    Ok(floor)
}
