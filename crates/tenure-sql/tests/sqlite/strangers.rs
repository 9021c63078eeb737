//! Attacks by another user of the machine on a lock file, tried as that user (`nobody`, by setpriv(1), which takes root).

use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use tempfile::TempDir;
use tenure::store::{AcquireReply, Enqueue, Notice, Request, Store as _};
use tenure_sql::SqliteStore;
use tenure_sql::sqlite::{Options, open};
use tokio::time::timeout;

use crate::child::command;
use crate::common::{busy, granted, joining, joining_for_long, lease, one_line, owner, request, wait_until_closed};

/// A directory as `/tmp` is, and a file in it that does not exist yet.
fn sticky() -> (TempDir, std::path::PathBuf) {
    let dir = TempDir::new().unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o1777)).unwrap();
    let path = dir.path().join("locks.db");
    (dir, path)
}

fn as_nobody() -> Command {
    let mut setpriv = Command::new("setpriv");
    setpriv.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    setpriv
}

/// This binary is where nobody else may look.
fn stranger(role: &str, path: &Path) {
    let copy = path.with_file_name("binary");
    if !copy.exists() {
        // Not by this process: one that it starts meanwhile would have the copy open, and nobody could run it.
        assert!(Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&copy).status().unwrap().success());
    }
    let mut setpriv = as_nobody();
    setpriv.arg(&copy);
    let mut child = command(setpriv, role, path);
    let said = "the stranger failed; setpriv(1) may change the user only for root";
    assert!(child.wait().unwrap().success(), "{said}");
}

/// The same as a user who is in a group.
fn as_member(group: u32, role: &str, path: &Path) {
    let copy = path.with_file_name("binary");
    assert!(Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&copy).status().unwrap().success());
    let mut setpriv = Command::new("setpriv");
    setpriv.args(["--reuid=65534", "--regid=65534", &format!("--groups={group}")]).arg(&copy);
    assert!(command(setpriv, role, path).wait().unwrap().success(), "the member failed; setpriv(1) takes root");
}

/// Runs a line of shell; whether all of it could be done.
fn may(line: &str, path: &Path) -> bool {
    let status = as_nobody().args(["sh", "-c", line, "sh"]).arg(path).status().unwrap();
    // setpriv itself fails with 127 and the like.
    assert!(matches!(status.code(), Some(0..=2)), "{line}: {status}; setpriv(1) may change the user only for root");
    status.success()
}

fn wake(path: &Path) -> String {
    format!("{}-wake", path.display())
}

async fn hand_over(holder: (&SqliteStore, &Request), waiter: (&SqliteStore, &Request)) -> Duration {
    let mut notices = waiter.0.watch(waiter.1).await.unwrap();
    let begun = Instant::now();
    holder.0.release(&lease("x", &holder.1.owner), Duration::ZERO).await.unwrap();
    let notice = timeout(Duration::from_secs(3), notices.next()).await;
    assert!(matches!(notice, Ok(Some(Notice::Granted { ref owner, .. })) if *owner == waiter.1.owner), "{notice:?}");
    begun.elapsed()
}

/// A file that we made is its owner's alone.
#[tokio::test]
async fn a_stranger_can_neither_read_nor_change_the_file() {
    let (_dir, path) = sticky();
    let store = open(&path).unwrap();
    let (held, waiting) = (joining("x"), joining_for_long("x"));
    granted(&store, &held).await;
    busy(&store, &waiting).await;
    for end in ["", "-wal", "-shm"] {
        let file = format!("{}{end}", path.display());
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{file}");
        let lines = [
            "cat \"$1\" >",
            "echo x >> \"$1\"",
            "rm -f \"$1\"",
            "mv \"$1\" \"$1.other\"",
            "truncate -s 0 \"$1\"",
            "chmod 666 \"$1\"",
        ];
        for line in lines {
            assert!(
                !may(&format!("{{ {}; }} 2>/dev/null", line.replace(" >", " > /dev/null")), Path::new(&file)),
                "{line} {file}"
            );
        }
    }
    for line in ["ls \"$1\"-wake/", "rm -rf \"$1\"-wake", "touch \"$1\"-wake/0123456789abcdef", "mv \"$1\"-wake \"$1\"-other"] {
        assert!(!may(&format!("{line} 2>/dev/null"), &path), "{line}");
    }
    stranger("stranger", &path);
    hand_over((&store, &held), (&store, &waiting)).await;
}

