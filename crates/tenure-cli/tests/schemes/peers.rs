//! The command beside other libraries' locks, each as its registry has it, in programs of their own and on one key.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Place, Running, wait_for};
use crate::sides::{HELP, Library, beside, compare, contend, one_at_a_time, python, take_turns};
use rslock::{Lock, LockManager};
use tenure_testkit::{Counter, RedisServer, Reply};

/// Of a lock of rslock.
const TTL: Duration = Duration::from_secs(30);

const REDIS_PY: Library = Library { name: "redis-py", key: "x", program: python, tells_loss: true };
const POTTERY: Library = Library { name: "pottery", key: "redlock:x", program: python, tells_loss: true };
const NODE_REDLOCK: Library = Library { name: "node-redlock", key: "x", program: node, tells_loss: true };
const REDIS_SEMAPHORE: Library = Library { name: "redis-semaphore", key: "mutex:x", program: node, tells_loss: false };
const REDISSON: Library = Library { name: "redisson", key: "x", program: java, tells_loss: true };
const REDISSON_FENCED: Library = Library { name: "redisson-fenced", key: "x", program: java, tells_loss: true };
const RSLOCK: Library = Library { name: "rslock", key: "x", program: this_program, tells_loss: true };

fn node(words: &[&str]) -> Command {
    let mut command = Command::new("node");
    command.arg(compare("node/side.mjs")).args(words);
    command
}

fn java(words: &[&str]) -> Command {
    let lib = compare("java/lib");
    assert!(lib.join("classes/Side.class").exists(), "compare/java/lib has no Redisson; {HELP}");
    let mut command = Command::new("java");
    // It lives for seconds.
    command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m", "-cp"]);
    command.arg(format!("{}:{}", lib.join("classes").display(), lib.join("jars/*").display())).arg("Side").args(words);
    command
}

fn this_program(words: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "peers::rslock_side", "--ignored", "--nocapture"]).env("TENURE_TEST_SIDE", words.join(" "));
    command
}

#[test]
fn redis_py_and_tenure_take_turns() {
    take_turns(&REDIS_PY, &REDIS_PY.profile());
}

#[test]
fn pottery_and_tenure_take_turns() {
    take_turns(&POTTERY, &POTTERY.profile());
}

#[test]
fn node_redlock_and_tenure_take_turns() {
    take_turns(&NODE_REDLOCK, &NODE_REDLOCK.profile());
}

#[test]
fn redis_semaphore_and_tenure_take_turns() {
    take_turns(&REDIS_SEMAPHORE, &REDIS_SEMAPHORE.profile());
}

#[test]
fn rslock_and_tenure_take_turns() {
    take_turns(&RSLOCK, &RSLOCK.profile());
}

#[test]
fn redisson_and_tenure_take_turns() {
    take_turns(&REDISSON, &REDISSON.profile());
}

/// Their fences rise across both sides.
#[test]
fn fenced_locks_of_redisson_and_tenure_take_turns() {
    take_turns(&REDISSON_FENCED, &REDISSON_FENCED.profile());
}

/// Clients of either side that listen for a release of `x`.
fn wait_for_listeners(server: &RedisServer, count: i64) {
    let listeners = || server.command(&["PUBSUB", "NUMSUB", "redisson_lock__channel:{x}"]);
    wait_for("listeners", || matches!(listeners(), Reply::Array(parts) if parts[1] == count));
}

/// Killed while it holds, it costs the others its lockWatchdogTimeout. Killed while it waits, it costs nothing.
#[test]
fn a_client_of_redisson_that_is_killed_costs_what_it_promises() {
    let (place, server) = (Place::new(), RedisServer::start());
    let url = format!("{}?scheme=redisson", server.url());
    let soon = |java: &mut Command| {
        java.env("JAVA_TOOL_OPTIONS", "-Dwatchdog=3000");
    };
    let start = || REDISSON.start_with(&place, &server.url(), "hold", soon);
    let mut theirs = start();
    place.line("held");
    let ours = ["run", "--store", &url, "x", "--", "sh", "-c", "echo in > ours; cat"];
    let mut ours = Running::start(place.tenure(&ours).stdin(Stdio::piped()));
    wait_for_listeners(&server, 1);
    theirs.0.kill();
    let killed = Instant::now();
    place.line("ours");
    assert!(killed.elapsed() < Duration::from_secs(5), "{:?}", killed.elapsed());

    // Who is served listens no more.
    wait_for_listeners(&server, 0);
    let mut waiting = start();
    wait_for_listeners(&server, 1);
    waiting.0.kill();
    wait_for_listeners(&server, 0);
    drop(ours.0.stdin.take());
    assert_eq!(ours.end().code, 0);
    let next = place.output(&["run", "-n", "--store", &url, "x", "--", "true"]);
    assert_eq!(next.code, 0, "{next:?}");
}

