//! The meaning of SQLite's errors.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rusqlite::ErrorCode;
use rusqlite::ffi::{SQLITE_CANTOPEN_ISDIR, SQLITE_IOERR_SHMSIZE, SQLITE_IOERR_SHORT_READ};
use rustix::fs::{Access, access};
use tenure::{Error, ErrorKind};

/// Why a call on the file failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// SQLite's error, before anything was committed.
    Sql(rusqlite::Error),
    /// SQLite's error of the commit.
    Commit(rusqlite::Error),
    /// The path has come to mean another file.
    Replaced,
    /// A complete error.
    Described(Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Described(error)
    }
}

impl Failure {
    /// Whether another process was in the way, so that a retry may succeed.
    pub(super) fn is_busy(&self) -> bool {
        let busy =
            |code| matches!(code, ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed);
        matches!(self, Self::Sql(error) | Self::Commit(error) if error.sqlite_error_code().is_some_and(busy))
    }

    /// Whether SQLite could not open the file.
    pub(super) fn is_cannot_open(&self) -> bool {
        matches!(self, Self::Sql(error) if error.sqlite_error_code() == Some(ErrorCode::CannotOpen))
    }

    /// Whether the connection, or the file, may only be read.
    pub(super) fn is_read_only(&self) -> bool {
        matches!(self, Self::Sql(error) if error.sqlite_error_code() == Some(ErrorCode::ReadOnly))
    }

    /// The error of the store, for the file at `path`.
    pub(super) fn into_error(self, path: &Path) -> Error {
        match self {
            Self::Described(error) => error,
            Self::Sql(error) => describe(path, error),
            Self::Replaced => Error::unavailable(format!("the lock file {} was another one at each try", path.display()))
                .with_hint("try again; if it stays so, end the program that deletes or replaces it"),
            // The last page may have reached the file before the error did: a process that recovers
            // the file after a crash would find the commit there. A full disk cannot have taken it.
            Self::Commit(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull) => describe(path, error),
            Self::Commit(error) => describe(path, error).maybe_applied(),
        }
    }
}

/// An error of the file itself, which stays until somebody repairs the file.
pub(super) fn damaged(path: &Path, why: &str, fix: &str) -> Error {
    Error::new(ErrorKind::Damaged, format!("cannot use the lock file {}: {why}", path.display())).with_hint(fix)
}

fn describe(path: &Path, error: rusqlite::Error) -> Error {
    let Some(code) = error.sqlite_error_code() else {
        return damaged(path, "its tables are not as tenure made them", RECREATE).with_source(error);
    };
    let (why, fix) = match code {
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed => {
            return Error::overloaded(format!("the lock file {} stayed busy for the whole operation timeout", path.display()))
                .with_hint("try again; if it stays so, a program keeps a transaction open in the file (lsof tells which)")
                .with_source(error);
        }
        ErrorCode::OutOfMemory => {
            return Error::unavailable(format!("no memory to use the lock file {}", path.display())).with_source(error);
        }
        ErrorCode::DiskFull => ("the disk is full", "free some space"),
        ErrorCode::ReadOnly | ErrorCode::PermissionDenied => ("it is read-only", WRITABLE),
        ErrorCode::CannotOpen => return cannot_open(path, error),
        ErrorCode::NotADatabase => ("it is not an SQLite file", "give the path of another file, which tenure will make"),
        ErrorCode::DatabaseCorrupt => ("it is corrupt", RECREATE),
        ErrorCode::SystemIoFailure if extended(&error) == SQLITE_IOERR_SHMSIZE => {
            ("no space for its -shm companion", "free some space")
        }
        ErrorCode::SystemIoFailure if extended(&error) == SQLITE_IOERR_SHORT_READ => {
            ("it or its -wal companion was deleted or cut short while in use", RECREATE)
        }
        ErrorCode::SystemIoFailure => ("the disk failed", "look at the system log, and whether the disk is full"),
        _ => ("its tables are not as tenure made them", RECREATE),
    };
    damaged(path, why, fix).with_source(error)
}

