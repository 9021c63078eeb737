//! Names of files that come to mean others, while a file is opened and after: a lock that nobody else sees excludes nobody.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tenure::ErrorKind;
use tenure::store::{ReleaseReply, RenewReply, Store as _};
use tenure_sql::sqlite::open;

use crate::child::{command, finish, start_mounted};
use crate::common::{busy, fresh, granted, lease, one_line, owner, request, wait_until_closed};

fn beside(path: &Path, end: &str) -> std::path::PathBuf {
    format!("{}{end}", path.display()).into()
}

const FILES: [&str; 3] = ["", "-wal", "-shm"];

fn remove(path: &Path, ends: &[&str]) {
    for end in ends {
        let _ = fs::remove_file(beside(path, end));
    }
}

/// The file goes at any moment of the opening: a process that has it open then works in the one that others see.
#[tokio::test]
async fn a_file_that_is_replaced_while_it_is_opened_is_followed() {
    let (_dir, path) = fresh();
    for round in 0..150_u64 {
        let store = std::thread::scope(|scope| {
            let replacing = scope.spawn(|| {
                for n in 1..=3 {
                    std::thread::sleep(Duration::from_micros(round * n * 37 % 1_500));
                    remove(&path, &FILES);
                    // Another process is there first.
                    drop(open(&path));
                }
            });
            let store = open(&path).unwrap();
            replacing.join().unwrap();
            store
        });
        // What was replaced after it was opened is seen at the next call.
        let name = format!("round {round}");
        granted(&store, &request(&name, &owner())).await;
        busy(&open(&path).unwrap(), &request(&name, &owner())).await;
    }
}

/// Another process makes new files between SQLite's look at a name and ours, which strace(1) holds apart.
async fn is_followed_behind_sqlite(replaced: &[&str]) {
    let (_dir, path) = fresh();
    drop(open(&path).unwrap());
    wait_until_closed(&path);
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-o", "/dev/null", "-P"]).arg(beside(&path, "-shm"));
    strace.args(["-e", "trace=openat", "-e", "inject=openat:delay_exit=3000000:when=1"]);
    strace.arg(std::env::current_exe().unwrap());
    let child = command(strace, "take", &path);
    let tracer = child.id();
    let begun = Instant::now();
    while !is_open_in_a_child(tracer, &beside(&path, "-shm")) {
        assert!(begun.elapsed() < Duration::from_secs(20), "the child does not open the file");
        std::thread::sleep(Duration::from_millis(1));
    }
    remove(&path, replaced);
    let store = open(&path).unwrap();
    finish(vec![child]);
    busy(&store, &request("x", &owner())).await;
}

#[tokio::test]
async fn a_file_that_is_replaced_behind_sqlite_is_followed() {
    is_followed_behind_sqlite(&FILES).await;
}

/// As `rm locks.db*` does when another process makes the file anew in its midst.
#[tokio::test]
async fn companions_that_are_replaced_behind_sqlite_are_followed() {
    is_followed_behind_sqlite(&["-wal", "-shm"]).await;
}

fn is_open_in_a_child(parent: u32, path: &Path) -> bool {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    let files = |child: &str| fs::read_dir(format!("/proc/{child}/fd")).into_iter().flatten().flatten();
    let mut files = children.split_whitespace().flat_map(files).filter_map(|fd| fs::read_link(fd.path()).ok());
    files.any(|file| file == path)
}

/// Whichever call is the first after it: a holder that renewed in the deleted file would go on beside the next one.
#[tokio::test]
async fn every_call_looks_whether_the_file_was_replaced() {
    for call in ["renew", "release", "inspect", "acquire", "acquire all"] {
        let (_dir, path) = fresh();
        let (store, a, b) = (open(&path).unwrap(), owner(), owner());
        granted(&store, &request("x", &a)).await;
        remove(&path, &FILES);
        let held = lease("x", &a);
        match call {
            "renew" => assert_eq!(store.renew(&[held]).await.remove(0).unwrap(), RenewReply::Gone),
            "release" => assert_eq!(store.release(&held, Duration::ZERO).await.unwrap(), ReleaseReply::NotHeld),
            "inspect" => assert_eq!(store.inspect(None).await.unwrap(), []),
            "acquire" => assert!(granted(&store, &request("x", &b)).await.fence.is_some()),
            _ => assert!(store.acquire_all(&[request("x", &b)]).await.unwrap().is_some()),
        }
    }
}

