//! Faults of a lock file.

use std::fs;
use std::path::Path;
use std::process::Command;

use rusqlite::Connection;
use tenure_testkit::ShiftedClock;
use tenure_testkit::history::Rule;

use super::fixtures::{File, on_file, wrap};
use super::stage::{BELIEF, DOOR, Heir, NEXT, Stage, now, terms};
use super::{broken, fenced, holds};
use crate::Item;

#[rustfmt::skip]
pub(super) fn items() -> Vec<Item> {
    vec![
        fenced("sqlite/11-deleted", "the file is deleted while a lock is held", on_file(deleted)),
        fenced("sqlite/11-older-copy", "the file is replaced by a copy from before the grant", on_file(older_copy)),
        broken("sqlite/12-deleted-clock-back", "the file is deleted, and the wall clock is set back", Rule::FenceOrder,
            on_file(clock_back)),
        holds("sqlite/19-locked-for-a-moment", "another program locks the whole file, not for long",
            on_file(locked_for_a_moment)),
        holds("sqlite/19-locked-for-long", "another program locks the whole file for longer than the validity",
            on_file(locked_for_long)),
        holds("sqlite/35-two-machines", "a machine with the same machine id comes to the file of one that holds",
            on_file(two_machines)),
        holds("sqlite/36-own-boot-id", "a container with a boot id of its own comes to the file", on_file(own_boot_id)),
        fenced("sqlite/29-deleted-row", "somebody deletes the name from the table", on_file(row_deleted)),
        holds("sqlite/31-damaged", "the tables are not as they were made, for longer than the validity", on_file(damaged)),
    ]
}

fn raw(file: &File) -> Connection {
    Connection::open(file.path()).expect("the lock file can be opened")
}

fn run(file: &Connection, sql: &str) {
    file.execute_batch(sql).expect("the lock file can be changed");
}

/// The file with its companions.
fn remove(path: &Path) {
    for end in ["", "-wal", "-shm"] {
        let mut file = path.as_os_str().to_owned();
        file.push(end);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{}: {error}", path.display()),
            _ => {}
        }
    }
}

fn deleted(stage: &mut Stage<'_>, file: &File) {
    stage.is_taken_away(Heir::Waits, "the file is deleted", || remove(&file.path()));
}

fn older_copy(stage: &mut Stage<'_>, file: &File) {
    let (other, copy) = (stage.far(), file.dir().join("copy.db"));
    stage.warms_up(&other);
    raw(file).execute("VACUUM INTO ?1", [copy.to_str().expect("test paths are UTF-8")]).expect("a copy can be made");
    stage.is_taken_away(Heir::Waits, "the file is a copy from before the grant", || {
        remove(&file.path());
        fs::rename(&copy, file.path()).expect("a file can be renamed");
    });
}

/// In a mount name space with another boot id.
fn elsewhere(file: &File, command: &mut Command) {
    let boot = file.dir().join("boot");
    fs::write(&boot, "11111111-2222-3333-4444-555555555555").expect("a directory of ours can be written");
    let mut unshare = Command::new("unshare");
    let mount = r#"mount --bind "$0" /proc/sys/kernel/random/boot_id; exec "$@""#;
    unshare.args(["-rm", "sh", "-ec", mount]).arg(&boot);
    *command = wrap(unshare, command);
}

/// Both say the same machine id. The file is as a machine wrote it that booted at another time.
fn two_machines(stage: &mut Stage<'_>, file: &File) {
    let first = stage.near().takes(DOOR);
    first.works(&stage.register);
    run(&raw(file), "UPDATE meta SET booted = booted - 1000000000");
    stage.fault("another machine comes to the file");
    let told = stage.near_with(|command| elsewhere(file, command)).fails_to_open(&["Damaged"]);
    stage.holds_true(told.contains("two machines") && told.contains("; "), &told);
    first.renewed(now());
    stage.is_left(&first);
}

/// Its clock is that of the machine, so it waits and is served as others are.
fn own_boot_id(stage: &mut Stage<'_>, file: &File) {
    let a = stage.near();
    let first = a.takes(DOOR);
    first.works(&stage.register);
    stage.fault("the container comes");
    let b = stage.near_with(|command| elsewhere(file, command));
    let second = b.asks(DOOR, terms());
    first.renewed(now());
    stage.ends_well(&first, &second);
}

fn row_deleted(stage: &mut Stage<'_>, file: &File) {
    stage
        .is_taken_away(Heir::Waits, "the row of the door is deleted", || run(&raw(file), "DELETE FROM lock WHERE name = 'door'"));
}

/// The new file begins to count at the wall clock, which is behind.
fn clock_back(stage: &mut Stage<'_>, file: &File) {
    let clock = ShiftedClock::new();
    let a = stage.near();
    let first = a.takes(DOOR);
    first.works(&stage.register);
    clock.shift(-3_600_000);
    remove(&file.path());
    stage.fault("the file is deleted, and the wall clock is an hour behind");
    let b = stage.near_with(|command| clock.apply(command));
    let second = b.takes(DOOR);
    second.tries_to_work(&stage.register);
    second.refused();
    stage.is_left(&second);
}

fn locked_for_a_moment(stage: &mut Stage<'_>, file: &File) {
    let other = raw(file);
    stage.is_away_for_a_moment(|| run(&other, "BEGIN IMMEDIATE"), Some(&|| run(&other, "ROLLBACK")));
}

fn locked_for_long(stage: &mut Stage<'_>, file: &File) {
    let other = raw(file);
    stage.is_away_for_long(|| run(&other, "BEGIN IMMEDIATE"), || run(&other, "ROLLBACK"));
}

/// The waiter gets an error that says what is wrong with the file. The holder goes on until its deadline.
fn damaged(stage: &mut Stage<'_>, file: &File) {
    let (a, b) = (stage.near(), stage.far());
    let first = a.takes(DOOR);
    first.runs(&stage.register);
    let second = b.asks(DOOR, terms());
    stage.some_time();
    run(&raw(file), "ALTER TABLE lock RENAME TO other");
    stage.fault("the table is gone");
    stage.loss_due(BELIEF);
    second.failed("Damaged");
    let lost = first.lost();
    stage.holds_true(first.last_step() <= Some(lost), "the guard let a step go on");
    run(&raw(file), "ALTER TABLE other RENAME TO lock");
    stage.fault("the table is back");
    let third = b.asks(DOOR, terms());
    stage.grant_due(NEXT);
    third.granted();
    stage.is_left(&third);
}
