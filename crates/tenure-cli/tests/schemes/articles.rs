//! The command in the schemes of others, beside programs that send the commands of articles word by word, on one key.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use crate::common::{Place, assert_one_line};
use tenure_testkit::{Client, RedisServer, Reply, Spawned};

/// An unprotected read-modify-write.
const COUNT: &str = "n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) > n; test -z \"$TENURE_FENCE\" || echo in > fenced";

/// The same, by the other side.
fn count() {
    let n: u64 = std::fs::read_to_string("n").map_or(0, |text| text.trim().parse().unwrap_or(0));
    std::fs::write("n", format!("{}\n", n + 1)).unwrap();
}

/// Result of the other side's try to take a key.
enum Take {
    Busy,
    /// It has the key, by this value.
    Held(String),
    /// It would have written over somebody who holds.
    Breaks,
}

/// The other side: how it takes and releases `key`, as its article has it. It has a connection and, for each turn, a token.
struct Article {
    scheme: &'static str,
    key: &'static str,
    takes: fn(&mut Client, &str, &str) -> Take,
    gives_up: fn(&mut Client, &str, &str),
}

const COMPARE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

fn command(redis: &mut Client, words: &[&str]) -> Reply {
    redis.command(words).unwrap()
}

fn held_if(won: bool, value: &str) -> Take {
    if won { Take::Held(value.to_owned()) } else { Take::Busy }
}

fn setnx_expire(redis: &mut Client, key: &str, _: &str) -> Take {
    let won = command(redis, &["SETNX", key, "1"]) == 1;
    if won {
        command(redis, &["EXPIRE", key, "10"]);
    }
    held_if(won, "1")
}

fn setnx_expire_lua(redis: &mut Client, key: &str, _: &str) -> Take {
    let script = "if redis.call('setnx', KEYS[1], 1) == 1 then redis.call('expire', KEYS[1], ARGV[1]) return 1 else return 0 end";
    held_if(command(redis, &["EVAL", script, "1", key, "10"]) == 1, "1")
}

fn set_nx(redis: &mut Client, key: &str, _: &str) -> Take {
    held_if(command(redis, &["SET", key, "true", "EX", "5", "NX"]) == "OK", "true")
}

fn set_nx_token(redis: &mut Client, key: &str, token: &str) -> Take {
    held_if(command(redis, &["SET", key, token, "NX", "PX", "5000"]) == "OK", token)
}

/// The token is the class's value: made before it waits. Its last command writes without looking; where that would break another's lock, a
/// fault of its own, it is left out here, so that what remains has to be exact.
fn php(redis: &mut Client, key: &str, token: &str) -> Take {
    if command(redis, &["SETNX", key, token]) == 1 {
        command(redis, &["EXPIRE", key, "15"]);
        return Take::Held(token.to_owned());
    }
    if command(redis, &["TTL", key]).int() >= 0 {
        return Take::Busy;
    }
    if command(redis, &["SET", key, token, "EX", "15", "NX"]) == "OK" { Take::Held(token.to_owned()) } else { Take::Breaks }
}

/// In units of so many milliseconds.
fn getset_by(redis: &mut Client, key: &str, unit: u64, won: fn(&str, &str, u64) -> bool) -> Take {
    let now = || u64::try_from(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis()).unwrap();
    let value = || ((now() + 10_000) / unit).to_string();
    let first = value();
    if command(redis, &["SETNX", key, &first]) == 1 {
        return Take::Held(first);
    }
    let found = command(redis, &["GET", key]).text();
    if found.parse().is_ok_and(|end: u64| end * unit < now()) {
        let second = value();
        let answer = command(redis, &["GETSET", key, &second]).text();
        return held_if(won(&found, &answer, now() / unit), &second);
    }
    Take::Busy
}

fn getset(redis: &mut Client, key: &str, _: &str) -> Take {
    getset_by(redis, key, 1, |found, answer, _| found == answer)
}

fn getset_past(redis: &mut Client, key: &str, _: &str) -> Take {
    getset_by(redis, key, 1_000, |_, answer, now| answer.parse().is_ok_and(|end: u64| end < now))
}

/// Another's change between the look and `EXEC` undoes it.
fn watch(redis: &mut Client, key: &str, token: &str) -> Take {
    command(redis, &["WATCH", key]);
    if !command(redis, &["GET", key]).is_nil() {
        command(redis, &["UNWATCH"]);
        return Take::Busy;
    }
    command(redis, &["MULTI"]);
    command(redis, &["SET", key, token, "PX", "5000"]);
    held_if(!command(redis, &["EXEC"]).is_nil(), token)
}

