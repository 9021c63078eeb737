//! The open file: its connection, its identity, and one checked transaction on it.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Row, Transaction, TransactionBehavior};
use tenure::{BootTime, Error};

use super::failure::{Failure, damaged};
use super::lease::{Found, Standing, nanos};
use super::machine::{Machine, Origin, SEES_REBOOTS};
use super::statements::{EMPTY_LOG, FIND, FORGET, FORGET_FUTURE, REBOOTED, STAYING};
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
}

impl LockFile {
    /// Opens the file, and makes it and the directories above it where they are missing.
    pub(super) fn open(path: PathBuf) -> Result<Self, Error> {
        let machine = Machine::this()?;
        let opened = connect(&path).and_then(|conn| {
            patience::persist(|| schema::settle(&conn, &path, machine))?;
            Ok(conn)
        });
        let conn = opened.map_err(|failure| failure.told(&path))?;
        let node = node(&path);
        let file = Self { log: log(&path), path, conn, machine, node };
        // A file of another machine is told here, not at the first lock.
        file.read(|tx| file.origin(&find(tx, "")?).map(drop))?;
        if !SEES_REBOOTS {
            file.write(|tx, _| Ok(tx.execute(FORGET_FUTURE, [nanos(BootTime::now())]).map(drop)?), "")?;
        }
        Ok(file)
    }

    /// Opens the file anew where its path has come to mean another file: locks in a deleted one would be seen by nobody.
    pub(super) fn follow(&mut self) -> Result<(), Error> {
        if self.conn.is_autocommit() && node(&self.path) == self.node {
            return Ok(());
        }
        tracing::warn!(path = %self.path.display(), "the lock file was replaced; opening the new one");
        *self = Self::open(self.path.clone())?;
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

    /// What is known of a name just now, without a lock on the file.
    pub(super) fn peek(&self, name: &str) -> Result<Option<Standing>, Error> {
        let peeked = patience::persist(|| {
            let found = find(&self.conn, name)?;
            let here = self.origin(&found)? == Origin::Here;
            Ok(found.standing.filter(|found| here && found.until > BootTime::now()))
        });
        peeked.map_err(|failure| failure.told(&self.path))
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
    pub(super) fn write<T>(&self, work: impl Fn(&Transaction<'_>, Found) -> Result<T, Failure>, name: &str) -> Result<T, Error> {
        let done = patience::persist(|| {
            let tx = Transaction::new_unchecked(&self.conn, TransactionBehavior::Immediate)?;
            let found = self.settled(&tx, find(&tx, name)?)?;
            let done = work(&tx, found)?;
            tx.commit().map_err(Failure::Commit)?;
            Ok(done)
        });
        done.map_err(|failure| failure.told(&self.path))
    }

    /// Ends every lease of an earlier boot, and leaves out a lease that has ended.
    fn settled(&self, tx: &Transaction<'_>, found: Found) -> Result<Found, Failure> {
        let now = BootTime::now();
        if self.origin(&found)? == Origin::Here {
            return Ok(Found { standing: found.standing.filter(|found| found.until > now), ..found });
        }
        tx.execute(FORGET, [])?;
        tx.execute(REBOOTED, (&self.machine.boot, &self.machine.id))?;
        Ok(Found { standing: None, ..found })
    }

    /// Where the file was last used; a file of another machine is refused.
    pub(super) fn origin(&self, found: &Found) -> Result<Origin, Failure> {
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

fn find(conn: &Connection, name: &str) -> Result<Found, Failure> {
    Ok(conn.prepare_cached(FIND)?.query_row([name], |row: &Row<'_>| Found::from_row(row))?)
}

fn connect(path: &Path) -> Result<Connection, Failure> {
    let conn = match open(path) {
        Err(failure) if failure.is_cannot_open() && make_parent(path)? => open(path)?,
        conn => conn?,
    };
    // A checkpoint costs two syncs. It is due every thousand pages, not at each end of a short command.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
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

/// The log stands beside the file itself, not beside a link to it.
fn log(path: &Path) -> PathBuf {
    let linked = fs::read_link(path).and_then(|_| fs::canonicalize(path)).ok();
    let mut log = linked.unwrap_or_else(|| path.to_owned()).into_os_string();
    log.push("-wal");
    log.into()
}

fn node(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}
