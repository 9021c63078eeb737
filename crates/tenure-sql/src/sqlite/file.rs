//! The open file: its connection, its identity, and one checked transaction on it.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};
use tenure::record::Listeners;
use tenure::{BootTime, Error};

use super::failure::{Failure, damaged};
use super::machine::{Machine, Origin, SEES_REBOOTS};
use super::rows::{Found, nanos};
use super::statements::{EMPTY_LOG, FORGET, FORGET_FUTURE, REBOOTED, STAYING};
use super::wake::Wake;
use super::{patience, schema};

/// Four times what a log grows to between two checkpoints of a process that stays.
const LOG_LIMIT: u64 = 4 << 20;

/// A lock file in use by one thread.
#[derive(Debug)]
pub(super) struct LockFile {
    pub(super) path: PathBuf,
    log: PathBuf,
    conn: Connection,
    machine: &'static Machine,
    /// Device and inode of what was opened.
    node: Option<(u64, u64)>,
    pub(super) wake: Wake,
}

impl LockFile {
    /// Opens the file, and makes it and the directories above it where they are missing.
    pub(super) fn open(path: PathBuf, listeners: Listeners) -> Result<Self, Error> {
        let machine = Machine::this()?;
        let opened = connect(&path).and_then(|conn| {
            patience::persist(|| schema::settle(&conn, &path, machine))?;
            Ok(conn)
        });
        let conn = opened.map_err(|failure| failure.told(&path))?;
        let node = node(&path);
        let wake = Wake::new(beside(&path, "-wake"), listeners);
        let file = Self { log: beside(&path, "-wal"), path, conn, machine, node, wake };
        // A file of another machine is told here, not at the first lock.
        file.read(|tx| file.find(tx, "").map(drop))?;
        if !SEES_REBOOTS {
            let now = nanos(BootTime::now().since_boot());
            let forget = |tx: &Transaction<'_>, _: &Found| {
                Ok(FORGET_FUTURE.iter().try_for_each(|sql| tx.execute(sql, [now]).map(drop))?)
            };
            file.write(forget, "")?;
        }
        Ok(file)
    }

    /// Opens the file anew where its path has come to mean another file: locks in a deleted one would be seen by nobody.
    pub(super) fn follow(&mut self) -> Result<(), Error> {
        if self.conn.is_autocommit() && node(&self.path) == self.node {
            return Ok(());
        }
        tracing::warn!(path = %self.path.display(), "the lock file was replaced; opening the new one");
        let mut opened = Self::open(self.path.clone(), self.wake.listeners())?;
        std::mem::swap(&mut opened.wake, &mut self.wake);
        *self = opened;
        Ok(())
    }

    /// Settles down for a process that stays.
    pub(super) fn stays(&self) {
        // It costs speed only.
        let _ = self.conn.execute_batch(STAYING);
    }

    /// Empties a log that grew large. By itself it begins anew only when nobody reads for a moment, which may never come while
    /// many processes are at it.
    pub(super) fn tidy(&self) {
        if fs::metadata(&self.log).is_ok_and(|log| log.len() > LOG_LIMIT) {
            // It is tried again after the next call.
            let _ = self.conn.query_row(EMPTY_LOG, [], |_| Ok(()));
        }
    }

    /// What is known of a name just now, without a lock on the file. Its holders and its waiters may be of two moments.
    pub(super) fn peek(&self, name: &str) -> Result<Found, Error> {
        patience::persist(|| self.find(&self.conn, name)).map_err(|failure| failure.told(&self.path))
    }

    /// Reads in one snapshot.
    pub(super) fn read<T>(&self, work: impl Fn(&Transaction<'_>) -> Result<T, Failure>) -> Result<T, Error> {
        let done = patience::persist(|| {
            let tx = Transaction::new_unchecked(&self.conn, TransactionBehavior::Deferred)?;
            work(&tx)
        });
        done.map_err(|failure| failure.told(&self.path))
    }

    /// Does `work` alone in the file, on what is known of `name`, and commits unless it fails.
    pub(super) fn write<T>(&self, work: impl Fn(&Transaction<'_>, &Found) -> Result<T, Failure>, name: &str) -> Result<T, Error> {
        let done = patience::persist(|| {
            let tx = Transaction::new_unchecked(&self.conn, TransactionBehavior::Immediate)?;
            let found = self.settled(&tx, name)?;
            let done = work(&tx, &found)?;
            tx.commit().map_err(Failure::Commit)?;
            Ok(done)
        });
        done.map_err(|failure| failure.told(&self.path))
    }

    /// Ends every lease of an earlier boot.
    fn settled(&self, tx: &Transaction<'_>, name: &str) -> Result<Found, Failure> {
        let found = Found::read(tx, name)?;
        if self.origin(&found)? == Origin::Here {
            return Ok(found);
        }
        for forget in FORGET {
            tx.execute(forget, [])?;
        }
        tx.execute(REBOOTED, (&self.machine.boot, &self.machine.id))?;
        Ok(found.forget())
    }

    /// What is known of a name, if it is of this boot.
    pub(super) fn find(&self, conn: &Connection, name: &str) -> Result<Found, Failure> {
        let found = Found::read(conn, name)?;
        Ok(if self.origin(&found)? == Origin::Here { found } else { found.forget() })
    }

    /// Whether what is in the file is of this boot.
    pub(super) fn is_here(&self, conn: &Connection) -> Result<bool, Failure> {
        Ok(self.origin(&Found::read(conn, "")?)? == Origin::Here)
    }

    /// Where the file was last used; a file of another machine is refused.
    fn origin(&self, found: &Found) -> Result<Origin, Failure> {
        match self.machine.origin(&found.boot, &found.machine, &self.path) {
            Origin::Elsewhere => {
                let why = format!(
                    "it is used from two machines (its last user was machine {:?}, this one is {:?}), which cannot share leases \
                     and file locks, e.g. over a network file system",
                    found.machine, self.machine.id
                );
                let fix = "use a redis: store for several machines, or delete the file with its -wal and -shm companions if no \
                           other machine uses it";
                Err(damaged(&self.path, &why, fix).into())
            }
            origin => Ok(origin),
        }
    }
}

fn connect(path: &Path) -> Result<Connection, Failure> {
    let conn = match open(path) {
        Err(failure) if failure.is_cannot_open() && make_parent(path)? => open(path)?,
        conn => conn?,
    };
    // A checkpoint costs two syncs. It is due every thousand pages, not at each end of a short command.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    // Otherwise a statement is compiled again whenever another name is bound to it.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(conn)
}

fn open(path: &Path) -> Result<Connection, Failure> {
    // No SQLITE_OPEN_URI: a path is a path, whatever it begins with.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    let handler: fn(i32) -> bool = patience::wait;
    #[allow(unused_mut, reason = "the newest rusqlite takes the connection by &mut")]
    let mut conn = conn;
    conn.busy_handler(Some(handler))?;
    Ok(conn)
}

/// Makes the missing directories above the file, for this user alone. `false` where none was missing.
fn make_parent(path: &Path) -> Result<bool, Failure> {
    let Some(parent) = path.parent().filter(|parent| !parent.exists()) else { return Ok(false) };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(parent)
        .map_err(|e| damaged(path, &format!("cannot make its directory: {e}"), "make the directory, or give another path"))?;
    Ok(true)
}

/// Companions stand beside the file itself, not beside a link to it.
fn beside(path: &Path, end: &str) -> PathBuf {
    let linked = fs::read_link(path).and_then(|_| fs::canonicalize(path)).ok();
    let mut companion = linked.unwrap_or_else(|| path.to_owned()).into_os_string();
    companion.push(end);
    companion.into()
}

fn node(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}
