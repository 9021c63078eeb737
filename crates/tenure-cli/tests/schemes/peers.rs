//! The command beside other libraries' locks, each as its registry has it, in programs of their own and on one key.

use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::Place;
use crate::sides::{Library, beside, compare, contend, one_at_a_time, python, take_turns};
use rslock::{Lock, LockManager};
use tenure_testkit::{Counter, RedisServer};

/// Of a lock of rslock.
const TTL: Duration = Duration::from_secs(30);

const REDIS_PY: Library = Library { name: "redis-py", key: "x", program: python, tells_loss: true };
const POTTERY: Library = Library { name: "pottery", key: "redlock:x", program: python, tells_loss: true };
const NODE_REDLOCK: Library = Library { name: "node-redlock", key: "x", program: node, tells_loss: true };
const REDIS_SEMAPHORE: Library = Library { name: "redis-semaphore", key: "mutex:x", program: node, tells_loss: false };
const RSLOCK: Library = Library { name: "rslock", key: "x", program: this_program, tells_loss: true };

fn node(words: &[&str]) -> Command {
    let mut command = Command::new("node");
    command.arg(compare("node/side.mjs")).args(words);
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
    for library in [REDIS_PY, POTTERY, NODE_REDLOCK, REDIS_SEMAPHORE, RSLOCK] {
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
