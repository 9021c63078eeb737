//! The command beside other libraries' locks, each as its registry has it, in programs of their own and on one key.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{Place, Running, wait_for};
use crate::sides::{
    Library, all_take_turns, beside, compare, contend, each_wakes_the_other, java, library, one_at_a_time, python, take_turns,
};
use rslock::{Lock, LockManager};
use tenure_testkit::{Counter, RedisServer};

/// Of a lock of rslock.
const TTL: Duration = Duration::from_secs(30);

const REDIS_PY: Library = library("redis-py", "scheme=set-nx&profile=redis-py", python);
const POTTERY: Library = Library { keys: &["redlock:x"], ..library("pottery", "scheme=set-nx&profile=pottery", python) };
const PYTHON_REDIS_LOCK: Library =
    Library { keys: &["lock:x"], ..library("python-redis-lock", "scheme=set-nx&profile=python-redis-lock", python) };
const NODE_REDLOCK: Library = library("node-redlock", "scheme=set-nx&profile=node-redlock", node);
const REDIS_SEMAPHORE: Library = Library {
    keys: &["mutex:x"],
    tells_loss: false,
    ..library("redis-semaphore", "scheme=set-nx&profile=redis-semaphore", node)
};
const SPRING: Library = Library { keys: &["app:x"], ..library("spring", "scheme=set-nx&profile=spring&prefix=app", java) };
const SPRING_PUB_SUB: Library = Library { name: "spring-pub-sub", ..SPRING };
const SHEDLOCK: Library =
    Library { keys: &["job-lock:default:x"], tells_loss: false, ..library("shedlock", "scheme=set-nx&profile=shedlock", java) };
const REDSYNC: Library = library("redsync", "scheme=set-nx&profile=redsync", go);
const REDISLOCK: Library = library("redislock", "scheme=set-nx&profile=redislock", go);
const RUEIDISLOCK: Library = Library {
    keys: &["rueidislock:0:x", "rueidislock:1:x", "rueidislock:2:x"],
    ..library("rueidislock", "scheme=set-nx&profile=rueidislock", go)
};
const RUEIDISLOCK_ONE: Library =
    Library { keys: &["rueidislock:0:x"], ..library("rueidislock-one", "scheme=set-nx&profile=rueidislock-one", go) };
const RSLOCK: Library = library("rslock", "scheme=set-nx&profile=rslock", this_program);

fn node(words: &[&str]) -> Command {
    let mut command = Command::new("node");
    command.arg(compare("node/side.mjs")).args(words);
    command
}

fn go(words: &[&str]) -> Command {
    let mut command = Command::new(compare("go/bin/side"));
    command.args(words);
    command
}

fn this_program(words: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "peers::rslock_side", "--ignored", "--nocapture"]).env("TENURE_TEST_SIDE", words.join(" "));
    command
}

/// Each takes turns with ours, and refuses ours and is refused.
fn share(libraries: &[Library]) {
    for library in libraries {
        take_turns(library, library.parameters);
        one_at_a_time(library, library.parameters);
    }
}

/// Damage that turns would show.
fn two_keys_are_no_lock(library: &Library) {
    let damage = beside(library, "scheme=set-nx&prefix=other:").unwrap_err().to_string();
    assert!(damage.contains("while tenure.") || damage.contains(&format!("while {}.", library.name)), "{damage}");
}

#[test]
fn libraries_of_python_and_tenure_exclude_each_other() {
    share(&[REDIS_PY, POTTERY, PYTHON_REDIS_LOCK]);
    two_keys_are_no_lock(&POTTERY);
}

/// Our own layout keeps a mutex where they keep it, and has fences and a line of its own.
#[test]
fn redis_py_and_the_native_layout_exclude_each_other() {
    share(&[Library { parameters: "", ..REDIS_PY }]);
}

#[test]
fn libraries_of_node_and_tenure_exclude_each_other() {
    share(&[NODE_REDLOCK, REDIS_SEMAPHORE]);
    two_keys_are_no_lock(&NODE_REDLOCK);
}

#[test]
fn libraries_of_go_and_tenure_exclude_each_other() {
    share(&[REDSYNC, REDISLOCK, RUEIDISLOCK, RUEIDISLOCK_ONE]);
    two_keys_are_no_lock(&REDSYNC);
}

#[test]
fn rslock_and_tenure_exclude_each_other() {
    share(&[RSLOCK]);
    two_keys_are_no_lock(&RSLOCK);
}

#[test]
fn libraries_of_java_and_tenure_exclude_each_other() {
    let server = RedisServer::start();
    let all = [SPRING, SPRING_PUB_SUB, SHEDLOCK];
    all_take_turns(&all, &server.url());
    assert_eq!(server.cli("KEYS *"), "", "a lock is left");
    for library in &all {
        one_at_a_time(library, library.parameters);
    }
    two_keys_are_no_lock(&SPRING);
}

/// A number that the server keeps.
fn info(server: &RedisServer, field: &str) -> i64 {
    let all = server.cli("INFO everything");
    let found = all.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    found.and_then(|number| number.trim().parse().ok()).unwrap_or_else(|| panic!("no {field} in {all}"))
}

