//! The words in which the processes of a scenario keep their locks on a Redis: the URL of their store says which.

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
    /// Whether a grant has a fence.
    pub(super) fences: bool,
    /// Who holds at a key, and whether nothing will ever end that.
    pub(super) look: fn(&RedisServer, &str) -> Option<(String, bool)>,
}

/// Ours: `MULTI`, `SET`, `INCR`, `EXEC`.
pub(super) const NATIVE: Dialect =
    Dialect { id: "redis", parameters: "", prefix: "", takes: 4, fences: true, look: string_or_shares };

/// `SET NX PX`, as most libraries have it.
pub(super) const SET_NX: Dialect =
    Dialect { id: "set-nx", parameters: "&scheme=set-nx", prefix: "", takes: 1, fences: false, look: string };

/// `SETNX`, then `EXPIRE`, then `DEL`.
pub(super) const SETNX_EXPIRE: Dialect =
    Dialect { id: "setnx-expire", parameters: "&scheme=setnx-expire&prefix=app:", prefix: "app:", ..SET_NX };

/// The same with the first two in a script.
pub(super) const SETNX_EXPIRE_LUA: Dialect =
    Dialect { id: "setnx-expire-lua", parameters: "&scheme=setnx-expire-lua", prefix: "", ..SETNX_EXPIRE };

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

fn string(server: &RedisServer, key: &str) -> Option<(String, bool)> {
    let holder = server.command(&["GET", key]);
    (!holder.is_nil()).then(|| (holder.text(), server.command(&["PTTL", key]) == -1))
}

/// Shares are kept in a sorted set, by their ends.
fn string_or_shares(server: &RedisServer, key: &str) -> Option<(String, bool)> {
    match server.command(&["GET", key]) {
        Reply::Error(_) => {
            let first = server.command(&["ZRANGE", key, "0", "0"]);
            (!first.is_nil()).then(|| (first.text(), server.command(&["PTTL", key]) == -1))
        }
        _ => string(server, key),
    }
}
