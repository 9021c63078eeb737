//! Other processes: this test binary once more, told by its environment what to do.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use tenure::store::{AcquireReply, Enqueue, Grant, Request, Store as _};
use tenure::{BootTime, Locker};
use tenure_sql::SqliteStore;
use tenure_sql::sqlite::{Options, open};
use tenure_testkit::Spawned;
use tenure_testkit::worker::for_long;
use tokio::time::timeout;

use crate::common::{busy, fill, granted, joining, joining_for_long, lease, one_line, owner, patient, request};

const ROLE: &str = "TENURE_SQL_TEST_ROLE";

/// Starts this binary in `role`, on the file at `path`.
pub(crate) fn start(role: &str, path: &Path) -> Spawned {
    command(Command::new(std::env::current_exe().unwrap()), role, path)
}

/// The same in a mount name space of its own, after the shell commands of `mount`.
pub(crate) fn start_mounted(mount: &str, role: &str, path: &Path) -> Spawned {
    start_apart(&[], mount, role, path)
}

/// The same with more words for unshare(1).
pub(crate) fn start_apart(apart: &[&str], mount: &str, role: &str, path: &Path) -> Spawned {
    let mut unshare = Command::new("unshare");
    unshare.args(["-rm"]).args(apart);
    unshare.args(["sh", "-ec", &format!("{mount}; exec \"$0\" \"$@\"")]).arg(std::env::current_exe().unwrap());
    command(unshare, role, path)
}

/// Runs this binary by `command`.
pub(crate) fn command(mut command: Command, role: &str, path: &Path) -> Spawned {
    command.args(["--exact", "child::entry", "--nocapture"]).env(ROLE, role).env("TENURE_SQL_TEST_FILE", path);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    Spawned::spawn(&mut command)
        .expect("cannot start a process of this test (some need strace(1), or unshare(1) and user name spaces)")
}

pub(crate) fn finish(children: Vec<Spawned>) {
    for mut child in children {
        assert!(child.wait().unwrap().success(), "a process of this test failed");
    }
}

/// Not a case: the other processes begin here.
#[tokio::test]
async fn entry() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let path = PathBuf::from(std::env::var_os("TENURE_SQL_TEST_FILE").unwrap());
    match role.as_str() {
        "count" => count(&path).await,
        "first" => first(&path).await,
        "churn" => churn(&path).await,
        "full" => full(&path).await,
        "pass" => pass(&path).await,
        "queue" => queue(&path).await,
        "idle" => idle(&path).await,
        "wait" => {
            wait(&open(&path).unwrap(), &joining("x")).await;
        }
        "read-only" => read_only(&path),
        "busy" => {
            let store = open(&path).unwrap();
            busy(&store, &request("x", &owner())).await;
            granted(&store, &request(&owner().to_string(), &owner())).await;
        }
        "share" => {
            let store = Options::new(&path).mode(0o660).group(54_321).open().unwrap();
            granted(&store, &request("x", &owner())).await;
        }
        "take" => {
            granted(&open(&path).unwrap(), &request("x", &owner())).await;
        }
        "alone" => {
            let error = open(&path).unwrap_err();
            assert_eq!(error.kind(), tenure::ErrorKind::Damaged, "{error}");
            assert!(one_line(&error).contains("mount its directory"), "{error}");
        }
        "use all" => crate::faults::use_all(&path, false).await,
        "use all once" => crate::faults::use_all(&path, true).await,
        "stranger" => {
            let error = open(&path).unwrap_err();
            assert_eq!(error.kind(), tenure::ErrorKind::Damaged, "{error}");
            assert!(one_line(&error).contains("belongs to another user (0) and is not open"), "{error}");
        }
        "turned away" => turned_away(&open(&path).unwrap_err()),
        other => panic!("no role {other:?}"),
    }
}