/// Changes of keys that clients are to be notified of.
fn tracked(server: &RedisServer) -> i64 {
    info(server, "tracking_total_items")
}

#[test]
fn spring_and_tenure_wake_each_other() {
    let listens = |server: &RedisServer| server.command(&["PUBSUB", "NUMPAT"]) == 1;
    each_wakes_the_other(&SPRING_PUB_SUB, [&|server| tracked(server) == 1, &listens]);
}

#[test]
fn python_redis_lock_and_tenure_wake_each_other() {
    let is_blocked = |server: &RedisServer| info(server, "blocked_clients") == 1;
    each_wakes_the_other(&PYTHON_REDIS_LOCK, [&|server| tracked(server) == 1, &is_blocked]);
}

#[test]
fn rueidislock_and_tenure_wake_each_other() {
    // A holder of it has its own keys tracked as well.
    each_wakes_the_other(&RUEIDISLOCK, [&|server| tracked(server) > 3, &|server| tracked(server) > 0]);
    each_wakes_the_other(&RUEIDISLOCK_ONE, [&|server| tracked(server) > 1, &|server| tracked(server) > 0]);
}

/// A job that is done stays locked for its least time, on either side. One that is not done is free after its longest.
#[test]
fn a_job_of_shedlock_is_locked_at_least_and_at_most_as_it_says() {
    let (place, server) = (Place::new(), RedisServer::start());
    let url = format!("{}?{}", server.url(), SHEDLOCK.parameters);
    let start = |what, options: &str| {
        SHEDLOCK.start_with(&place, &server.url(), what, |java| {
            java.env("JAVA_TOOL_OPTIONS", options);
        })
    };
    let run = |more: &[&str]| place.output(&[&["run", "-n", "--store", &url], more, &["x", "--", "true"]].concat());
    let theirs = start("try", "-DatLeast=60000 -DatMost=120000").end();
    assert_eq!((theirs.code, run(&[]).code), (0, 75), "{theirs:?}");
    assert_eq!(SHEDLOCK.at_keys(&server, "DEL"), 1);
    let ours = run(&["--min-hold", "60s"]);
    assert_eq!((ours.code, start("try", "").end().code), (0, 75), "{ours:?}");
    assert_eq!(SHEDLOCK.at_keys(&server, "DEL"), 1);

    let mut late = start("hold", "-DatMost=3000");
    place.line("held");
    let args = ["run", "--store", &url, "x", "--", "sh", "-c", "echo in > ours; cat"];
    let mut ours = Running::start(place.tenure(&args).stdin(Stdio::piped()));
    place.line("ours");
    drop(late.0.stdin.take());
    assert_eq!(late.end().code, 0);
    assert_eq!(start("try", "").end().code, 75, "its late release leaves ours");
    drop(ours.0.stdin.take());
    assert_eq!((ours.end().code, start("try", "").end().code), (0, 0));
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

/// Ours holds, and rueidislock waits, at a server that stands still now and then. Each time the waiter finds the keys changed,
/// and asks for them one after another, for 20 ms each. Returns after how many times it has the lock all the same.
fn taken_from_ours(parameters: &str, times: usize) -> Option<usize> {
    let (place, server) = (Place::new(), RedisServer::start());
    let url = format!("{}?{parameters}", server.url());
    let ours = ["run", "--store", &url, "x", "--", "sh", "-c", "echo in > ours; cat"];
    let mut ours = Running::start(place.tenure(&ours).stdin(Stdio::piped()));
    place.line("ours");
    let mut theirs = RUEIDISLOCK.start_with(&place, &server.url(), "hold", |go| {
        go.env("TRY_NEXT_AFTER", "20ms");
    });
    wait_for("rueidislock to wait", || tracked(&server) > 0);
    let taken = (1..=times).find(|time| {
        for key in RUEIDISLOCK.keys {
            server.command(&["PEXPIRE", key, "60000"]);
        }
        server.stop();
        // The first key is asked for in vain, and the others are answered in time.
        std::thread::sleep(Duration::from_millis(22 + 4 * (*time as u64 % 5)));
        server.cont();
        std::thread::sleep(Duration::from_millis(25));
        place.path("held").exists()
    });
    assert!(ours.0.try_wait().unwrap().is_none(), "ours still holds");
    drop(ours.0.stdin.take());
    assert_eq!(ours.end().code, 0);
    // The waiter is woken.
    place.line("held");
    drop(theirs.0.stdin.take());
    assert_eq!(theirs.end().code, 0);
    taken
}

/// As it ships, it takes two of three keys. If the answer about the first is late, it is content with the others. All three are ours.
#[test]
fn one_key_is_no_lock_beside_rueidislock_as_it_ships() {
    // Often enough for a rueidislock that finds two keys free.
    const STALLS: usize = 200;
    assert!(taken_from_ours(RUEIDISLOCK_ONE.parameters, STALLS).is_some());
    assert_eq!(taken_from_ours(RUEIDISLOCK.parameters, STALLS), None);
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
