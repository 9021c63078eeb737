//! Files that cannot be used: each refused in one line that says what, why and what to do.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use tenure::ErrorKind;
use tenure::store::Store as _;
use tenure_sql::sqlite::open;

use crate::child::{finish, start_mounted};
use crate::common::{fresh, granted, lease, one_line, owner, raw, request, wait_until_closed};

fn refused(path: &Path, why: &str) {
    let error = open(path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    assert!(!error.may_have_been_applied());
    let text = one_line(&error);
    assert!(text.contains(why) && text.contains(path.to_str().unwrap()) && text.contains("; "), "{text}");
}

#[test]
fn what_is_no_lock_file_is_refused_and_left_alone() {
    let (dir, path) = fresh();
    refused(dir.path(), "it is a directory");
    fs::write(&path, "a letter to nobody, long enough to be taken for a header".repeat(100)).unwrap();
    let before = fs::read(&path).unwrap();
    refused(&path, "it is not an SQLite file");
    assert_eq!(fs::read(&path).unwrap(), before);
    refused(&path.join("locks.db"), "locks.db");
}

#[test]
fn the_file_of_another_application_is_refused_and_left_alone() {
    for sql in ["CREATE TABLE notes (text)", "PRAGMA application_id = 7", "PRAGMA user_version = 1"] {
        let (_dir, path) = fresh();
        raw(&path).execute_batch(sql).unwrap();
        let before = fs::read(&path).unwrap();
        refused(&path, "another application");
        assert_eq!(fs::read(&path).unwrap(), before);
    }
}

#[test]
fn a_newer_version_is_refused() {
    let (_dir, path) = fresh();
    drop(open(&path).unwrap());
    raw(&path).execute_batch("PRAGMA user_version = 3").unwrap();
    refused(&path, "version 3");
}

#[tokio::test]
async fn a_corrupt_file_is_refused() {
    let (_dir, path) = fresh();
    let store = open(&path).unwrap();
    for _ in 0..200 {
        granted(&store, &request(&owner().to_string(), &owner())).await;
    }
    drop(store);
    raw(&path).query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    let size = fs::metadata(&path).unwrap().len();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    // All but the first page, which has the header.
    file.write_all_at(&vec![0x5a; usize::try_from(size).unwrap() - 1024], 1024).unwrap();
    drop(file);
    refused(&path, "corrupt");
    OpenOptions::new().write(true).open(&path).unwrap().set_len(1500).unwrap();
    refused(&path, "corrupt");
}

#[tokio::test]
async fn tables_that_somebody_changed_are_refused() {
    let (_dir, path) = fresh();
    let store = open(&path).unwrap();
    raw(&path).execute_batch("ALTER TABLE lock RENAME TO other").unwrap();
    let error = store.acquire(&request("x", &owner())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert!(one_line(&error).contains("not as tenure made them"), "{error}");
    refused(&path, "not as tenure made them");
}

/// An empty file, as `mktemp` makes it, is a new one.
#[tokio::test]
async fn an_empty_file_is_taken() {
    let (_dir, path) = fresh();
    fs::write(&path, "").unwrap();
    granted(&open(&path).unwrap(), &request("x", &owner())).await;
}

/// On a disk of 300 KiB that is filled while a lock is held.
#[test]
fn a_full_disk_takes_nothing_and_loses_nothing() {
    let (dir, path) = fresh();
    let mount = format!("mount -t tmpfs -o size=300k tmpfs {}", dir.path().display());
    finish(vec![start_mounted(&mount, "full", &path)]);
}

/// On a read-only mount, where root may not write either: a file in use before, one with no log beside it, and none.
#[test]
fn a_read_only_disk_is_refused() {
    for (log, exists) in [(true, true), (false, true), (false, false)] {
        let (dir, path) = fresh();
        if exists {
            drop(open(&path).unwrap());
            wait_until_closed(&path);
        }
        if exists && !log {
            raw(&path).query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
            let _ = fs::remove_file(path.with_file_name("locks.db-wal"));
            let _ = fs::remove_file(path.with_file_name("locks.db-shm"));
        }
        let dir = dir.path().display();
        let mount = format!("mount --bind {dir} {dir}; mount -o remount,bind,ro {dir}");
        finish(vec![start_mounted(&mount, "read-only", &path)]);
    }
}

/// The error of one store is not the end of it.
#[tokio::test]
async fn a_store_goes_on_after_an_error() {
    let (_dir, path) = fresh();
    let store = open(&path).unwrap();
    let a = owner();
    granted(&store, &request("x", &a)).await;
    raw(&path).execute_batch("ALTER TABLE lock RENAME TO other").unwrap();
    store.release(&lease("x", &a), Duration::ZERO).await.unwrap_err();
    raw(&path).execute_batch("ALTER TABLE other RENAME TO lock").unwrap();
    store.release(&lease("x", &a), Duration::ZERO).await.unwrap();
}
