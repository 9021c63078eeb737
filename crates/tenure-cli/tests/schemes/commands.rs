//! Every command with every scheme. Only the URL names the scheme.

use crate::common::{Ended, Place, assert_one_line};
use serde_json::Value;
use tenure_testkit::{RedisCluster, RedisServer};

/// The parameters of the URL, where the lock of x is, and whether there are fences, shares and queues.
const SCHEMES: [(&str, &str, bool); 13] = [
    ("scheme=set-nx", "x", false),
    ("scheme=set-nx&profile=pottery&prefix=app:", "app:redlock:x", false),
    ("scheme=setnx-expire", "x", false),
    ("scheme=setnx-expire-lua&prefix=app:", "app:x", false),
    ("scheme=php", "Lock:x", false),
    ("scheme=getset", "x", false),
    ("scheme=getset&win=past&unit=s&prefix=app:", "app:x", false),
    ("scheme=watch", "x", true),
    ("scheme=redisson&prefix=app:", "app:x", true),
    ("scheme=redisson-fair&prefix=app:", "app:x", true),
    ("scheme=native&prefix=app:", "app:x", true),
    ("in a cluster: scheme=redisson&prefix=app:", "app:x", true),
    ("in a cluster: scheme=redisson-fair", "x", true),
];

/// A server of its own, and the URL that the command is given.
struct Store {
    place: Place,
    servers: Servers,
    url: String,
}

enum Servers {
    One(RedisServer),
    /// Of one node.
    Cluster(RedisCluster),
}

impl Store {
    fn start(parameters: &str) -> Self {
        let (servers, url, parameters) = match parameters.strip_prefix("in a cluster: ") {
            None => {
                let server = RedisServer::start();
                let url = server.url();
                (Servers::One(server), url, parameters)
            }
            Some(parameters) => {
                let cluster = RedisCluster::start(1, 0);
                let url = cluster.url();
                (Servers::Cluster(cluster), url, parameters)
            }
        };
        Self { place: Place::new(), servers, url: format!("{url}?{parameters}&poll_interval=20ms&timeout=1500ms") }
    }

    /// The server that has every key.
    fn server(&self) -> &RedisServer {
        match &self.servers {
            Servers::One(server) => server,
            Servers::Cluster(cluster) => &cluster.servers()[0],
        }
    }

    fn tenure(&self, args: &[&str]) -> Ended {
        self.place.output(&[&args[..1], &["--store", &self.url], &args[1..]].concat())
    }

    /// Output of `show` for x, or for all.
    fn shown(&self, name: &[&str]) -> Vec<Value> {
        let ended = self.tenure(&[&["show", "-o", "json"], name].concat());
        assert_eq!(ended.code, 0, "{}: {ended:?}", self.url);
        serde_json::from_str(&ended.out).unwrap()
    }
}

fn value(printed: &str, key: &str) -> Option<String> {
    let value = printed.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
    Some(value.trim_matches('\'').to_owned())
}

/// Each scheme in a thread of its own: most of it is waiting for a renewal.
#[test]
fn a_lease_goes_through_every_command() {
    std::thread::scope(|scope| {
        for (parameters, key, fences) in SCHEMES {
            scope.spawn(move || {
                let store = Store::start(parameters);
                theirs_is_shown_and_broken_by_name(&store, parameters, key);
                ours_is_taken_here_and_released_elsewhere(&store, parameters, key, fences);
                what_is_held_can_be_broken(&store, parameters, key, fences);
            });
        }
    });
}

/// A value that is not ours is shown as it is by name, broken by name, and left out of the list.
fn theirs_is_shown_and_broken_by_name(store: &Store, parameters: &str, key: &str) {
    let in_seconds = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() + 40;
    let value = if parameters == "scheme=getset" { format!("{in_seconds}000") } else { in_seconds.to_string() };
    if parameters.contains("redisson") {
        store.server().command(&["HSET", key, &value, "1"]);
        store.server().command(&["EXPIRE", key, "40"]);
    } else {
        store.server().command(&["SET", key, &value, "EX", "40"]);
    }
    let entries = store.shown(&["x"]);
    let holder = &entries[0]["holders"][0];
    assert_eq!((holder["owner"].as_str(), holder["fence"].as_str()), (Some(&*value), None), "{parameters}");
    assert!((30_000..=41_000).contains(&holder["ttl_ms"].as_u64().unwrap()), "{parameters}: {holder}");
    assert_eq!(store.shown(&[]), Vec::<Value>::new(), "{parameters}: a value of others may be anything");
    assert_eq!(store.tenure(&["run", "-n", "x", "--", "true"]).code, 75, "{parameters}");
    if parameters.contains("scheme=native") {
        assert_eq!(store.tenure(&["break", "x"]).code, 77, "{parameters}: it may be data");
    }
    let broken = store.tenure(&["break", "--foreign", "x"]);
    assert_eq!(broken.code, 0, "{parameters}: {broken:?}");
}