/// Adds to a number in a file that nothing but the lock protects.
async fn count(path: &Path) {
    let locks = Locker::new(patient(path));
    let (number, log) = (path.with_extension("number"), path.with_extension("log"));
    for _ in 0..50 {
        let guard = for_long(async || locks.mutex("counter").acquire().await.unwrap()).await;
        let read: u64 = fs::read_to_string(&number).unwrap().parse().unwrap();
        tokio::time::sleep(Duration::from_micros(100)).await;
        let mut log = OpenOptions::new().append(true).open(&log).unwrap();
        writeln!(log, "{}", guard.fence().unwrap()).unwrap();
        fs::write(&number, (read + 1).to_string()).unwrap();
        let released = guard.release().await.unwrap();
        assert!(matches!(released, tenure::ReleaseOutcome::Released), "{released:?}");
    }
}

/// Waits in the queue for what `request` asks, as a locker does.
async fn wait(store: &SqliteStore, request: &Request) -> Grant {
    let keeping = request.clone().with_enqueue(Enqueue::Heartbeat);
    let mut answer = store.acquire(request).await.unwrap();
    let mut notices = store.watch(request).await.unwrap();
    loop {
        match answer {
            AcquireReply::Granted(grant) => return grant,
            AcquireReply::Busy(busy) => {
                assert!(busy.position.is_some(), "its place has lapsed");
                drop(timeout(busy.poll_interval, notices.next()).await);
            }
            other @ AcquireReply::Refused { .. } => panic!("{other:?}"),
        }
        answer = store.acquire(&keeping).await.unwrap();
    }
}

/// Adds to a number that nothing but the queue protects, and logs the fences.
async fn queue(path: &Path) {
    let (store, number) = (patient(path), path.with_extension("number"));
    for _ in 0..50 {
        let request = joining_for_long("x");
        let grant = wait(&store, &request).await;
        let read: u64 = fs::read_to_string(&number).unwrap().parse().unwrap();
        tokio::time::sleep(Duration::from_micros(100)).await;
        let mut log = OpenOptions::new().append(true).open(path.with_extension("log")).unwrap();
        writeln!(log, "{}", grant.fence.unwrap()).unwrap();
        fs::write(&number, (read + 1).to_string()).unwrap();
        store.release(&lease("x", &request.owner), Duration::ZERO).await.unwrap();
    }
}

