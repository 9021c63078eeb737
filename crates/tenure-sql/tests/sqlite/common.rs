//! Helpers that the cases share.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use tempfile::TempDir;
use tenure::Error;
use tenure::store::{Enqueue, Request};
use tenure_sql::SqliteStore;
use tenure_sql::sqlite::open;
use tenure_testkit::guardian;

pub(crate) use crate::requests::{TTL, busy, granted, joining, lease, owner, request};

/// A directory that goes with the test, and a file in it that does not exist yet.
pub(crate) fn fresh() -> (TempDir, PathBuf) {
    guardian::watch_over_us().unwrap();
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("locks.db");
    (dir, path)
}

/// A request whose `entry_ttl` and `handoff_ttl` outlast a pause of its process.
pub(crate) fn joining_for_long(name: &str) -> Request {
    joining(name).with_enqueue(Enqueue::Join { entry_ttl: TTL, handoff_ttl: TTL })
}

/// A store whose calls wait long for other processes.
pub(crate) fn patient(path: &Path) -> SqliteStore {
    open(path).unwrap().with_operation_timeout(Duration::from_secs(5))
}

/// The file as SQLite alone sees it.
pub(crate) fn raw(path: &Path) -> Connection {
    Connection::open(path).unwrap()
}

pub(crate) fn check_integrity(path: &Path) {
    let said: String = raw(path).query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(said, "ok");
}

pub(crate) fn one_line(error: &Error) -> String {
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text}");
    println!("{:?}: {text}", error.kind());
    text
}

/// Writes until the disk is full.
pub(crate) fn fill(path: &Path) {
    let mut file = std::fs::File::create(path).unwrap();
    while file.write_all(&[0; 512]).is_ok() {}
}

/// How often this process has the file open.
pub(crate) fn open_files(path: &Path) -> usize {
    let files = std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|fd| std::fs::read_link(fd.path()).ok());
    files.filter(|file| file == path).count()
}

/// Waits until the thread of the last handle has closed the file.
pub(crate) fn wait_until_closed(path: &Path) {
    let begun = std::time::Instant::now();
    while open_files(path) > 0 {
        assert!(begun.elapsed() < Duration::from_secs(5), "the file is still open");
    }
}