fn watches_and_deletes(redis: &mut Client, key: &str, value: &str) {
    command(redis, &["WATCH", key]);
    if command(redis, &["GET", key]) != value {
        command(redis, &["UNWATCH"]);
        return;
    }
    command(redis, &["MULTI"]);
    command(redis, &["DEL", key]);
    command(redis, &["EXEC"]);
}

fn deletes(redis: &mut Client, key: &str, _: &str) {
    command(redis, &["DEL", key]);
}

fn compares(redis: &mut Client, key: &str, value: &str) {
    command(redis, &["EVAL", COMPARE, "1", key, value]);
}

fn gets_and_deletes(redis: &mut Client, key: &str, value: &str) {
    if command(redis, &["GET", key]) == value {
        command(redis, &["DEL", key]);
    }
}

const ARTICLES: [Article; 9] = [
    Article { scheme: "scheme=setnx-expire", key: "x", takes: setnx_expire, gives_up: deletes },
    Article { scheme: "scheme=setnx-expire-lua&prefix=app:", key: "app:x", takes: setnx_expire_lua, gives_up: deletes },
    Article { scheme: "scheme=set-nx", key: "x", takes: set_nx, gives_up: deletes },
    Article { scheme: "scheme=set-nx", key: "x", takes: set_nx_token, gives_up: compares },
    Article { scheme: "scheme=set-nx&profile=redis-semaphore", key: "mutex:x", takes: set_nx_token, gives_up: compares },
    Article { scheme: "scheme=php", key: "Lock:x", takes: php, gives_up: gets_and_deletes },
    Article { scheme: "scheme=getset", key: "x", takes: getset, gives_up: gets_and_deletes },
    Article { scheme: "scheme=getset&win=past&unit=s&prefix=app:", key: "app:x", takes: getset_past, gives_up: gets_and_deletes },
    Article { scheme: "scheme=watch", key: "x", takes: watch, gives_up: watches_and_deletes },
];

/// Ten processes of ours and two of theirs, 25 times each, and nothing but the URL says how.
#[test]
fn every_side_has_its_turns_and_no_two_at_once() {
    for (at, article) in ARTICLES.iter().enumerate() {
        let (place, server) = (Place::new(), RedisServer::start());
        let url = format!("{}?{}&poll_interval=5ms", server.url(), article.scheme);
        let breaks = std::thread::scope(|scope| {
            for _ in 0..10 {
                scope.spawn(|| {
                    for _ in 0..25 {
                        let ended = place.output(&["run", "--store", &url, "x", "--", "sh", "-c", COUNT]);
                        assert_eq!(ended.code, 0, "{}: {ended:?}", article.scheme);
                    }
                });
            }
            let sides: Vec<_> = (1..=2).map(|side| the_others(at, &server, &place, side)).collect();
            sides.into_iter().map(|side| side.wait_with_output().unwrap()).map(|said| breaks_of(&said)).sum::<u32>()
        });
        println!("{}: the other side would have written over a holder {breaks} times", article.scheme);
        assert!(breaks == 0 || article.scheme == "scheme=php", "{}: {breaks}", article.scheme);
        assert_eq!(place.read("n").trim(), "300", "{}: updates were lost", article.scheme);
        let counts = article.scheme == "scheme=watch";
        assert_eq!(Path::new(&place.path("fenced")).exists(), counts, "{}: a fence was made up, or left out", article.scheme);
        server.command(&["DEL", "tenure:fence"]);
        assert_eq!(server.command(&["DBSIZE"]), 0, "{}: {:?}", article.scheme, server.command(&["KEYS", "*"]));
    }
}

/// Starts a process that takes the turns of the other side.
fn the_others(article: usize, server: &RedisServer, place: &Place, side: u32) -> Spawned {
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args(["--exact", "articles::the_other_side", "--ignored", "--nocapture"]).current_dir(place.path("."));
    process.env("SIDE", format!("{article} {side} {}", server.port()));
    Spawned::spawn(process.stdout(Stdio::piped()).stderr(Stdio::piped())).unwrap()
}

/// Number of breaks that the other side reported at its end.
fn breaks_of(said: &Output) -> u32 {
    let text = String::from_utf8_lossy(&said.stdout);
    assert!(said.status.success(), "the other side failed: {text}{}", String::from_utf8_lossy(&said.stderr));
    text.lines().find_map(|line| line.strip_prefix("breaks: ")).unwrap().parse().unwrap()
}