/// Taken here, seen, refused to others, renewed there and released elsewhere.
fn ours_is_taken_here_and_released_elsewhere(store: &Store, parameters: &str, key: &str, fences: bool) {
    let grant = store.tenure(&["acquire", "--ttl", "20s", "--label", "web", "x"]);
    assert_eq!((grant.code, store.server().command(&["EXISTS", key]).int()), (0, 1), "{parameters}: {grant:?}");
    let token = value(&grant.out, "TENURE_TOKEN").unwrap();
    assert_eq!(value(&grant.out, "TENURE_FENCE").is_some_and(|fence| !fence.is_empty()), fences, "{parameters}: {grant:?}");
    for entries in [store.shown(&["x"]), store.shown(&[])] {
        let [entry] = &entries[..] else { panic!("{parameters}: {entries:?}") };
        let holder = &entry["holders"][0];
        assert_eq!((entry["name"].as_str(), entry["kind"].as_str()), (Some("x"), Some("mutex")), "{parameters}");
        assert_eq!(entry["waiters"], 0, "{parameters}");
        assert_eq!((holder["owner"].as_str(), holder["permits"].as_str()), (Some(&*token), None), "{parameters}");
        assert!(holder["fence"].is_null() || fences, "{parameters}: {holder}");
        assert!((15_000..=21_000).contains(&holder["ttl_ms"].as_u64().unwrap()), "{parameters}: {holder}");
    }
    let refused = store.tenure(&["run", "-n", "x", "--", "true"]);
    assert!(refused.code == 75 && refused.err.contains("web"), "{parameters}: {refused:?}");
    assert_eq!(store.tenure(&["renew", "x", "--token", &token, "--ttl", "60s"]).code, 0, "{parameters}");
    let left = store.shown(&["x"])[0]["holders"][0]["ttl_ms"].as_u64().unwrap();
    assert!((50_000..=61_000).contains(&left), "{parameters}: {left}");
    let twice = |token: &str| ["renew", "release"].map(|verb| store.tenure(&[verb, "x", "--token", token]).code);
    assert_eq!(twice("web.0"), [79; 2], "{parameters}: by another's token");
    assert_eq!(twice(&token), [0; 2], "{parameters}");
    assert_eq!(twice(&token), [79; 2], "{parameters}: of what was released");
    assert!(store.shown(&["x"]).is_empty() && store.shown(&[]).is_empty(), "{parameters}");
    assert_eq!(store.server().command(&["EXISTS", key]), 0, "{parameters}");
}

/// After `break`, the name is free at once, the holder is notified, and nothing is left of the lock.
fn what_is_held_can_be_broken(store: &Store, parameters: &str, key: &str, fences: bool) {
    assert_eq!(store.tenure(&["break", "x"]).code, 1, "{parameters}: nothing is held");
    let args = ["run", "--store", &store.url, "--ttl", "6s", "x", "--", "sh", "-c", "echo in > held; sleep 60"];
    let ours = store.place.spawn(&args);
    store.place.line("held");
    let broken = store.tenure(&["break", "x"]);
    assert_eq!((broken.code, store.server().command(&["EXISTS", key]).int()), (0, 0), "{parameters}: {broken:?}");
    assert_one_line(&broken);
    assert!(broken.err.contains("next renewal"), "{parameters}: {broken:?}");
    assert_eq!(store.tenure(&["run", "-n", "x", "--", "true"]).code, 0, "{parameters}");
    let ended = ours.end();
    assert_eq!(ended.code, 79, "{parameters}: {ended:?}");
    let left = store.server().command(&["KEYS", "*"]);
    assert_eq!(store.server().command(&["DBSIZE"]), i64::from(fences), "{parameters}: {left:?}");
}