/// Takes turns with another process, and logs how long each hand-over took, in microseconds.
async fn pass(path: &Path) {
    let (store, ball) = (patient(path), path.with_extension("ball"));
    let (me, mut log) = (std::process::id().to_string(), Vec::new());
    for _ in 0..200 {
        let request = joining_for_long("x");
        wait(&store, &request).await;
        let now = BootTime::now().since_boot().as_micros();
        let thrown = fs::read_to_string(&ball).unwrap();
        if let Some((by, at)) = thrown.split_once(' ').filter(|(by, _)| *by != me) {
            writeln!(log, "{by} {}", now - at.parse::<u128>().unwrap()).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        fs::write(&ball, format!("{me} {}", BootTime::now().since_boot().as_micros())).unwrap();
        store.release(&lease("x", &request.owner), Duration::ZERO).await.unwrap();
    }
    OpenOptions::new().append(true).open(path.with_extension("log")).unwrap().write_all(&log).unwrap();
}

/// Waits, and logs what that costs: nanoseconds of CPU, and of time.
async fn idle(path: &Path) {
    let store = open(path).unwrap();
    let request = joining_for_long("x");
    assert!(matches!(store.acquire(&request).await.unwrap(), AcquireReply::Busy(_)));
    let (cpu, began) = (cpu_nanos(), Instant::now());
    wait(&store, &request).await;
    let line = format!("{} {}", cpu_nanos() - cpu, began.elapsed().as_nanos());
    fs::write(path.with_extension("log"), line).unwrap();
}

/// CPU time that all threads of this process have used.
fn cpu_nanos() -> u64 {
    let threads = fs::read_dir("/proc/self/task").unwrap().flatten();
    let used = threads.filter_map(|thread| fs::read_to_string(thread.path().join("schedstat")).ok());
    used.map(|line| line.split(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

/// Opens a file that all make at the same moment, and takes a name each.
async fn first(path: &Path) {
    while !path.with_extension("go").exists() {
        std::hint::spin_loop();
    }
    let begun = Instant::now();
    let store = patient(path);
    let opened = begun.elapsed();
    let owner = owner();
    granted(&store, &request(&owner.to_string(), &owner)).await;
    let acquired = begun.elapsed();
    store.release(&lease(&owner.to_string(), &owner), Duration::ZERO).await.unwrap();
    let line = format!("{} {} {}\n", opened.as_micros(), acquired.as_micros(), begun.elapsed().as_micros());
    OpenOptions::new().append(true).open(path.with_extension("log")).unwrap().write_all(line.as_bytes()).unwrap();
}

/// Takes, renews and frees names until it is killed, and opens the file anew now and then.
async fn churn(path: &Path) {
    loop {
        let store = tenure_sql::sqlite::open(path).unwrap();
        for n in 0..200_u32 {
            let (owner, name) = (owner(), format!("n{}", n % 40));
            let short = request(&name, &owner).with_ttl(Duration::from_millis(120));
            // With a ttl this short, the time for one call is 20 ms: that it is not always enough for five at once is no fault.
            let done = |error: &tenure::Error| assert!(error.is_transient() && !error.may_have_been_applied(), "{error}");
            match store.acquire(&short).await {
                Ok(AcquireReply::Granted(_)) => {
                    let lease = lease(&name, &owner).with_ttl(short.ttl);
                    let _ = store.renew(std::slice::from_ref(&lease)).await.remove(0).inspect_err(done);
                    let _ = store.release(&lease, Duration::ZERO).await.inspect_err(done);
                }
                other => drop(other.inspect_err(done)),
            }
        }
    }
}

/// A disk that fills up takes nothing and loses nothing.
async fn full(path: &Path) {
    let store = tenure_sql::sqlite::open(path).unwrap();
    let kept = owner();
    granted(&store, &request("kept", &kept)).await;
    let ballast = path.with_file_name("ballast");
    fill(&ballast);
    let mut taken = HashMap::new();
    let (refused, error) = loop {
        let owner = owner();
        match store.acquire(&request(&owner.to_string(), &owner)).await {
            Ok(AcquireReply::Granted(_)) => drop(taken.insert(owner.to_string(), owner)),
            Ok(other) => panic!("{other:?}"),
            Err(error) => break (owner, error),
        }
        assert!(taken.len() < 10_000, "the disk does not get full");
    };
    assert_eq!(error.kind(), tenure::ErrorKind::Damaged);
    assert!(one_line(&error).contains("the disk is full"), "{error}");
    assert!(!error.may_have_been_applied(), "{error}");
    // What is left of the last block has room for a change smaller than a grant.
    let mut left = 4;
    let renewal = loop {
        left -= 1;
        match store.renew(&[lease("kept", &kept)]).await.remove(0) {
            Ok(_) => assert!(left > 0, "a full disk takes renewals"),
            Err(error) => break error,
        }
    };
    for error in [renewal, store.release(&lease("kept", &kept), Duration::ZERO).await.unwrap_err()] {
        assert_eq!((error.kind(), error.may_have_been_applied()), (tenure::ErrorKind::Damaged, false), "{error}");
    }
    let held: HashMap<_, _> =
        store.inspect(None).await.unwrap().into_iter().map(|e| (e.name.to_string(), e.holders[0].owner.clone())).collect();
    taken.insert("kept".into(), kept.clone());
    assert_eq!(held, taken, "and the refused {refused} is not held");
    fs::remove_file(ballast).unwrap();
    store.renew(&[lease("kept", &kept)]).await.remove(0).unwrap();
    granted(&store, &request(&refused.to_string(), &refused)).await;
    crate::common::check_integrity(path);
}

/// Told that the file is another machine's: which two, and what to do.
pub(crate) fn turned_away(error: &tenure::Error) {
    assert_eq!((error.kind(), error.may_have_been_applied()), (tenure::ErrorKind::Damaged, false), "{error}");
    let text = one_line(error);
    for word in ["two machines", "boot", "redis", "delete the file"] {
        assert!(text.contains(word), "no word of {word:?}: {text}");
    }
}

fn read_only(path: &Path) {
    let error = tenure_sql::sqlite::open(path).unwrap_err();
    assert_eq!(error.kind(), tenure::ErrorKind::Damaged);
    let text = one_line(&error);
    assert!(text.contains("read-only") || text.contains("cannot be made there"), "{text}");
    assert!(text.contains("writable"), "{text}");
}