/// SQLite would work on in a log, or beside an index of it, that nobody else has.
#[tokio::test]
async fn a_companion_that_is_removed_alone_is_noticed() {
    for end in ["-wal", "-shm"] {
        let (_dir, path) = fresh();
        let (store, before) = (open(&path).unwrap(), owner());
        granted(&store, &request("x", &before)).await;
        fs::remove_file(beside(&path, end)).unwrap();
        // Without the log that belongs to the index nobody can begin, until those who had it open have looked.
        let other = open(&path).inspect_err(|error| assert!(one_line(error).contains("-wal companion"), "{end}")).ok();
        granted(&store, &request("z", &owner())).await;
        let other = other.unwrap_or_else(|| open(&path).unwrap());
        granted(&other, &request("y", &owner())).await;
        busy(&store, &request("y", &owner())).await;
        busy(&other, &request("z", &owner())).await;
        crate::common::check_integrity(&path);
    }
}

/// Of the file as a link, the directory as a link, and the directory itself.
#[tokio::test]
async fn a_path_that_leads_elsewhere_is_followed() {
    let (dir, _) = fresh();
    let [one, two, link] = ["one", "two", "link"].map(|name| dir.path().join(name));
    let relink = |to: &Path, link: &Path| {
        let _ = fs::remove_file(link);
        std::os::unix::fs::symlink(to, link).unwrap();
    };
    fs::create_dir(&one).unwrap();
    fs::create_dir(&two).unwrap();
    relink(&one, &link);
    let store = open(link.join("locks.db")).unwrap();
    let file = dir.path().join("file");
    relink(&one.join("locks.db"), &file);
    let by_file = open(&file).unwrap();
    granted(&store, &request("x", &owner())).await;
    busy(&by_file, &request("x", &owner())).await;
    relink(&two, &link);
    relink(&two.join("locks.db"), &file);
    granted(&store, &request("x", &owner())).await;
    busy(&by_file, &request("x", &owner())).await;
    busy(&open(two.join("locks.db")).unwrap(), &request("x", &owner())).await;
    fs::rename(&two, dir.path().join("three")).unwrap();
    fs::create_dir(&two).unwrap();
    granted(&store, &request("x", &owner())).await;
    busy(&open(two.join("locks.db")).unwrap(), &request("x", &owner())).await;
}

fn refused(path: &Path, why: &str) {
    let error = open(path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    let text = one_line(&error);
    assert!(text.contains(why) && text.contains("; "), "{text}");
}

/// Each name would have a log of its own.
#[test]
fn a_file_with_two_names_is_refused() {
    let (dir, path) = fresh();
    let store = open(&path).unwrap();
    let other = dir.path().join("other.db");
    fs::hard_link(&path, &other).unwrap();
    for name in [&path, &other] {
        refused(name, "more than one name");
    }
    fs::remove_file(&other).unwrap();
    drop(store);
    wait_until_closed(&path);
    drop(open(&path).unwrap());
}

/// As a container has it that was given the file and not its directory.
#[test]
fn a_file_that_is_mounted_without_its_companions_is_refused() {
    let (dir, path) = fresh();
    drop(open(&path).unwrap());
    let inside = dir.path().join("inside.db");
    fs::write(&inside, "").unwrap();
    let mount = format!("mount --bind {} {}", path.display(), inside.display());
    finish(vec![start_mounted(&mount, "alone", &inside)]);
}
