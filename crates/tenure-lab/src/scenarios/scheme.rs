//! The schemes in which the processes of a scenario keep their locks on a Redis. The URL of their store names the scheme.

use std::time::Duration;

use tenure_testkit::{RedisServer, Reply};

use super::rows::Rows;

/// How locks are kept at the server.
#[derive(Clone, Copy)]
pub(super) struct Scheme {
    /// How the ids of its rows begin.
    id: &'static str,
    /// Parameters of the URL that select it.
    parameters: &'static str,
    /// Prefix of the key of a name.
    pub(super) prefix: &'static str,
    /// How many commands are sent at once to take a free name.
    pub(super) takes: u64,
    /// A command that a late acquire runs, alone or in a script, and a clean-up that finds nothing does not: its count rises
    /// when the acquire was executed. A late acquire of `GETSET` or `WATCH` takes nothing, so there a clean-up runs it, too.
    pub(super) takes_by: &'static str,
    /// Which of the commands of a renewal or a release is the first that changes anything.
    pub(super) writes: u64,
    /// How much longer than [`TTL`](super::stage::TTL) a lease of that is kept.
    pub(super) longer: Duration,
    /// Whether a grant has a fence.
    pub(super) fences: bool,
    /// Who holds at a key.
    pub(super) look: fn(&RedisServer, &str) -> Option<Held>,
    /// How many wait for the lock at a key.
    pub(super) line: fn(&RedisServer, &str) -> u64,
    /// The commands by which a lease is renewed and given up, one of them for each call.
    pub(super) calls: &'static [&'static str],
}

/// Ours: `MULTI`, `SET`, `INCR`, `EXEC`.
pub(super) const NATIVE: Scheme = Scheme {
    id: "redis",
    parameters: "",
    prefix: "",
    takes: 4,
    takes_by: "exec",
    writes: 1,
    longer: Duration::ZERO,
    fences: true,
    look: string_or_shares,
    line: places,
    calls: &["eval", "evalsha", "fcall"],
};

/// `SET NX PX`, as most libraries have it.
pub(super) const SET_NX: Scheme = Scheme {
    id: "set-nx",
    parameters: "&scheme=set-nx",
    takes: 1,
    takes_by: "set",
    fences: false,
    look: string,
    line: nobody,
    ..NATIVE
};

/// `SETNX`, then `EXPIRE`, then `DEL`.
pub(super) const SETNX_EXPIRE: Scheme =
    Scheme { id: "setnx-expire", parameters: "&scheme=setnx-expire&prefix=app:", prefix: "app:", ..SET_NX };

/// The same with the first two in a script.
pub(super) const SETNX_EXPIRE_LUA: Scheme =
    Scheme { id: "setnx-expire-lua", parameters: "&scheme=setnx-expire-lua", prefix: "", ..SETNX_EXPIRE };

/// `SETNX`, `EXPIRE`, and the adoption of what has no expiry: a class that keeps a lease for five seconds at least.
pub(super) const PHP: Scheme =
    Scheme { id: "php", parameters: "&scheme=php", prefix: "Lock:", longer: Duration::from_secs(3), ..SET_NX };

/// `SETNX`, `GET`, `GETSET`: the value is the end of the lease.
pub(super) const GETSET: Scheme = Scheme { id: "getset", parameters: "&scheme=getset", takes_by: "time", look: end, ..SET_NX };

/// The `RLock` of Redisson: the owner is the only field of a hash.
pub(super) const REDISSON: Scheme =
    Scheme { id: "redisson", parameters: "&scheme=redisson", takes: 1, takes_by: "hincrby", look: field, line: nobody, ..NATIVE };

/// The `RFairLock` of Redisson, whose waiters are in a list.
pub(super) const REDISSON_FAIR: Scheme =
    Scheme { id: "redisson-fair", parameters: "&scheme=redisson-fair", line: listed, ..REDISSON };

/// `WATCH`, `MULTI`, `EXEC`: the value is the record of all who hold and wait. Watched and read first, and then written.
pub(super) const WATCH: Scheme = Scheme {
    id: "watch",
    parameters: "&scheme=watch",
    takes: 6,
    takes_by: "watch",
    writes: 7,
    look: first_of_record,
    line: waiting_in_record,
    calls: &["watch"],
    ..NATIVE
};

impl Scheme {
    /// The table of its rows.
    pub(super) const fn rows(self) -> Rows {
        Rows { id: self.id, fences: self.fences }
    }

