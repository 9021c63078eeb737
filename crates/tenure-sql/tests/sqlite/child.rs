//! Other processes: this test binary once more, told by its environment what to do.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tenure::{Acquired, Request, Store as _};

use crate::common::{fill, granted, lease, one_line, owner, request};

const ROLE: &str = "TENURE_SQL_TEST_ROLE";

/// Starts this binary in `role`, on the file at `path`.
pub(crate) fn start(role: &str, path: &Path) -> Child {
    command(Command::new(std::env::current_exe().unwrap()), role, path)
}

/// The same in a mount name space of its own, after the shell commands of `mount`.
pub(crate) fn start_mounted(mount: &str, role: &str, path: &Path) -> Child {
    let mut unshare = Command::new("unshare");
    unshare.args(["-rm", "sh", "-ec", &format!("{mount}; exec \"$0\" \"$@\"")]).arg(std::env::current_exe().unwrap());
    command(unshare, role, path)
}

fn command(mut command: Command, role: &str, path: &Path) -> Child {
    command.args(["--exact", "child::entry", "--nocapture"]).env(ROLE, role).env("TENURE_SQL_TEST_FILE", path);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().expect("cannot start a process of this test (some need unshare(1) and user name spaces)")
}

pub(crate) fn finish(children: Vec<Child>) {
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
        "read-only" => read_only(&path),
        other => panic!("no role {other:?}"),
    }
}

/// Adds to a number in a file that nothing but the lock protects.
async fn count(path: &Path) {
    let locks = tenure_sql::connect(path).await.unwrap();
    let (number, log) = (path.with_extension("number"), path.with_extension("log"));
    for _ in 0..50 {
        let guard = locks.mutex("counter").acquire().await.unwrap();
        let read: u64 = fs::read_to_string(&number).unwrap().parse().unwrap();
        tokio::time::sleep(Duration::from_micros(100)).await;
        let mut log = OpenOptions::new().append(true).open(&log).unwrap();
        writeln!(log, "{}", guard.fence().unwrap()).unwrap();
        fs::write(&number, (read + 1).to_string()).unwrap();
        assert!(matches!(guard.release().await.unwrap(), tenure::Release::Released));
    }
}

/// Opens a file that all make at the same moment, and takes a name each.
async fn first(path: &Path) {
    while !path.with_extension("go").exists() {
        std::hint::spin_loop();
    }
    let begun = Instant::now();
    let store = tenure_sql::sqlite::open(path).unwrap();
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
            let short = Request { ttl: Duration::from_millis(120), ..request(&name, &owner) };
            // With a ttl this short, the time for one call is 20 ms: that it is not always enough for five at once is no fault.
            let done = |error: &tenure::Error| assert!(error.is_transient() && !error.may_have_been_applied(), "{error}");
            match store.acquire(&short).await {
                Ok(Acquired::Granted(_)) => {
                    let lease = tenure::Lease { ttl: short.ttl, ..lease(&name, &owner) };
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
            Ok(Acquired::Granted(_)) => drop(taken.insert(owner.to_string(), owner)),
            Ok(other) => panic!("{other:?}"),
            Err(error) => break (owner, error),
        }
        assert!(taken.len() < 10_000, "the disk does not get full");
    };
    assert_eq!(error.kind(), tenure::ErrorKind::Damaged);
    assert!(one_line(&error).contains("the disk is full"), "{error}");
    assert!(!error.may_have_been_applied(), "{error}");
    for error in [
        store.renew(&[lease("kept", &kept)]).await.remove(0).unwrap_err(),
        store.release(&lease("kept", &kept), Duration::ZERO).await.unwrap_err(),
    ] {
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

fn read_only(path: &Path) {
    let error = tenure_sql::sqlite::open(path).unwrap_err();
    assert_eq!(error.kind(), tenure::ErrorKind::Damaged);
    let text = one_line(&error);
    assert!(text.contains("read-only") || text.contains("cannot be made there"), "{text}");
    assert!(text.contains("writable"), "{text}");
}
