//! The words in which the processes of a scenario keep their locks on a Redis: the URL of their store says which.

use std::time::Duration;

use tenure_testkit::{RedisServer, Reply};

use super::Rows;

/// How locks are kept at the server.
#[derive(Clone, Copy)]
pub(super) struct Dialect {
    /// How the ids of its rows begin.
    id: &'static str,
    /// What the URL says of it.
    parameters: &'static str,
    /// What stands at the server in front of a name.
    pub(super) prefix: &'static str,
    /// How many commands take a free name.
    pub(super) takes: u64,
    /// How much longer than [`TTL`](super::stage::TTL) a lease of that is kept.
    pub(super) longer: Duration,
    /// Whether a grant has a fence.
    pub(super) fences: bool,
    /// Who holds at a key.
    pub(super) look: fn(&RedisServer, &str) -> Option<Held>,
}

/// Ours: `MULTI`, `SET`, `INCR`, `EXEC`.
pub(super) const NATIVE: Dialect =
    Dialect { id: "redis", parameters: "", prefix: "", takes: 4, longer: Duration::ZERO, fences: true, look: string_or_shares };

/// `SET NX PX`, as most libraries have it.
pub(super) const SET_NX: Dialect = Dialect {
    id: "set-nx",
    parameters: "&scheme=set-nx",
    prefix: "",
    takes: 1,
    longer: Duration::ZERO,
    fences: false,
    look: string,
};

/// `SETNX`, then `EXPIRE`, then `DEL`.
pub(super) const SETNX_EXPIRE: Dialect =
    Dialect { id: "setnx-expire", parameters: "&scheme=setnx-expire&prefix=app:", prefix: "app:", ..SET_NX };

/// The same with the first two in a script.
pub(super) const SETNX_EXPIRE_LUA: Dialect =
    Dialect { id: "setnx-expire-lua", parameters: "&scheme=setnx-expire-lua", prefix: "", ..SETNX_EXPIRE };

/// `SETNX`, `EXPIRE`, and the adoption of what has no expiry: a class that keeps a lease for five seconds at least.
pub(super) const PHP: Dialect =
    Dialect { id: "php", parameters: "&scheme=php", prefix: "Lock:", longer: Duration::from_secs(3), ..SET_NX };

/// `SETNX`, `GET`, `GETSET`: the value is the end of the lease.
pub(super) const GETSET: Dialect = Dialect { id: "getset", parameters: "&scheme=getset", look: end, ..SET_NX };

impl Dialect {
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

/// What is at a key.
pub(super) struct Held {
    pub(super) value: String,
    /// `None` where nothing will ever end it.
    pub(super) left: Option<Duration>,
}

fn string(server: &RedisServer, key: &str) -> Option<Held> {
    held(server.command(&["GET", key]), server.command(&["PTTL", key]).int())
}

/// As the server has it.
fn held(value: Reply, left: i64) -> Option<Held> {
    (!value.is_nil()).then(|| Held { value: value.text(), left: u64::try_from(left).ok().map(Duration::from_millis) })
}

/// Shares are kept in a sorted set, by their ends.
fn string_or_shares(server: &RedisServer, key: &str) -> Option<Held> {
    match server.command(&["GET", key]) {
        Reply::Error(_) => held(server.command(&["ZRANGE", key, "0", "0"]), server.command(&["PTTL", key]).int()),
        _ => string(server, key),
    }
}

/// Whose value is the end of the lease in Unix milliseconds, and stays when that has passed.
fn end(server: &RedisServer, key: &str) -> Option<Held> {
    let value = server.command(&["GET", key]);
    let Ok(end) = (if value.is_nil() { return None } else { value.text().parse::<i64>() }) else { return held(value, -1) };
    let left = end - clock(server);
    if left > 0 { held(value, left) } else { None }
}

/// The server's wall clock, in milliseconds since 1970.
pub(super) fn clock(server: &RedisServer) -> i64 {
    let time = server.cli("TIME");
    let mut words = time.split_whitespace().map(|word| word.parse::<i64>().expect("a number"));
    let mut next = || words.next().expect("seconds and microseconds");
    next() * 1_000 + next() / 1_000
}