/// Users share a file whose mode lets them write to it; what is made beside it has the same.
#[tokio::test]
async fn users_share_a_file_that_was_made_for_them() {
    for (made, mode) in [(None, 0o600), (Some(0o660), 0o660), (Some(0o666), 0o666)] {
        let (_dir, path) = sticky();
        if let Some(made) = made {
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(made)).unwrap();
        }
        let store = open(&path).unwrap();
        granted(&store, &request("x", &owner())).await;
        for end in ["", "-wal", "-shm"] {
            let found = fs::metadata(format!("{}{end}", path.display())).unwrap().permissions().mode();
            assert_eq!(found & 0o777, mode, "{end}: {found:o}");
        }
        if mode == 0o666 {
            stranger("busy", &path);
        }
    }
}

/// A member of the group, with another group of his own, finds all three files open to him; so does the owner what he has made.
#[tokio::test]
async fn a_group_shares_a_file_that_was_asked_for() {
    const GROUP: u32 = 54_321;
    // Of `/tmp`'s kind and without it: where the directory hands its group on, and where it does not.
    for mode in [0o2777, 0o777] {
        let (dir, path) = sticky();
        fs::set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
        let umasked = |what: &str| format!("umask 077; {what}");
        let store = Options::new(&path).group(GROUP).open().unwrap();
        granted(&store, &request("x", &owner())).await;
        for end in ["", "-wal", "-shm"] {
            let found = fs::metadata(format!("{}{end}", path.display())).unwrap();
            assert_eq!((found.mode() & 0o777, found.gid()), (0o660, GROUP), "{end}: {:o}", found.mode());
        }
        assert!(!may(&umasked("cat \"$1\" > /dev/null 2>&1"), &path), "one who is not in the group");
        as_member(GROUP, "busy", &path);
        drop(store);
        wait_until_closed(&path);
        // The next user makes them again.
        fs::remove_file(format!("{}-wal", path.display())).unwrap();
        fs::remove_file(format!("{}-shm", path.display())).unwrap();
        as_member(GROUP, "take", &path);
        // Before root opens them, which would give them to the owner of the file.
        for end in ["-wal", "-shm"] {
            let found = fs::metadata(format!("{}{end}", path.display())).unwrap();
            let rights = (found.mode() & 0o777, found.uid(), found.gid());
            assert_eq!(rights, (0o660, 65_534, GROUP), "{end}: {:o}", found.mode());
        }
        granted(&open(&path).unwrap(), &request("z", &owner())).await;
        let left = fs::read_dir(&dir).unwrap().flatten().map(|entry| entry.file_name()).collect::<Vec<_>>();
        assert!(left.iter().all(|name| !name.to_string_lossy().starts_with(".tenure")), "{left:?}");
    }
}

/// The mode and the group are set on the file that was made: a name in a shared directory may come to mean another file.
#[test]
fn a_shared_file_is_made_without_its_name() {
    let (dir, path) = sticky();
    let trace = dir.path().join("trace");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-e", "trace=chmod,fchmodat,chown,fchownat,lchown,rename,renameat,renameat2", "-o"]).arg(&trace);
    strace.arg(std::env::current_exe().unwrap());
    assert!(command(strace, "share", &path).wait().unwrap().success(), "strace(1) is missing, or the child failed");
    let trace = fs::read_to_string(trace).unwrap();
    let by_name: Vec<_> = trace.lines().filter(|line| line.contains("chmod") || line.contains("chown")).collect();
    let file = |line: &&str| line.contains("/proc/self/fd/") || line.contains("\"\"");
    assert!(by_name.len() >= 2 && by_name.iter().all(file), "{trace}");
    assert!(trace.contains("RENAME_NOREPLACE"), "{trace}");
}

/// A user who may read a file may lock it, and SQLite's locks are such locks: if others can read a
/// file, they can keep writers out for as long as they like. Nothing is granted then, and a holder is notified at its deadline.
#[tokio::test]
async fn who_may_read_the_file_may_stand_in_the_way() {
    let (_dir, path) = sticky();
    let (a, b) = (owner(), owner());
    let store = open(&path).unwrap();
    granted(&store, &request("x", &a)).await;
    for end in ["", "-wal", "-shm"] {
        fs::set_permissions(format!("{}{end}", path.display()), Permissions::from_mode(0o644)).unwrap();
    }
    let lock = "import fcntl,sys,struct,time\nf=open(sys.argv[1]+'-shm','rb')\n\
                fcntl.fcntl(f,fcntl.F_SETLK,struct.pack('hhqqi4x',fcntl.F_RDLCK,0,0,0,0))\nprint(1,flush=True)\ntime.sleep(60)";
    let mut nobody = as_nobody();
    nobody.args(["/usr/bin/python3", "-c", lock]).arg(&path).stdout(Stdio::piped());
    let mut child = nobody.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "1\n", "python3 could not lock");
    let error = store.acquire(&request("y", &b)).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_been_applied()), (tenure::ErrorKind::Overloaded, false), "{error}");
    child.kill().unwrap();
    child.wait().unwrap();
    granted(&store, &request("y", &b)).await;
    busy(&store, &request("x", &b)).await;
}