    /// The URL of a store on the server at `server`.
    pub(super) fn url(self, server: &str) -> String {
        format!("{server}?timeout=250ms{}", self.parameters)
    }

    /// Where the lock of `name` is at the server.
    pub(super) fn key(self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

/// Content of a key: the value, and how long it stays.
pub(super) struct Held {
    pub(super) value: String,
    /// `None` where nothing will ever end it.
    pub(super) left: Option<Duration>,
}

fn string(server: &RedisServer, key: &str) -> Option<Held> {
    held(&server.command(&["GET", key]), server.command(&["PTTL", key]).int())
}

/// As the server has it.
fn held(value: &Reply, left: i64) -> Option<Held> {
    (!value.is_nil()).then(|| Held { value: value.text(), left: u64::try_from(left).ok().map(Duration::from_millis) })
}

/// Shares are kept in a sorted set, by their ends.
fn string_or_shares(server: &RedisServer, key: &str) -> Option<Held> {
    match server.command(&["GET", key]) {
        Reply::Error(_) => held(&server.command(&["ZRANGE", key, "0", "0"]), server.command(&["PTTL", key]).int()),
        _ => string(server, key),
    }
}

fn field(server: &RedisServer, key: &str) -> Option<Held> {
    let Reply::Array(fields) = server.command(&["HKEYS", key]) else { return None };
    held(fields.first()?, server.command(&["PTTL", key]).int())
}

/// Whose value is the end of the lease in Unix milliseconds, and stays when that has passed.
fn end(server: &RedisServer, key: &str) -> Option<Held> {
    let value = server.command(&["GET", key]);
    let Ok(end) = (if value.is_nil() { return None } else { value.text().parse::<i64>() }) else { return held(&value, -1) };
    let left = end - clock(server);
    if left > 0 { held(&value, left) } else { None }
}

/// The server's wall clock, in milliseconds since 1970.
pub(super) fn clock(server: &RedisServer) -> i64 {
    let time = server.cli("TIME");
    let mut words = time.split_whitespace().map(|word| word.parse::<i64>().expect("a number"));
    let mut next = || words.next().expect("seconds and microseconds");
    next() * 1_000 + next() / 1_000
}

/// The key of those who wait for a name, in their order.
pub(super) fn queue(server: &RedisServer, name: &str) -> Option<String> {
    // A server that has just come back may say that it is loading.
    let Reply::Array(keys) = server.command(&["KEYS", &format!("*:q:{name}")]) else { return None };
    keys.first().map(Reply::text)
}

fn places(server: &RedisServer, key: &str) -> u64 {
    queue(server, key).map_or(0, |queue| u64::try_from(server.command(&["ZCARD", &queue]).int()).expect("a count"))
}

fn listed(server: &RedisServer, key: &str) -> u64 {
    let Reply::Int(count) = server.command(&["LLEN", &format!("redisson_lock_queue:{{{key}}}")]) else { return 0 };
    u64::try_from(count).expect("a count")
}

fn nobody(_: &RedisServer, _: &str) -> u64 {
    0
}

/// The fields of those in a record whose time has not passed: what they do, how long they have in microseconds, and their owner.
fn in_record_at(server: &RedisServer, key: &str) -> Vec<(String, i64, String)> {
    let value = server.command(&["GET", key]);
    in_record(&if value.is_nil() { String::new() } else { value.text() }, clock(server) * 1_000)
}

/// As [`in_record_at`], of the text of a record.
pub(super) fn in_record(text: &str, now: i64) -> Vec<(String, i64, String)> {
    let line = |line: &str| {
        let fields: Vec<&str> = line.split('\t').collect();
        let end = if fields[0] == "waits" { 6 } else { 5 };
        let (until, owner) = (fields.get(end)?.parse::<i64>().ok()?, fields.get(end + 1)?);
        (until > now).then(|| (fields[0].to_owned(), until - now, (*owner).to_owned()))
    };
    text.lines().skip(1).filter_map(line).collect()
}

fn first_of_record(server: &RedisServer, key: &str) -> Option<Held> {
    match string(server, key) {
        Some(Held { value, .. }) if value.starts_with("tenure:record:") => {
            let first = in_record_at(server, key).into_iter().find(|(what, ..)| what != "waits");
            first.map(|(_, left, value)| Held { value, left: u64::try_from(left).ok().map(Duration::from_micros) })
        }
        foreign => foreign,
    }
}

fn waiting_in_record(server: &RedisServer, key: &str) -> u64 {
    in_record_at(server, key).iter().map(|(what, ..)| u64::from(what == "waits")).sum()
}
