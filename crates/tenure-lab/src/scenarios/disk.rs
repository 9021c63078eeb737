//! Faults of the disk that a lock file is on: nothing is granted, and who holds goes on until its deadline.

use std::fs;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rusqlite::Connection;
use tenure_testkit::history::What;

use super::actor::{Actor, Claim};
use super::fixtures::{File, Mount, on_file, on_mount};
use super::holds;
use super::stage::{BELIEF, DOOR, NEXT, Stage, now, terms};
use crate::Item;

pub(super) fn items() -> Vec<Item> {
    vec![
        holds("sqlite/28-disk-full", "the disk is full for longer than the validity", on_mount(full)),
        holds("sqlite/31-read-only", "the disk becomes read-only for longer than the validity", on_mount(read_only)),
        holds("sqlite/31-corrupt", "the file is overwritten but for its header, for longer than the validity", on_file(corrupt)),
    ]
}

/// The first page, which has the header.
const HEADER: u64 = 1_024;

/// One holds and works, another waits, and the file has been in use for a part of a renewal interval.
fn begin(stage: &mut Stage<'_>, a: &Actor, b: &Actor) -> (Claim, Claim) {
    let first = a.takes(DOOR);
    first.runs(&stage.register);
    let second = b.asks(DOOR, terms());
    stage.some_time();
    (first, second)
}

/// The waiter gets an error that says what is wrong. The holder is notified when its validity has ended.
fn ends(stage: &Stage<'_>, first: &Claim, second: &Claim, word: &str) {
    let told = second.failed("Damaged");
    stage.holds_true(told.contains(word) && told.contains("; "), &told);
    let lost = first.lost_in_time();
    stage.holds_true(first.last_step() <= Some(lost), "the guard let a step go on");
}

/// Both who were there before have it again.
fn is_mended(stage: &Stage<'_>, a: &Actor, b: &Actor) {
    stage.grant_due(NEXT);
    let third = b.takes(DOOR);
    third.renewed(now());
    stage.is_left(&third);
    stage.ends_with_another(a);
}

/// The rest of the last page of the log has space for a renewal or two.
fn full(stage: &mut Stage<'_>, disk: &Mount) {
    let (a, b, c) = (disk.first(), disk.another(stage), disk.another(stage));
    let (first, second) = begin(stage, &a, &b);
    disk.run("! head -c 1M /dev/zero > disk/ballast");
    let refused = |n: u32| {
        let acquisition = c.asks(&format!("other {n}"), terms().fixed());
        matches!(acquisition.answered().what, What::Failed { .. }).then_some(acquisition)
    };
    let refused = (0..100).find_map(refused).expect("the disk is full");
    stage.fault("the disk is full");
    stage.loss_due(3 * BELIEF);
    let told = refused.failed("Damaged");
    stage.holds_true(told.contains("the disk is full"), &told);
    ends(stage, &first, &second, "the disk is full");
    disk.run("rm disk/ballast");
    stage.fault("there is space again");
    is_mended(stage, &a, &b);
}

/// No disk is made read-only while a file on it is being written to; so one that is comes in its place, with what is on it.
fn read_only(stage: &mut Stage<'_>, disk: &Mount) {
    let (a, b) = (disk.first(), disk.another(stage));
    let (first, second) = begin(stage, &a, &b);
    disk.run("cp -a disk copy; mount --bind copy copy; mount -o remount,bind,ro copy; mount --bind copy disk");
    stage.fault("the disk is read-only");
    stage.loss_due(BELIEF);
    let told = disk.another(stage).fails_to_open(&["Damaged"]);
    stage.holds_true(told.contains("read-only"), &told);
    ends(stage, &first, &second, "read-only");
    disk.run("umount -l disk");
    stage.fault("it can be written again");
    is_mended(stage, &a, &b);
}

/// Somebody who writes into the file behind SQLite's back.
struct Vandal {
    /// It has read what the tables are like before they cannot be read any more.
    other: Connection,
    /// To close it before SQLite does would drop SQLite's locks on the file.
    bytes: fs::File,
}

impl Vandal {
    fn of(file: &File) -> Self {
        let other = Connection::open(file.path()).expect("the lock file can be opened");
        other.busy_timeout(Duration::from_secs(5)).expect("a timeout can be set");
        let bytes = fs::OpenOptions::new().read(true).write(true).open(file.path()).expect("the lock file can be opened");
        Self { other, bytes }
    }

    /// Alone in the file, with all of it in one place; `change` gets its bytes, and everybody reads it anew.
    fn overwrites(&self, file: &File, change: impl FnOnce(&fs::File)) {
        let run = |sql: &str| self.other.execute_batch(sql).expect("the lock file can be used");
        loop {
            run("PRAGMA wal_checkpoint(TRUNCATE); BEGIN IMMEDIATE");
            if fs::metadata(file.log()).is_ok_and(|log| log.len() == 0) {
                break;
            }
            run("ROLLBACK");
        }
        change(&self.bytes);
        // Others keep what they have read until something is committed.
        run("PRAGMA user_version = 2; COMMIT");
    }
}

fn corrupt(stage: &mut Stage<'_>, file: &File) {
    let (a, b) = (stage.near(), stage.far());
    let (first, second) = begin(stage, &a, &b);
    let (vandal, mut before) = (Vandal::of(file), Vec::new());
    vandal.overwrites(file, |bytes| {
        let size = bytes.metadata().expect("an open file has a size").len();
        before.resize(usize::try_from(size - HEADER).expect("a small file"), 0);
        bytes.read_exact_at(&mut before, HEADER).expect("the lock file can be read");
        bytes.write_all_at(&vec![0x5a; before.len()], HEADER).expect("the lock file can be written");
    });
    stage.fault("the file is overwritten");
    stage.loss_due(BELIEF);
    let told = stage.far().fails_to_open(&["Damaged"]);
    stage.holds_true(told.contains("corrupt"), &told);
    ends(stage, &first, &second, "corrupt");
    vandal.overwrites(file, |bytes| bytes.write_all_at(&before, HEADER).expect("the lock file can be written"));
    stage.fault("the file is as it was");
    is_mended(stage, &a, &b);
}
