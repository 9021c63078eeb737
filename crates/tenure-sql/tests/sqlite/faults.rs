//! The system refuses one call, or all from one on: each call that the store makes, one after another, by strace(1).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tenure::store::{AcquireReply, Enqueue, ReleaseReply, RenewReply, Request, Store as _};
use tenure::{Error, ErrorKind};
use tenure_sql::SqliteStore;
use tenure_sql::sqlite::open;

use crate::child::{command, finish};
use crate::common::{TTL, check_integrity, fresh, joining_for_long, lease, one_line, owner, raw, request};

/// Content of the file: the holders of each name, whether each was renewed, and the number of waiters.
type State = BTreeMap<String, (Vec<(String, bool)>, u64)>;

/// Nothing but a fault that goes on keeps the file from being read.
async fn state(store: &SqliteStore) -> Option<State> {
    let mut entries = store.inspect(None).await;
    if entries.is_err() {
        entries = store.inspect(None).await;
    }
    let state = entries.ok()?.into_iter().map(|entry| {
        let renewed = |ttl: Option<Duration>| ttl.is_some_and(|ttl| ttl > TTL);
        let holders = entry.holders.iter().map(|holder| (holder.owner.to_string(), renewed(holder.ttl))).collect();
        (entry.name.to_string(), (holders, entry.waiters.len() as u64))
    });
    Some(state.collect())
}

/// Of the right kind, with a word on what to do.
fn is_told(error: &Error) {
    assert!(error.kind() == ErrorKind::Damaged || error.is_transient(), "{error:?}");
    let text = one_line(error);
    assert!(error.is_transient() || text.contains("; "), "nothing to do about it: {text}");
}

/// One call: what was answered is so, and what was refused has changed nothing, unless the error says that it may have.
struct Step<'a> {
    store: &'a SqliteStore,
    /// The system refuses once, so the second try goes through.
    once: bool,
}

impl Step<'_> {
    async fn run<T>(
        &self,
        what: &str,
        call: impl AsyncFn() -> Result<T, Error>,
        is_so: impl Fn(&T, &State) -> bool,
    ) -> Option<T> {
        for try_again in [self.once, false] {
            let before = state(self.store).await;
            let answer = call().await;
            let after = state(self.store).await;
            let (Some(before), Some(after)) = (before, after) else {
                assert!(!self.once, "{what}: the file cannot be read");
                return answer.ok();
            };
            match answer {
                Ok(answer) => {
                    assert!(is_so(&answer, &after), "{what}: answered, and not so: {after:?}");
                    return Some(answer);
                }
                Err(error) => {
                    is_told(&error);
                    assert!(error.may_have_been_applied() || before == after, "{what}: {error}, and {before:?} became {after:?}");
                    assert!(try_again || !self.once, "{what}: refused twice: {error}");
                }
            }
        }
        None
    }
}

fn holds(state: &State, request: &Request) -> bool {
    let owner = request.owner.to_string();
    state.get(request.name.as_str()).is_some_and(|(holders, _)| holders.iter().any(|(held, _)| *held == owner))
}

fn is_acquired(request: &Request, answer: &AcquireReply, after: &State) -> bool {
    match answer {
        AcquireReply::Granted(_) => holds(after, request),
        AcquireReply::Busy(busy) if busy.position.is_some() => after.get(request.name.as_str()).is_some_and(|name| name.1 > 0),
        AcquireReply::Busy(_) => !holds(after, request),
        AcquireReply::Refused { .. } => false,
    }
}

/// The other process: each call of a store, on a file that is not there yet, or of an older version.
pub(crate) async fn use_all(path: &Path, once: bool) {
    // strace counts the calls of each thread, and each open has one.
    let opened = open(path).inspect_err(is_told).or_else(|_| open(path)).inspect_err(is_told);
    let Ok(store) = opened else { return };
    let step = Step { store: &store, once };
    let (held, waiting) = (joining_for_long("x"), joining_for_long("x"));
    let keeping = waiting.clone().with_enqueue(Enqueue::Heartbeat);
    for (what, request) in [("acquire", &held), ("wait", &waiting), ("keep the place", &keeping)] {
        step.run(what, async || store.acquire(request).await, |answer, after| is_acquired(request, answer, after)).await;
    }
    step.run("watch", async || store.watch(&waiting).await, |_, _| true).await;
    let long = lease("x", &held.owner).with_ttl(3 * TTL);
    let is_renewed = |answer: &RenewReply, after: &State| {
        let renewed = after.get("x").is_some_and(|name| name.0.contains(&(held.owner.to_string(), true)));
        (*answer == RenewReply::Renewed) == renewed
    };
    step.run("renew", async || store.renew(std::slice::from_ref(&long)).await.remove(0), is_renewed).await;
    let all = [request("y", &owner()), request("z", &owner())];
    let all_or_none = |answer: &Option<_>, after: &State| {
        let held = all.iter().filter(|request| holds(after, request)).count();
        if answer.is_some() { held == 2 } else { held == 0 }
    };
    step.run("acquire all", async || store.acquire_all(&all).await, all_or_none).await;
    for request in [&held, &waiting, &all[0], &all[1]] {
        let release = async || store.release(&lease(request.name.as_str(), &request.owner), Duration::ZERO).await;
        let is_given_up = |_: &ReleaseReply, after: &State| !holds(after, request);
        step.run("release", release, is_given_up).await;
    }
    if once {
        assert!(!state(&store).await.unwrap().contains_key("x"));
    }
}