/// Neither side polls here: ours every 30 s, Redisson when the lease ends.
#[test]
fn a_release_of_either_side_wakes_the_other() {
    const BOUND: Duration = Duration::from_secs(5);
    let (place, server) = (Place::new(), RedisServer::start());
    let url = format!("{}?scheme=redisson&poll_interval=30s", server.url());
    let mut theirs = REDISSON.holds(&place, &server);
    let mut ours = Running::start(
        place.tenure(&["run", "--store", &url, "x", "--", "sh", "-c", "echo in > ours; cat"]).stdin(Stdio::piped()),
    );
    wait_for_listeners(&server, 1);
    drop(theirs.0.stdin.take());
    let released = Instant::now();
    place.line("ours");
    let ours_after = released.elapsed();
    assert_eq!(theirs.end().code, 0);
    // Who is served listens no more.
    wait_for_listeners(&server, 0);
    std::fs::remove_file(place.path("held")).unwrap();
    let mut theirs = REDISSON.start(&place, &server.url(), "hold");
    wait_for_listeners(&server, 1);
    drop(ours.0.stdin.take());
    let released = Instant::now();
    place.line("held");
    let theirs_after = released.elapsed();
    drop(theirs.0.stdin.take());
    assert_eq!((ours.end().code, theirs.end().code), (0, 0));
    println!("ours after {ours_after:?}, theirs after {theirs_after:?}");
    assert!(ours_after < BOUND && theirs_after < BOUND, "ours after {ours_after:?}, theirs after {theirs_after:?}");
}

/// A majority of servers that both take their keys at: Redlock beside a quorum.
#[test]
fn rslock_on_three_servers_takes_turns_with_a_quorum() {
    let servers: Vec<RedisServer> = (0..3).map(|_| RedisServer::start()).collect();
    let urls: Vec<String> = servers.iter().map(RedisServer::url).collect();
    let hosts: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    let quorum = format!("quorum+redis://{}", hosts.join(","));
    let admitted = Place::new().output(&["admit", "--store", &quorum]);
    assert_eq!(admitted.code, 0, "{admitted:?}");
    let judged = contend(&RSLOCK, &urls.join(","), &quorum);
    assert!(judged.is_ok(), "who begins with tenure is ours, the others are of rslock:\n{}", judged.unwrap_err());
}

/// Our own layout keeps a mutex where they keep it, and has fences and a line of its own.
#[test]
fn redis_py_takes_turns_with_the_native_layout() {
    take_turns(&REDIS_PY, "");
}

/// Damage that the tests above would see.
#[test]
fn two_keys_are_no_lock() {
    let damage = beside(&POTTERY, "scheme=set-nx").unwrap_err().to_string();
    assert!(damage.contains("while tenure.") || damage.contains("while pottery."), "{damage}");
}

#[test]
fn each_library_and_tenure_refuse_each_other() {
    for library in [REDIS_PY, POTTERY, NODE_REDLOCK, REDIS_SEMAPHORE, REDISSON, RSLOCK] {
        one_at_a_time(&library, &library.profile());
    }
    one_at_a_time(&REDIS_PY, "");
}

/// The side of rslock; `compare/node/side.mjs` says what a side does.
#[test]
#[ignore = "a process that the other tests start"]
fn rslock_side() {
    let words = std::env::var("TENURE_TEST_SIDE").expect("started by the other tests");
    let [_, url, name, what] = words.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (code, word) = runtime.block_on(rslock_does(url, name, what));
    println!("{word}");
    std::process::exit(code);
}

async fn rslock_does(url: &str, name: &str, what: &str) -> (i32, String) {
    let mut locks = LockManager::new(url.split(',').collect());
    match what {
        "count" => rslock_counts(&locks, name).await,
        "hold" => {
            let lock = locks.acquire_no_guard(name, TTL).await.unwrap();
            std::fs::write("held", "held\n").unwrap();
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
            rslock_releases(lock).await
        }
        _ => {
            locks.set_retry(1, TTL);
            match locks.lock(name, TTL).await {
                Ok(lock) => rslock_releases(lock).await,
                Err(refusal) => (75, refusal.to_string()),
            }
        }
    }
}

async fn rslock_counts(locks: &LockManager, name: &str) -> (i32, String) {
    let (counter, mut turns) = (Counter::open(Path::new("")), 0);
    while !Path::new("enough").exists() {
        let lock = locks.acquire_no_guard(name, TTL).await.unwrap();
        counter.visit(None, Duration::from_millis(3));
        turns += 1;
        // Without a word about who holds: it asks one server of several, and a minority may have the value of another.
        lock.release().await;
    }
    (0, turns.to_string())
}

async fn rslock_releases(lock: Lock) -> (i32, String) {
    // Its release says nothing.
    let freed = lock.lock_manager.is_freed(&lock).await;
    lock.release().await;
    freed.map_or_else(|loss| (79, format!("lost: {loss}")), |_| (0, "released".to_owned()))
}
