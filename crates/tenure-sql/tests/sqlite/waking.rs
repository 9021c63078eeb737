//! Hand-overs between processes: told by a socket beside the file, and found without it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use tenure::Locker;
use tenure::store::{AcquireReply, Enqueue, Notice, Request, Store as _};
use tenure_sql::SqliteStore;
use tenure_sql::sqlite::open;
use tokio::time::timeout;

use crate::child::{finish, start};
use crate::common::{TTL, busy, fresh, granted, joining, joining_for_long, lease, owner, request, wait_until_closed};

fn sockets(path: &Path) -> Vec<PathBuf> {
    let Ok(found) = fs::read_dir(format!("{}-wake", path.display())) else { return Vec::new() };
    found.map(|found| found.unwrap().path()).collect()
}

async fn release(store: &SqliteStore, request: &Request) {
    store.release(&lease(request.name.as_str(), &request.owner), Duration::ZERO).await.unwrap();
}

fn keeping(request: &Request) -> Request {
    request.clone().with_enqueue(Enqueue::Heartbeat)
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(10), "{what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_waiter_listens_and_leaves_nothing_behind() {
    let (_dir, path) = fresh();
    let (ours, theirs) = (open(&path).unwrap(), open(&path).unwrap());
    let held = joining("x");
    granted(&ours, &held).await;
    busy(&theirs, &request("x", &owner())).await;
    assert!(sockets(&path).is_empty(), "nobody waits, and somebody listens");
    let waiting = joining("x");
    let told = busy(&theirs, &waiting).await;
    assert_eq!((told.position, told.poll_interval), (Some(0), Duration::from_secs(1)), "it polls often although it is notified");
    assert!(busy(&theirs, &request("x", &owner())).await.poll_interval < Duration::from_millis(100));
    let [socket] = &sockets(&path)[..] else { panic!("{:?}", sockets(&path)) };
    assert_eq!(fs::metadata(socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(socket.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
    let mut notices = theirs.watch(&waiting).await.unwrap();
    release(&ours, &held).await;
    let notice = timeout(Duration::from_secs(5), notices.next()).await.expect("it is not notified");
    assert!(matches!(notice, Some(Notice::Granted { owner, .. }) if owner == waiting.owner));
    let listening = threads();
    assert!(!listening.is_empty(), "nobody listens");
    drop((ours, theirs));
    wait_until_closed(&path);
    until("the socket stays", || sockets(&path).is_empty()).await;
    until("the directory stays", || !Path::new(&format!("{}-wake", path.display())).exists()).await;
    until("the thread goes on", || threads().is_disjoint(&listening)).await;
}

/// The threads that listen. Other tests have some as well, but none for long.
fn threads() -> BTreeSet<PathBuf> {
    let threads = fs::read_dir("/proc/self/task").unwrap().flatten().map(|thread| thread.path());
    threads.filter(|thread| fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.trim() == "tenure-wake")).collect()
}

/// The holder has died, and the waiter that polls is not the first: the name is the first one's, and that waiter is notified.
#[tokio::test]
async fn who_looks_serves_the_first_and_tells_it() {
    let (_dir, path) = fresh();
    let (ours, theirs) = (open(&path).unwrap(), open(&path).unwrap());
    let (first, second) = (joining("x"), joining("x"));
    granted(&ours, &joining("x")).await;
    busy(&theirs, &first).await;
    busy(&ours, &second).await;
    let mut notices = theirs.watch(&first).await.unwrap();
    crate::common::raw(&path).execute("UPDATE lock SET until = 1", []).unwrap();
    busy(&ours, &keeping(&second)).await;
    let notice = timeout(Duration::from_secs(5), notices.next()).await.expect("it is not notified");
    assert!(matches!(notice, Some(Notice::Granted { owner, .. }) if owner == first.owner));
}

/// The socket of a killed waiter is removed by the process that would have notified it, or by the next waiter.
#[tokio::test]
async fn sockets_of_the_dead_are_removed() {
    let (_dir, path) = fresh();
    let store = open(&path).unwrap();
    let held = joining("x");
    granted(&store, &held).await;
    let killed_in_wait = async |path: &Path| {
        let mut child = start("wait", path);
        until("the child does not wait", || waiters(path) == 1).await;
        child.child().kill().unwrap();
        child.wait().unwrap();
        assert_eq!(sockets(path).len(), 1);
    };
    killed_in_wait(&path).await;
    release(&store, &held).await;
    assert!(sockets(&path).is_empty(), "one that was notified in vain is left");
    let held = joining("y");
    granted(&store, &held).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    granted(&store, &joining("x")).await;
    killed_in_wait(&path).await;
    let dead = sockets(&path);
    busy(&store, &joining("y")).await;
    assert_eq!((sockets(&path).len(), sockets(&path).contains(&dead[0])), (1, false), "{dead:?} is left");
}

fn waiters(path: &Path) -> i64 {
    crate::common::raw(path).query_row("SELECT count(*) FROM place", [], |row| row.get(0)).unwrap()
}

/// A directory that cannot be made, a datagram from nowhere, a text in the file that is no socket's name: a wait is slower.
#[tokio::test]
async fn nothing_depends_on_the_socket() {
    let (dir, path) = fresh();
    fs::write(format!("{}-wake", path.display()), "in the way").unwrap();
    let (ours, theirs) = (open(&path).unwrap(), open(&path).unwrap());
    let (held, waiting) = (joining("x"), joining_for_long("x"));
    granted(&ours, &held).await;
    let told = busy(&theirs, &waiting).await;
    assert!(told.position == Some(0) && told.poll_interval < Duration::from_millis(100), "{told:?}");
    let victim = UnixDatagram::bind(dir.path().join("victim")).unwrap();
    victim.set_nonblocking(true).unwrap();
    crate::common::raw(&path).execute("UPDATE place SET wake = '../victim'", []).unwrap();
    release(&ours, &held).await;
    assert!(victim.recv(&mut [0; 64]).is_err(), "a name led out of the directory");
    granted(&theirs, &keeping(&waiting)).await;
}

/// A user who may write to the file cannot make a releasing process send to sockets elsewhere.
#[tokio::test]
async fn a_name_in_the_file_does_not_lead_out_of_the_directory() {
    let (dir, path) = fresh();
    let (ours, theirs) = (open(&path).unwrap(), open(&path).unwrap());
    let (held, waiting) = (joining("x"), joining("x"));
    granted(&ours, &held).await;
    busy(&theirs, &waiting).await;
    let victim = UnixDatagram::bind(dir.path().join("victim")).unwrap();
    victim.set_nonblocking(true).unwrap();
    crate::common::raw(&path).execute("UPDATE place SET wake = '../victim'", []).unwrap();
    release(&ours, &held).await;
    assert!(victim.recv(&mut [0; 64]).is_err(), "a name led out of the directory");
}

#[tokio::test]
async fn what_others_send_harms_nobody() {
    let (_dir, path) = fresh();
    let (ours, theirs) = (open(&path).unwrap(), open(&path).unwrap());
    let (held, waiting) = (joining("x"), joining("x"));
    granted(&ours, &held).await;
    busy(&theirs, &waiting).await;
    let mut notices = theirs.watch(&waiting).await.unwrap();
    let stranger = UnixDatagram::unbound().unwrap();
    let forged = [b"".to_vec(), b"\xff\xfe".to_vec(), b"1\n2\n3".to_vec(), b"x\n1\no\nx".to_vec(), vec![b'9'; 60_000]];
    for text in &forged {
        stranger.send_to(text, &sockets(&path)[0]).unwrap();
    }
    release(&ours, &held).await;
    let notice = timeout(Duration::from_secs(5), notices.next()).await.expect("it is not notified");
    assert!(matches!(notice, Some(Notice::Granted { owner, .. }) if owner == waiting.owner));
}

/// A queue entry keeps the address at which its process was last.
#[tokio::test]
async fn a_heartbeat_tells_where_its_process_is() {
    let (_dir, path) = fresh();
    let (ours, before, after) = (open(&path).unwrap(), open(&path).unwrap(), open(&path).unwrap());
    let (held, waiting) = (joining("x"), joining("x"));
    granted(&ours, &held).await;
    busy(&before, &waiting).await;
    drop(before);
    let mut notices = after.watch(&waiting).await.unwrap();
    busy(&after, &keeping(&waiting)).await;
    release(&ours, &held).await;
    timeout(Duration::from_secs(5), notices.next()).await.expect("the old address was notified");
}

/// The file went, and another came in its place: the waiters go on there, and are notified.
#[tokio::test]
async fn a_replaced_file_has_waiters_that_are_told() {
    let (_dir, path) = fresh();
    let (ours, theirs) = (open(&path).unwrap(), open(&path).unwrap());
    granted(&ours, &joining("x")).await;
    busy(&theirs, &joining("x")).await;
    for file in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        fs::remove_file(path.with_file_name(file)).unwrap();
    }
    let (held, waiting) = (joining("x"), joining("x"));
    granted(&ours, &held).await;
    busy(&theirs, &waiting).await;
    let mut notices = theirs.watch(&waiting).await.unwrap();
    release(&ours, &held).await;
    timeout(Duration::from_secs(5), notices.next()).await.expect("it is not notified");
}

/// The name of a socket has room for 107 bytes, the path of a file for many more.
#[tokio::test]
async fn a_long_path_has_sockets_too() {
    let (dir, _) = fresh();
    let path = dir.path().join("a".repeat(120)).join("b".repeat(120)).join("locks.db");
    let (ours, theirs) = (open(&path).unwrap(), open(&path).unwrap());
    let (held, waiting) = (joining("x"), joining("x"));
    granted(&ours, &held).await;
    assert_eq!(busy(&theirs, &waiting).await.poll_interval, Duration::from_secs(1));
    let mut notices = theirs.watch(&waiting).await.unwrap();
    release(&ours, &held).await;
    timeout(Duration::from_secs(5), notices.next()).await.expect("it is not notified");
    drop((ours, theirs));
    until("the socket stays", || sockets(&path).is_empty()).await;
}

/// A waiter that is not notified polls often, and writes seldom.
#[tokio::test]
async fn a_waiter_without_a_socket_keeps_its_place() {
    let (_dir, path) = fresh();
    fs::write(format!("{}-wake", path.display()), "in the way").unwrap();
    let (ours, theirs) = (open(&path).unwrap(), open(&path).unwrap());
    let (held, first, second) = (joining("x"), joining("x"), joining("x"));
    granted(&ours, &held).await;
    busy(&theirs, &first).await;
    busy(&theirs, &second).await;
    let until = || crate::common::raw(&path).query_row("SELECT min(until) FROM place", [], |row| row.get::<_, i64>(0)).unwrap();
    let (begun, mut writes, mut last) = (Instant::now(), 0, until());
    while begun.elapsed() < Duration::from_secs(4) {
        assert_eq!(busy(&theirs, &keeping(&first)).await.position, Some(0));
        assert_eq!(busy(&theirs, &keeping(&second)).await.position, Some(1));
        tokio::time::sleep(Duration::from_millis(15)).await;
        writes += i32::from(std::mem::replace(&mut last, until()) != last);
    }
    assert!((4..=32).contains(&writes), "{writes} heartbeats were written");
    release(&ours, &held).await;
    granted(&theirs, &keeping(&first)).await;
    release(&theirs, &first).await;
    assert_eq!(busy(&theirs, &keeping(&first)).await.position, None);
    granted(&theirs, &keeping(&second)).await;
}

/// Two processes hand a name to and fro.
#[tokio::test]
async fn a_hand_over_between_processes_takes_little() {
    let (_dir, path) = fresh();
    fs::write(path.with_extension("ball"), "").unwrap();
    fs::write(path.with_extension("log"), "").unwrap();
    let (store, held) = (open(&path).unwrap(), joining("x"));
    granted(&store, &held).await;
    let players = vec![start("pass", &path), start("pass", &path)];
    until("the players do not wait", || waiters(&path) == 2).await;
    release(&store, &held).await;
    finish(players);
    let log = fs::read_to_string(path.with_extension("log")).unwrap();
    let mut times: Vec<u64> = log.lines().map(|line| line.split_once(' ').unwrap().1.parse().unwrap()).collect();
    times.sort_unstable();
    assert!(times.len() > 100, "only {} hand-overs", times.len());
    let (median, p90) = (times[times.len() / 2], times[times.len() * 9 / 10]);
    println!("{} hand-overs between processes: median {median} us, p90 {p90} us", times.len());
    let median = Duration::from_micros(median);
    assert!(median < Duration::from_millis(100), "a hand-over took {median:?}");
}

/// Many processes queue for one name: nobody is overtaken by two at once, and nobody is left to find out by itself.
#[tokio::test]
async fn no_wake_up_is_lost() {
    const PROCESSES: u64 = 8;
    let (_dir, path) = fresh();
    fs::write(path.with_extension("number"), "0").unwrap();
    fs::write(path.with_extension("log"), "").unwrap();
    let begun = Instant::now();
    finish((0..PROCESSES).map(|_| start("queue", &path)).collect());
    let took = begun.elapsed();
    println!("{} turns of {PROCESSES} processes in a queue: {took:?}", PROCESSES * 50);
    assert_eq!(fs::read_to_string(path.with_extension("number")).unwrap(), (PROCESSES * 50).to_string());
    let log = fs::read_to_string(path.with_extension("log")).unwrap();
    let fences: Vec<u64> = log.lines().map(|line| line.parse().unwrap()).collect();
    assert!(fences.is_sorted_by(|a, b| a < b), "a later holder has a smaller fence");
    // A waiter that is not notified sleeps for a second, and all behind it wait.
    assert!(took < Duration::from_secs(PROCESSES * 50 / 10), "all turns took {took:?}");
}

/// A waiter sleeps, and so does not find out late.
#[tokio::test]
async fn an_idle_waiter_burns_nothing() {
    let (_dir, path) = fresh();
    let store = open(&path).unwrap();
    let held = joining("x");
    assert!(matches!(store.acquire(&held).await.unwrap(), AcquireReply::Granted(grant) if grant.ttl == TTL));
    let waiter = start("idle", &path);
    until("the child does not wait", || waiters(&path) == 1).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    release(&store, &held).await;
    finish(vec![waiter]);
    let log = fs::read_to_string(path.with_extension("log")).unwrap();
    let [cpu, time] = log.split(' ').map(|n| n.parse::<f64>().unwrap()).collect::<Vec<_>>()[..] else { panic!("{log}") };
    println!("an idle waiter: {:.3} ms of CPU a second", cpu / time * 1e3);
    assert!(cpu / time < 0.02, "{cpu} ns of CPU in {time} ns");
}

#[tokio::test]
async fn an_observer_that_hardly_polls_sees_each_leader_of_its_process() {
    let (_dir, path) = fresh();
    crate::requests::each_leader_is_seen(&Locker::new(open(&path).unwrap())).await;
}