/// Runs `role` while `fault` is injected, as strace says it. Whether it was.
fn with_fault(role: &str, call: &str, fault: &str, path: &Path) -> bool {
    let log = path.with_extension("strace");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-o"]).arg(&log);
    // The process makes other calls as well, but no other threads and sockets than ours.
    let of_files = !["clone,clone3", "socket", "bind"].contains(&call);
    for end in ["", "-wal", "-shm"].into_iter().filter(|_| of_files) {
        strace.arg("-P").arg(format!("{}{end}", path.display()));
    }
    strace.args(["-e", &format!("trace={call}"), "-e", &format!("inject={call}:{fault}")]);
    strace.arg(std::env::current_exe().unwrap());
    finish(vec![command(strace, role, path)]);
    fs::read_to_string(log).unwrap().contains("(INJECTED)")
}

struct Case {
    /// The file is of an older version, and keeps its leases. Else it is not there yet.
    old: bool,
    /// One call is refused. Else all from one on.
    once: bool,
    call: &'static str,
    error: &'static str,
    /// One call in so many is tried: there are many, and alike.
    each: usize,
}

impl Case {
    /// At how many places it was refused. A whole file is left behind.
    fn at_every_call(&self) -> usize {
        let Self { old, once, call, error, each } = *self;
        for k in (1..400).step_by(each) {
            let (_dir, path) = fresh();
            if old {
                crate::upgrade::version_1(&path);
            }
            let fault = format!("error={error}:when={k}{}", if once { "" } else { "+" });
            let injected = with_fault(if once { "use all once" } else { "use all" }, call, &fault, &path);
            drop(open(&path).unwrap_or_else(|error| panic!("{call} {fault}: it cannot be opened afterwards: {error}")));
            check_integrity(&path);
            if old {
                let kept = raw(&path).query_row("SELECT count(*) FROM lock WHERE name = 'held'", [], |row| row.get::<_, u32>(0));
                assert_eq!(kept.unwrap(), 1, "{call} {fault}: the upgrade lost a lease");
            }
            if !injected {
                return k / each;
            }
        }
        panic!("{call} is called without an end");
    }
}

fn refused(old: bool, once: bool, call: &'static str, error: &'static str, each: usize) {
    let begun = std::time::Instant::now();
    let times = Case { old, once, call, error, each }.at_every_call();
    println!("{call} refused with {error}: at {times} places, in {:?}", begun.elapsed());
    assert!(times > 0, "{call} is never called");
}

#[test]
fn a_disk_that_is_full_at_any_write() {
    refused(false, true, "pwrite64", "ENOSPC", 1);
    refused(false, true, "ftruncate", "ENOSPC", 1);
}

#[test]
fn a_disk_that_is_full_from_any_write_on() {
    refused(false, false, "pwrite64", "ENOSPC", 1);
    refused(false, false, "ftruncate", "ENOSPC", 1);
}

#[test]
fn a_disk_that_is_full_at_any_write_of_an_upgrade() {
    refused(true, true, "pwrite64", "ENOSPC", 2);
    refused(true, false, "pwrite64", "EDQUOT", 3);
}

#[test]
fn a_disk_that_fails_at_any_read_or_sync() {
    refused(false, true, "pread64", "EIO", 1);
    refused(false, false, "pread64", "EIO", 1);
    refused(false, true, "fsync,fdatasync", "EIO", 1);
}

#[test]
fn no_memory_or_descriptor_at_any_call() {
    refused(false, true, "mmap", "ENOMEM", 1);
    refused(false, false, "mmap", "ENOMEM", 1);
    refused(false, true, "openat", "EMFILE", 1);
    refused(true, false, "openat", "ENFILE", 1);
}

#[test]
fn a_look_that_the_system_refuses() {
    refused(false, true, "statx,newfstatat", "EIO", 5);
}

/// A wait without a socket or a thread that listens is slower, and no more.
#[test]
fn no_thread_or_socket() {
    refused(false, true, "clone,clone3", "EAGAIN", 1);
    refused(false, false, "clone,clone3", "EAGAIN", 1);
    refused(false, true, "socket", "EMFILE", 1);
    refused(false, true, "bind", "EACCES", 1);
}