pub(super) const WRITABLE: &str = "make the file and its directory writable, or give another path";
const OPEN_TO_OTHERS: &str =
    "give another path, or have that user open it, its -wal and its -shm to a group of both (chgrp, and chmod 660)";
const RECREATE: &str = "stop the programs that use it and delete it with its -wal and -shm companions; its locks are then free";

fn extended(error: &rusqlite::Error) -> i32 {
    error.sqlite_error().map_or(0, |error| error.extended_code)
}

/// Finds the reason that SQLite does not say. The file must not be opened for that: closing it
/// would drop this process's locks on it.
fn cannot_open(path: &Path, error: rusqlite::Error) -> Error {
    let directory = || path.metadata().is_ok_and(|found| found.is_dir());
    if extended(&error) == SQLITE_CANTOPEN_ISDIR || directory() {
        return damaged(path, "it is a directory", "give the path of a file in it");
    }
    let may = |path: &Path, how| access(path, how).map_err(std::io::Error::from);
    let parent = path.parent().unwrap_or(path);
    if let Some(found) = path.metadata().ok().filter(|_| may(path, Access::READ_OK | Access::WRITE_OK).is_err())
        && found.uid() != rustix::process::geteuid().as_raw()
    {
        let why = format!("it belongs to another user ({}) and is not open to this one", found.uid());
        return damaged(path, &why, OPEN_TO_OTHERS).with_source(error);
    }
    let why = match (path.exists(), may(path, Access::READ_OK | Access::WRITE_OK).and(may(parent, Access::WRITE_OK))) {
        (true, Err(no)) => format!("it is read-only ({no})"),
        (true, Ok(())) => "it, or a companion beside it, cannot be opened".to_owned(),
        (false, _) => match may(parent, Access::WRITE_OK) {
            Err(no) => format!("it does not exist and cannot be made there ({no})"),
            Ok(()) => "it does not exist and cannot be made there".to_owned(),
        },
    };
    damaged(path, &why, WRITABLE).with_source(error)
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;
    use tenure_testkit::page::{errors, told};

    use super::*;

    /// docs/errors.md has these answers, and says of them what the code does.
    #[test]
    fn the_page_of_errors_is_true() {
        let page = errors("SQLite");
        let known = [
            ("SQLITE_BUSY", ffi::SQLITE_BUSY),
            ("SQLITE_LOCKED", ffi::SQLITE_LOCKED),
            ("SQLITE_PROTOCOL", ffi::SQLITE_PROTOCOL),
            ("SQLITE_NOMEM", ffi::SQLITE_NOMEM),
            ("SQLITE_FULL", ffi::SQLITE_FULL),
            ("SQLITE_READONLY", ffi::SQLITE_READONLY),
            ("SQLITE_PERM", ffi::SQLITE_PERM),
            ("SQLITE_CANTOPEN", ffi::SQLITE_CANTOPEN),
            ("SQLITE_NOTADB", ffi::SQLITE_NOTADB),
            ("SQLITE_CORRUPT", ffi::SQLITE_CORRUPT),
            ("SQLITE_IOERR", ffi::SQLITE_IOERR_WRITE),
            ("SQLITE_ERROR", ffi::SQLITE_ERROR),
        ];
        for (name, code) in known {
            let (_, [kind, applied]) = page.iter().find(|(told, _)| told == name).unwrap_or_else(|| panic!("no {name}"));
            let error = || rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            let of = |failure: Failure| told(&failure.into_error(Path::new("/x")));
            let at_commit = if applied == "at a commit" { "maybe" } else { "no" };
            assert_eq!(of(Failure::Sql(error())), [kind.clone(), "no".to_owned()], "{name}");
            assert_eq!(of(Failure::Commit(error())), [kind.clone(), at_commit.to_owned()], "{name}");
        }
        assert_eq!(page.len(), known.len());
    }
}