/// The process that [`the_others`] starts.
#[test]
#[ignore = "it is a process of the test beside us"]
fn the_other_side() {
    let words: Vec<u32> = std::env::var("SIDE").unwrap().split(' ').map(|word| word.parse().unwrap()).collect();
    let article = &ARTICLES[usize::try_from(words[0]).unwrap()];
    let address = SocketAddr::from(([127, 0, 0, 1], words[2].try_into().unwrap()));
    let mut redis = Client::connect(address, Duration::from_secs(20)).unwrap();
    let breaks: u32 = (0..25).map(|turn| take_turn(article, &mut redis, words[1], turn)).sum();
    println!("\nbreaks: {breaks}");
}

/// A turn of the other side; how often it would have written over somebody who holds.
fn take_turn(article: &Article, redis: &mut Client, side: u32, turn: u32) -> u32 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let token = format!("{}.{side}{turn:02}1", now + 15);
    let mut breaks = 0;
    loop {
        match (article.takes)(redis, article.key, &token) {
            Take::Busy => {}
            Take::Breaks => breaks += 1,
            Take::Held(value) => {
                count();
                (article.gives_up)(redis, article.key, &value);
                return breaks;
            }
        }
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// The other side works for longer than its lease and then deletes our lock: we are notified, and our command is stopped.
#[test]
fn whoever_loses_the_lock_to_the_other_side_is_told() {
    let (place, server) = (Place::new(), RedisServer::start());
    let url = format!("{}?scheme=set-nx&poll_interval=5ms", server.url());
    assert_eq!(server.command(&["SET", "x", "true", "PX", "200", "NX"]), "OK");
    let ours = place.spawn(&["run", "--store", &url, "--ttl", "6s", "x", "--", "sh", "-c", "echo in > held; sleep 60"]);
    place.line("held");
    // Their lease has ended, and they do not know.
    assert_eq!(server.command(&["DEL", "x"]), 1);
    let ended = ours.end();
    assert_eq!(ended.code, 79, "{ended:?}");
}

/// The other side died between its two commands: its lock never ends, and is not taken for ours.
#[test]
fn a_lock_without_an_end_is_told() {
    let (place, server) = (Place::new(), RedisServer::start());
    let url = format!("{}?scheme=setnx-expire", server.url());
    assert_eq!(server.command(&["SETNX", "x", "1"]), 1);
    let ended = place.output(&["run", "-w", "300ms", "--store", &url, "x", "--", "true"]).without_wait();
    assert_eq!(ended.code, 75, "{ended:?}");
    assert_one_line(&ended);
    assert!(ended.err.contains("\"1\"") && ended.err.contains("never"), "{}", ended.err);
    assert_eq!(server.command(&["GET", "x"]).text(), "1");
    // Somebody who knows that they are dead breaks it.
    assert_eq!(place.output(&["break", "--store", &url, "x"]).code, 0);
    assert_eq!(place.output(&["run", "-n", "--store", &url, "x", "--", "true"]).code, 0);
}

/// A request that a scheme cannot fulfil is refused before anything is sent.
#[test]
fn what_a_dialect_cannot_do_is_refused() {
    let (place, server) = (Place::new(), RedisServer::start());
    let url = |parameters: &str| format!("{}?{parameters}", server.url());
    for (parameters, args, code, word) in [
        ("scheme=set-nx", &["run", "--shared", "x", "--", "true"][..], 64, "mutex"),
        ("scheme=set-nx", &["run", "--permits", "1/2", "x", "--", "true"], 64, "mutex"),
        ("scheme=setnx", &["run", "x", "--", "true"], 64, "set-nx"),
        ("scheme=set-nx&profile=redislok", &["run", "x", "--", "true"], 64, "redislock"),
        ("profile=redis-py", &["run", "x", "--", "true"], 64, "scheme=set-nx"),
        ("scheme=set-nx&profile=spring", &["run", "x", "--", "true"], 64, "prefix="),
        ("scheme=redlock", &["run", "x", "--", "true"], 64, "redlock"),
    ] {
        let url = url(parameters);
        let args = [&args[..1], &["--store", &url], &args[1..]].concat();
        let ended = place.output(&args);
        assert_eq!(ended.code, code, "{parameters} {args:?}: {ended:?}");
        assert!(ended.err.contains(word), "{parameters}: {}", ended.err);
    }
    assert_eq!(server.command(&["DBSIZE"]), 0);
}
