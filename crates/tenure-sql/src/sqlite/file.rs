//! The open file: its connection, its identity, and one checked transaction on it.

use std::cell::Cell;
use std::fs::{self, DirBuilder, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};
use rustix::io::Errno;
use tenure::store::record::Listeners;
use tenure::{BootTime, Error};

use super::failure::{Failure, WRITABLE, damaged};
use super::machine::{Machine, NOTED_EVERY, Origin, SEES_REBOOTS, Traces, booted, wall_clock};
use super::nodes::{Names, Nodes, check};
use super::rows::{Found, nanos};
use super::share::Sharing;
use super::statements::{EMPTY_LOG, FORGET, FORGET_FUTURE, REBOOTED, STAYING, WRITTEN};
use super::wake::Wake;
use super::{patience, schema};

/// Four times what a log grows to between two checkpoints of a process that stays.
const LOG_LIMIT: u64 = 4 << 20;

/// A lock file in use by one thread.
#[derive(Debug)]
pub(super) struct LockFile {
    pub(super) path: PathBuf,
    /// For a file that has to be made anew.
    sharing: Sharing,
    names: Names,
    /// Files that the names meant when it was opened. None if it has to be opened again.
    nodes: Cell<Option<Nodes>>,
    conn: Connection,
    machine: &'static Machine,
    /// It was of this boot when it was last read, so no earlier boot can have used it since.
    was_here: Cell<bool>,
    pub(super) wake: Wake,
}

impl LockFile {
    /// Opens the file. Creates it, and the directories above it, if they are missing.
    pub(super) fn open(path: PathBuf, sharing: Sharing, listeners: Listeners) -> Result<Self, Error> {
        let machine = Machine::this()?;
        let opened = patience::persist(|| connect(&path, sharing, machine));
        let (conn, names, nodes) = opened.map_err(|failure| failure.into_error(&path))?;
        let wake = Wake::new(names.wake.clone(), listeners);
        let file = Self { path, sharing, names, nodes: Cell::new(Some(nodes)), conn, machine, was_here: Cell::new(false), wake };
        // A file of another machine is refused here, not at the first lock.
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

    /// Opens the file again if its names have come to mean other files: nobody sees locks in a
    /// deleted file. So too if it could not be written: SQLite falls back to read-only when it is
    /// refused a descriptor for a companion, and would stay so.
    pub(super) fn follow(&mut self) -> Result<(), Error> {
        if self.conn.is_autocommit() && self.nodes.get() == Some(self.names.nodes()) {
            return Ok(());
        }
        tracing::warn!(path = %self.path.display(), "the lock file was replaced, or open for reading only; opening it again");
        // While it is open, SQLite expects the log that belongs to what it knows of it.
        self.nodes.set(None);
        self.conn = Connection::open_in_memory().map_err(|error| Failure::from(error).into_error(&self.path))?;
        let mut opened = Self::open(self.path.clone(), self.sharing, self.wake.listeners())?;
        if opened.names.wake == self.names.wake {
            std::mem::swap(&mut opened.wake, &mut self.wake);
        }
        *self = opened;
        Ok(())
    }

    /// Prepares for a process that stays.
    pub(super) fn stays(&self) {
        // A failure costs speed only.
        let _ = self.conn.execute_batch(STAYING);
    }

    /// Empties a log that grew large. SQLite starts it anew only when nobody reads for a moment,
    /// which may never come with many processes.
    pub(super) fn tidy(&self) {
        if fs::metadata(&self.names.log).is_ok_and(|log| log.len() > LOG_LIMIT) {
            // It is tried again after the next call.
            let _ = self.conn.query_row(EMPTY_LOG, [], |_| Ok(()));
        }
    }

    /// Reads a name without a lock on the file. Its holders and its waiters may be of two moments.
    pub(super) fn peek(&self, name: &str) -> Result<Found, Error> {
        patience::persist(|| self.find(&self.conn, name)).map_err(|failure| failure.into_error(&self.path))
    }

    /// Reads in one snapshot.
    pub(super) fn read<T>(&self, work: impl Fn(&Transaction<'_>) -> Result<T, Failure>) -> Result<T, Error> {
        let done = patience::persist(|| {
            let tx = Transaction::new_unchecked(&self.conn, TransactionBehavior::Deferred)?;
            work(&tx)
        });
        done.map_err(|failure| failure.into_error(&self.path))
    }

    /// Runs `work` alone in the file, on the state of `name`, and commits unless it fails.
    pub(super) fn write<T>(&self, work: impl Fn(&Transaction<'_>, &Found) -> Result<T, Failure>, name: &str) -> Result<T, Error> {
        let done = patience::persist(|| {
            let tx = Transaction::new_unchecked(&self.conn, TransactionBehavior::Immediate)?;
            let found = self.settled(&tx, name)?;
            let done = work(&tx, &found)?;
            note(&tx, &found)?;
            tx.commit().map_err(Failure::Commit)?;
            Ok(done)
        });
        if done.as_ref().is_err_and(Failure::is_read_only) {
            self.nodes.set(None);
        }
        done.map_err(|failure| failure.into_error(&self.path))
    }

    /// Reads a name, and ends all leases if they are of an earlier boot.
    fn settled(&self, tx: &Transaction<'_>, name: &str) -> Result<Found, Failure> {
        let found = Found::read(tx, name)?;
        if self.origin(&found)? == Origin::Here {
            return Ok(found);
        }
        for forget in FORGET {
            tx.execute(forget, [])?;
        }
        tx.execute(REBOOTED, (&self.machine.boot, &self.machine.id, booted(), wall_clock()))?;
        Ok(found.forget())
    }

    /// Reads a name. Empty if the file is of an earlier boot.
    pub(super) fn find(&self, conn: &Connection, name: &str) -> Result<Found, Failure> {
        let found = Found::read(conn, name)?;
        Ok(if self.origin(&found)? == Origin::Here { found } else { found.forget() })
    }

    /// Whether the leases in the file are of this boot.
    pub(super) fn is_here(&self, conn: &Connection) -> Result<bool, Failure> {
        Ok(self.origin(&Found::read(conn, "")?)? == Origin::Here)
    }

    /// Where the file was last used. A file of another machine is refused.
    fn origin(&self, found: &Found) -> Result<Origin, Failure> {
        match self.machine.origin(&found.last_use, || Traces::of(&self.path)) {
            Origin::Here => {
                self.was_here.set(true);
                Ok(Origin::Here)
            }
            Origin::EarlierBoot if !self.was_here.get() => Ok(Origin::EarlierBoot),
            _ => Err(self.machine.refuses(&found.last_use, &self.path).into()),
        }
    }
}

/// Notes when the file was changed: by that another machine knows that it is not the only one.
fn note(tx: &Transaction<'_>, found: &Found) -> Result<(), Failure> {
    let now = wall_clock();
    if !(0..NOTED_EVERY).contains(&(now - found.last_use.written)) {
        tx.prepare_cached(WRITTEN)?.execute([now])?;
    }
    Ok(())
}

/// A connection that is ready, and the files it has open.
fn connect(path: &Path, sharing: Sharing, machine: &Machine) -> Result<(Connection, Names, Nodes), Failure> {
    let file = match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            make(path, sharing)?;
            return Err(Failure::Replaced);
        }
        Err(error) => return Err(damaged(path, &format!("it cannot be looked at ({error})"), WRITABLE).into()),
        Ok(file) => file,
    };
    check(path, &file)?;
    // As root, SQLite gives what it finds to the owner of the file.
    let names = Names::of(path);
    names.check(&file)?;
    // SQLite does not say which files it has opened: they are those that had the names before and
    // have them after.
    let before = names.nodes();
    let is_same = || if names.nodes() == before { Ok(()) } else { Err(Failure::Replaced) };
    let connect = || {
        let conn = open(path, OpenFlags::empty())?;
        // A checkpoint costs two syncs. It is due every thousand pages, not at each end of a short
        // command.
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        // Otherwise a statement is compiled again whenever another name is bound to it.
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        schema::look(&conn)?;
        // Before anything is written: the log of one file must not come to another.
        is_same()?;
        schema::settle(&conn, path, machine)?;
        names.align(&file);
        Ok((conn, before))
    };
    let connected = connect();
    // A file whose companions were missing is opened again.
    is_same()?;
    connected.map(|(conn, nodes)| (conn, names, nodes))
}

/// Makes the file, and the directories above it where they are missing.
fn make(path: &Path, sharing: Sharing) -> Result<(), Failure> {
    if sharing.is_wanted() {
        make_parent(path)?;
        return sharing.make(path);
    }
    if make_private(path) == Err(Errno::NOENT) && make_parent(path)? {
        let _ = make_private(path);
    }
    if path.exists() {
        return Ok(());
    }
    // SQLite says why, or makes what a link leads to. It lets all read that, until this takes
    // effect.
    drop(open(path, OpenFlags::SQLITE_OPEN_CREATE)?);
    let _ = fs::set_permissions(path, Permissions::from_mode(0o600));
    Ok(())
}

/// Makes an empty file for this user alone: a user who may read a lock file may keep writers out,
/// and sees the owner tokens. Others may never open it. It is not opened here: closing it would end
/// the locks of every other store of this process on it.
#[cfg(target_os = "linux")]
fn make_private(path: &Path) -> Result<(), Errno> {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::RegularFile, Mode::RUSR | Mode::WUSR, 0)
}

