//! A process that forks: what its child may do with the parent's locks.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tenure::blocking::Locker;
use tenure::store::Store;
use tenure::{Error, ErrorKind, ReleaseOutcome, Share, State};
use tenure_testkit::{Preload, Spawned};

use crate::common::PATIENCE;

const URL: &str = "TENURE_FORK_URL";
const LONG: Duration = Duration::from_secs(60);

/// The child has neither the threads nor the connections. It would hang, or end the parent's leases.
#[test]
fn the_child_of_a_fork_is_refused_at_once_and_harms_nothing() {
    if let Ok(url) = std::env::var(URL) {
        return in_a_process_that_forks(&url);
    }
    let library = Preload::new("#include <unistd.h>\npid_t getppid(void) { return fork(); }\n");
    let forks = |url: &str| {
        let mut again = Command::new(std::env::current_exe().unwrap());
        let name = "fork::the_child_of_a_fork_is_refused_at_once_and_harms_nothing";
        library.apply(again.args(["--exact", name, "--nocapture"]).env(URL, url).stdin(Stdio::null()));
        let output = Spawned::output(&mut again).unwrap();
        assert!(output.status.success(), "{url}: {}", String::from_utf8_lossy(&output.stderr));
    };
    crate::stores::everywhere(forks);
}

fn in_a_process_that_forks(url: &str) {
    let mut opened = None;
    let store = async {
        let store: Arc<dyn Store> = tenure_stores::Options::parse(url)?.open().await?;
        let locks = tenure::Locker::new(Arc::clone(&store));
        let (ids, guard) = (locks.ids("ids"), locks.mutex("third").acquire().await?);
        // The child would have the rest of a block as well.
        let id = ids.next().await;
        assert!(id.is_ok() == store.features().fence, "{id:?}");
        opened = Some((store, locks.clone(), ids, guard));
        Ok(locks)
    };
    let locks = Locker::connect(store).unwrap();
    let (store, waking, ids, third) = opened.unwrap();
    let take = |name: &str| locks.mutex(name).ttl(LONG).acquire().unwrap();
    let [guard, dropped, leased] = ["parent", "other", "lease"].map(take);
    let lease = leased.into_lease();
    // It is fork here.
    match std::os::unix::process::parent_id() {
        0 => {
            let election = waking.election("election");
            let failed = [
                ("verify", refused(guard.verify())),
                ("extend", refused(guard.extend(LONG))),
                ("downgrade", refused(guard.downgrade(Share::MUTEX))),
                ("state", guard.state() == State::Lost && guard.end_reason().is_some()),
                ("lost", at_once(third.lost()).is_some() && third.cancellation().is_cancelled()),
                ("run", refused(asked(third.run(std::future::pending::<()>())))),
                ("try", refused(locks.mutex("child").try_acquire())),
                ("lock", refused(locks.mutex("child").wait(LONG).acquire())),
                ("lock without a limit", refused(locks.mutex("child").acquire())),
                ("all", refused(locks.mutex("child").and("second").wait(LONG).acquire())),
                ("all at once", refused(locks.mutex("child").and("second").try_acquire())),
                ("adopt", refused(locks.adopt(&lease))),
                ("renew a lease", refused(locks.renew(&lease))),
                ("release a lease", refused(locks.release(&lease))),
                ("inspect", refused(locks.inspect("parent"))),
                ("list", refused(locks.list())),
                ("release all", locks.release_all().is_empty()),
                ("flush", {
                    locks.flush_releases();
                    true
                }),
                ("ids", refused(asked(ids.next()))),
                ("campaign", refused(asked(election.candidate("child").campaign()))),
                ("watch", refused(asked(async { election.observe().next().await.unwrap() }))),
                ("lock in a runtime", refused(asked(waking.mutex("child").wait(LONG).acquire()))),
                ("an old store", refused(over(store).and_then(|locks| locks.mutex("child").acquire()))),
                ("release", refused(guard.release()) && refused(asked(third.release()))),
                ("drop", {
                    drop((dropped, locks, waking));
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
            assert!(matches!(locks.release(&lease).unwrap(), ReleaseOutcome::Released), "the child has released the lease");
            assert_eq!(third.state(), State::Held);
        }
    }
}

fn refused<T>(answer: Result<T, Error>) -> bool {
    answer.is_err_and(|error| error.kind() == ErrorKind::Invalid && error.to_string().contains("fork"))
}

/// The answer of a call in a runtime of its own.
fn asked<T>(call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    at_once(call).unwrap_or_else(|| Err(Error::unreachable("it waits")))
}

fn at_once<T>(call: impl Future<Output = T>) -> Option<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(5), call).await.ok() })
}

fn over(store: Arc<dyn Store>) -> Result<Locker, Error> {
    Locker::connect(async { Ok(tenure::Locker::new(store)) })
}

/// The child opens a store of its own, in which the parent holds.
fn is_usable(url: &str) -> bool {
    let locks = Locker::connect(tenure_stores::connect(url)).unwrap();
    let is_taken = ["parent", "other", "third"].map(|name| locks.mutex(name).try_acquire().unwrap().is_none());
    is_taken == [true; 3] && locks.mutex("child").acquire().is_ok()
}