/// A stranger's file beside the lock file is not used, whatever is in it: he may write to it.
#[tokio::test]
async fn a_companion_of_a_stranger_is_refused() {
    for end in ["-wal", "-shm"] {
        let (_dir, path) = sticky();
        drop(open(&path).unwrap());
        wait_until_closed(&path);
        fs::remove_file(format!("{}{end}", path.display())).unwrap();
        assert!(may(&format!("umask 000; head -c 40000 /dev/urandom > \"$1\"{end}"), &path));
        let text = one_line(&open(&path).unwrap_err());
        assert!(text.contains("belongs to another user"), "{text}");
        fs::remove_file(format!("{}{end}", path.display())).unwrap();
        granted(&open(&path).unwrap(), &request("x", &owner())).await;
    }
}

/// A stranger puts something where we make our files, before there are any: we do not write where he leads us, and say so.
#[tokio::test]
async fn what_a_stranger_plants_is_not_followed() {
    // For the sockets: a directory of his, a link to a directory of ours. The wait is slower, and nobody is misled.
    for plant in ["mkdir -m 777 \"$1\"-wake", "ln -s \"$1\".ours \"$1\"-wake"] {
        let (dir, path) = sticky();
        let ours = dir.path().join("locks.db.ours");
        fs::create_dir(&ours).unwrap();
        assert!(may(plant, &path));
        let store = open(&path).unwrap();
        let (held, waiting) = (joining("x"), joining_for_long("x"));
        granted(&store, &held).await;
        let told = busy(&store, &waiting).await;
        assert!(told.poll_interval < Duration::from_millis(100), "it trusts a directory of another user: {plant}");
        assert_eq!(fs::read_dir(&ours).unwrap().count(), 0, "{plant}");
        assert!(fs::symlink_metadata(wake(&path)).is_ok());
        store.release(&lease("x", &held.owner), Duration::ZERO).await.unwrap();
        let keeping = waiting.clone().with_enqueue(Enqueue::Heartbeat);
        assert!(matches!(store.acquire(&keeping).await.unwrap(), AcquireReply::Granted(_)));
    }
}

/// Of one's own: a flood of datagrams, by somebody with the right to send them.
#[tokio::test]
async fn a_flood_of_datagrams_makes_nothing_but_work() {
    let (_dir, path) = sticky();
    let store = open(&path).unwrap();
    let (held, waiting) = (joining("x"), joining_for_long("x"));
    granted(&store, &held).await;
    busy(&store, &waiting).await;
    let socket = fs::read_dir(wake(&path)).unwrap().next().unwrap().unwrap().path();
    let flood = UnixDatagram::unbound().unwrap();
    flood.set_nonblocking(true).unwrap();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(300) {
        let _ = flood.send_to(format!("1\n1\n{}\nx", waiting.owner).as_bytes(), &socket);
    }
    store.release(&lease("x", &held.owner), Duration::ZERO).await.unwrap();
    let keeping = waiting.clone().with_enqueue(Enqueue::Heartbeat);
    assert!(matches!(store.acquire(&keeping).await.unwrap(), AcquireReply::Granted(_)));
}

/// A user who opened it while it was open to all could lock everybody out for as long as he liked, whatever its mode became.
#[test]
fn a_new_file_is_at_no_moment_open_to_others() {
    let (dir, path) = sticky();
    let trace = dir.path().join("trace");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-e", "trace=open,openat,mknod,mknodat", "-o"]).arg(&trace).arg("-P").arg(&path);
    strace.arg(std::env::current_exe().unwrap());
    assert!(command(strace, "take", &path).wait().unwrap().success(), "strace(1) is missing, or the child failed");
    let trace = fs::read_to_string(trace).unwrap();
    assert!(trace.contains("S_IFREG|0600") && !trace.contains("O_CREAT"), "{trace}");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}
