//! The application that a file belongs to, and its first tables.

use std::path::Path;

use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::failure::{Failure, damaged};
use super::machine::{Machine, booted, wall_clock};
use super::statements::{
    ADD_TIMES, APPLICATION, BEGIN_UPGRADE, CREATE, CREATE_2, EMPTY, END_UPGRADE, FIRST, PAGES, SETTINGS, TIMES, VERSION, WAL,
};

/// The tables of a file that may be used.
#[derive(PartialEq)]
enum Tables {
    None,
    /// Of the version before.
    Old,
    /// Of this version, without the times.
    Early,
    Made,
}

/// Prepares a fresh connection, and creates the tables if the file is new or of an older version. A
/// file of another application is refused untouched.
///
/// May be repeated after any failure.
pub(super) fn settle(conn: &Connection, path: &Path, machine: &Machine) -> Result<(), Failure> {
    let read = conn.unchecked_transaction()?;
    let tables = tables(&read, path)?;
    let mode: String = read.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
    read.commit()?;
    if conn.is_readonly("main")? {
        return Err(damaged(path, "it is read-only", "make the file and its directory writable, or give another path").into());
    }
    if mode != "wal" {
        if tables == Tables::None {
            conn.execute_batch(PAGES)?;
        }
        let mode: String = conn.query_row(WAL, [], |row| row.get(0))?;
        if mode != "wal" {
            let why = "its file system has no memory that processes share";
            return Err(damaged(path, why, "give a path on a local disk, or use a redis: store").into());
        }
    }
    conn.execute_batch(SETTINGS)?;
    if tables != Tables::Made {
        make(conn, path, machine)?;
    }
    Ok(())
}

/// Has SQLite open all its files, and writes nothing.
pub(super) fn look(conn: &Connection) -> Result<(), Failure> {
    Ok(conn.query_row(EMPTY, [], |_| Ok(()))?)
}

fn tables(conn: &Connection, path: &Path) -> Result<Tables, Failure> {
    let application: i32 = conn.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let version: i32 = conn.pragma_query_value(None, "user_version", |row| row.get(0))?;
    match (application, version) {
        (APPLICATION, VERSION) => Ok(if conn.prepare(TIMES).is_ok() { Tables::Made } else { Tables::Early }),
        (APPLICATION, 1) => Ok(Tables::Old),
        (APPLICATION, newer) => {
            let why = format!("it is of version {newer}, and this tenure knows version {VERSION}");
            Err(damaged(path, &why, "update tenure, or give another path").into())
        }
        (0, 0) if conn.query_row(EMPTY, [], |row| row.get(0))? => Ok(Tables::None),
        _ => {
            Err(damaged(path, "it belongs to another application", "give the path of another file, which tenure will make")
                .into())
        }
    }
}

fn make(conn: &Connection, path: &Path, machine: &Machine) -> Result<(), Failure> {
    let write = Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
    // Another process may have been first.
    match tables(&write, path)? {
        Tables::Made => return Ok(()),
        Tables::Early => write.execute_batch(ADD_TIMES)?,
        Tables::None => {
            write.execute_batch(CREATE)?;
            write.execute(FIRST, (&machine.boot, &machine.id, booted(), wall_clock()))?;
            write.execute_batch(CREATE_2)?;
        }
        // A process of the older version that has the file open finds at its next call that the
        // tables are not its own.
        Tables::Old => {
            for step in [BEGIN_UPGRADE, CREATE_2, END_UPGRADE, ADD_TIMES] {
                write.execute_batch(step)?;
            }
        }
    }
    write.commit().map_err(Failure::Commit)
}