/// Elsewhere SQLite makes it.
#[cfg(not(target_os = "linux"))]
fn make_private(path: &Path) -> Result<(), Errno> {
    if path.parent().is_none_or(Path::exists) { Ok(()) } else { Err(Errno::NOENT) }
}

fn open(path: &Path, more: OpenFlags) -> Result<Connection, Failure> {
    // No SQLITE_OPEN_URI: a path is a path, whatever it begins with.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | more;
    let conn = Connection::open_with_flags(path, flags)?;
    let handler: fn(i32) -> bool = patience::wait;
    #[allow(unused_mut, reason = "the newest rusqlite takes the connection by &mut")]
    let mut conn = conn;
    conn.busy_handler(Some(handler))?;
    Ok(conn)
}

/// Makes the missing directories above the file, for this user alone. `false` where none was
/// missing.
fn make_parent(path: &Path) -> Result<bool, Failure> {
    let Some(parent) = path.parent().filter(|parent| !parent.exists()) else { return Ok(false) };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(parent)
        .map_err(|e| damaged(path, &format!("cannot make its directory: {e}"), "make the directory, or give another path"))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// Without a sync at each checkpoint, a power cut could leave a file that no log mends.
    #[test]
    fn settings_are_in_force() {
        let dir = tempfile::TempDir::new().unwrap();
        let open = || LockFile::open(dir.path().join("locks.db"), Sharing::default(), Listeners::default()).unwrap();
        let file = patience::until(Instant::now() + Duration::from_secs(5), open);
        let read = |what| file.conn.pragma_query_value(None, what, |row| row.get::<_, i64>(0)).unwrap();
        assert_eq!(["synchronous", "wal_autocheckpoint", "page_size"].map(read), [1, 64, 1024]);
        let mode: String = file.conn.pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
        assert_eq!(mode, "wal");
        file.stays();
        assert_eq!(read("wal_autocheckpoint"), 1_000);
    }
}
