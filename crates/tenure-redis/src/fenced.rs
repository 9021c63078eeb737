//! Writes to Redis that refuse a stale holder: a script for your own connection.

/// Script that sets a value, unless a newer fence has written it.
///
/// `KEYS[1]` is the value and `KEYS[2]` its fence, of one slot. `ARGV[1]` is the fence in decimal and
/// `ARGV[2]` the new value. It returns 1, or 0 to a stale holder. `docs/fenced-writes.md` has the
/// patterns for databases as well.
///
/// Keep the key of the fence for as long as a stale holder may come back: without a ttl, on a server
/// that does not evict it.
pub const SET: &str = include_str!("scripts/fenced-set.lua");