/// Messages about another's lock that never ends help with that lock.
#[test]
fn what_is_said_of_others_locks_fits_them() {
    let store = Store::start("scheme=set-nx");
    let nothing = store.tenure(&["show"]);
    assert!(nothing.code == 0 && nothing.err.contains("no lock of tenure is held"), "{nothing:?}");
    store.server().command(&["SET", "x", "theirs", "PX", "60000"]);
    let refused = store.tenure(&["run", "-n", "x", "--", "true"]);
    assert!(refused.err.contains("try again later") && !refused.err.contains(", for "), "{refused:?}");
    store.server().command(&["PERSIST", "x"]);
    let refused = store.tenure(&["run", "-n", "x", "--", "true"]);
    assert_one_line(&refused);
    assert!(refused.err.contains("`tenure break x`") && !refused.err.contains("later"), "{refused:?}");
    let broken = store.tenure(&["break", "x"]);
    assert_one_line(&broken);
    assert!(broken.err.contains("another client's lock") && !broken.err.contains("renewal"), "{broken:?}");
    assert_eq!(store.tenure(&["run", "--min-hold", "60s", "x", "--", "true"]).code, 0);
    let broken = store.tenure(&["break", "x"]);
    assert_one_line(&broken);
    assert!(broken.err.contains("held by nobody") && !broken.err.contains("renewal"), "{broken:?}");
}

/// Locks that clients of Redisson hold are found without their names, each as what it is.
#[test]
fn locks_of_redisson_are_listed() {
    const OWNER: &str = "00d0c0f4-3b6b-4d1c-8b7e-7f1d6f6f2a11:48";
    for prefix in ["", "app:"] {
        let store = Store::start(&format!("scheme=redisson&prefix={prefix}"));
        let key = |name: &str| format!("{prefix}{name}");
        let writes = |words: &[&str]| assert!(store.server().command(words) != 0, "{words:?}");
        writes(&["HSET", &key("lock"), OWNER, "2"]);
        writes(&["HSET", &key("map"), "color", "red"]);
        writes(&["HSET", &key("read"), "mode", "read", OWNER, "1"]);
        writes(&["PEXPIRE", &key("read"), "60000"]);
        writes(&["SET", &format!("{{{}}}:{OWNER}:rwlock_timeout:1", key("read")), "1", "PX", "60000"]);
        writes(&["HSET", &key("write"), "mode", "write", &format!("{OWNER}:write"), "1"]);
        writes(&["PEXPIRE", &key("write"), "60000"]);
        writes(&["SET", &key("permits"), "3"]);
        let id = "0123456789abcdef";
        writes(&["ZADD", &format!("{{{}}}:timeout", key("permits")), "922337203685477", id]);
        writes(&["ZADD", &key("other:timeout"), "1", "x"]);
        let mut found: Vec<[String; 3]> = Vec::new();
        for entry in store.shown(&[]) {
            let holder = &entry["holders"][0];
            let is_shared = holder["shared"].as_bool().unwrap();
            found.push([&entry["name"], &entry["kind"], &holder["owner"]].map(|word| word.as_str().unwrap().to_owned()));
            assert_eq!(is_shared, ["read", "permits"].contains(&&*found.last().unwrap()[0]), "{entry}");
        }
        found.sort();
        let expected = [["lock", "mutex", OWNER], ["permits", "semaphore", id], ["read", "rw", OWNER], ["write", "rw", OWNER]];
        assert_eq!(found, expected);
        for [name, ..] in expected {
            assert_eq!(store.tenure(&["break", name]).code, 0, "{name}");
        }
        assert!(store.shown(&[]).is_empty(), "{:?}", store.shown(&[]));
        assert_eq!(store.server().command(&["GET", &key("permits")]).text(), "4");
    }
}

/// The message names the scheme without shares as the reason, not the server.
#[test]
fn shares_are_refused_by_the_name_of_the_dialect() {
    for scheme in ["set-nx", "php", "getset", "redisson-fair"] {
        let store = Store::start(&format!("scheme={scheme}"));
        for kind in [&["--shared"][..], &["--permits", "1/3"]] {
            let refused = store.tenure(&[&["run"], kind, &["x", "--", "true"]].concat());
            assert_one_line(&refused);
            assert!(refused.code == 64 && refused.err.contains(&format!("scheme={scheme}")), "{refused:?}");
        }
    }
}
