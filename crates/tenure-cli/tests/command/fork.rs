//! A process that forks: what its child may do with the parent's locks.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tenure::blocking::Locker;
use tenure::store::Store;
use tenure::{Error, ErrorKind, ReleaseOutcome, State};
use tenure_testkit::{RedisServer, Spawned};

use crate::common::{PATIENCE, Place};

const URL: &str = "TENURE_FORK_URL";

/// The child has neither the threads nor the connections. It would hang, or end the parent's leases.
#[test]
fn the_child_of_a_fork_is_refused_at_once_and_harms_nothing() {
    if let Ok(url) = std::env::var(URL) {
        return in_a_process_that_forks(&url);
    }
    let (place, server) = (Place::new(), RedisServer::start());
    let (source, library) = (place.path("fork.c"), place.path("fork.so"));
    std::fs::write(&source, "#include <unistd.h>\npid_t getppid(void) { return fork(); }\n").unwrap();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let done = Command::new(compiler).args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status().unwrap();
    assert!(done.success());
    for url in [format!("sqlite:{}", place.path("fork.db").display()), server.url()] {
        let mut again = Command::new(std::env::current_exe().unwrap());
        let name = "fork::the_child_of_a_fork_is_refused_at_once_and_harms_nothing";
        again.args(["--exact", name, "--nocapture"]).env("LD_PRELOAD", &library).env(URL, &url).stdin(Stdio::null());
        let output = Spawned::output(&mut again).unwrap();
        assert!(output.status.success(), "{url}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

fn in_a_process_that_forks(url: &str) {
    let mut opened = None;
    let store = async {
        let store: Arc<dyn Store> = tenure_stores::Options::parse(url)?.open().await?;
        opened = Some(Arc::clone(&store));
        Ok(tenure::Locker::new(store))
    };
    let locks = Locker::connect(store).unwrap();
    let take = || locks.mutex("parent").ttl(Duration::from_secs(60)).acquire().unwrap();
    let (guard, dropped) = (take(), locks.mutex("other").acquire().unwrap());
    // It is fork here.
    match std::os::unix::process::parent_id() {
        0 => {
            let failed = [
                ("verify", refused(guard.verify())),
                ("state", guard.state() == State::Lost),
                ("acquire", refused(locks.mutex("child").acquire())),
                ("inspect", refused(locks.inspect("parent"))),
                ("an old store", refused(over(opened.unwrap()).and_then(|locks| locks.mutex("child").acquire()))),
                ("release", refused(guard.release())),
                ("drop", {
                    drop((dropped, locks));
                    true
                }),
                ("a new store", is_usable(url)),
            ];
            let failed: Vec<_> = failed.iter().filter(|(_, is_right)| !is_right).map(|(what, _)| what).collect();
            eprintln!("wrong in the child: {failed:?}");
            std::process::exit(i32::from(!failed.is_empty()));
        }
        child => {
            let (child, began) = (Pid::from_raw(child.try_into().unwrap()), Instant::now());
            let mut ended = WaitStatus::StillAlive;
            while ended == WaitStatus::StillAlive {
                if began.elapsed() > PATIENCE / 2 {
                    kill(child, Signal::SIGKILL).unwrap();
                }
                std::thread::sleep(Duration::from_millis(5));
                ended = waitpid(child, Some(WaitPidFlag::WNOHANG)).unwrap();
            }
            assert_eq!(ended, WaitStatus::Exited(child, 0), "a hang if it was killed");
            dropped.verify().unwrap();
            assert!(matches!(guard.release().unwrap(), ReleaseOutcome::Released), "the child has released it");
        }
    }
}

fn refused<T>(answer: Result<T, Error>) -> bool {
    answer.is_err_and(|error| error.kind() == ErrorKind::Invalid && error.to_string().contains("fork"))
}

fn over(store: Arc<dyn Store>) -> Result<Locker, Error> {
    Locker::connect(async { Ok(tenure::Locker::new(store)) })
}

/// The child opens a store of its own, in which the parent holds.
fn is_usable(url: &str) -> bool {
    let locks = Locker::connect(tenure_stores::connect(url)).unwrap();
    let is_taken = ["parent", "other"].map(|name| locks.mutex(name).try_acquire().unwrap().is_none());
    is_taken == [true, true] && locks.mutex("child").acquire().is_ok()
}
