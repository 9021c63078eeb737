//! The rows that put tenure's own client in the place of a broken lock, in its scheme.

/// The rows that stand against a broken lock. In those with `their` in their name it is the other
/// side that breaks the lock as the article does, and the row shows what that costs ours.
pub fn of(broken_lock: &str) -> &'static [&'static str] {
    COUNTERPARTS.iter().find(|(id, _)| *id == broken_lock).map_or(&[], |(_, rows)| rows)
}

const COUNTERPARTS: &[(&str, &[&str])] = &[
    ("A1/crash", &["setnx-expire/03-killed-at-each-step", "setnx-expire/A1-crash"]),
    ("A1/late-release", &["setnx-expire/A1-late-release", "setnx-expire/A1-their-late-release"]),
    ("A1/rounded-ttl", &["setnx-expire/A1-rounded-ttl"]),
    ("A2/late-release", &["setnx-expire-lua/A2-late-release", "setnx-expire-lua/A2-their-late-release"]),
    ("A3/adopts-from-the-living", &["php/A3-adopts-from-the-living"]),
    ("A3/two-adopt", &["php/A3-two-adopt"]),
    ("A3/overwrites", &["php/38-herd", "php/A3-their-overwriting"]),
    ("A3/two-step-release", &["php/A3-two-step-release", "php/A3-their-two-step-release"]),
    ("A3/two-step-renewal", &["php/A3-late-release", "php/A3-their-two-step-renewal"]),
    ("A3/equal-values", &["php/39-given-twice", "php/A3-their-equal-value"]),
    ("A4/fast-host", &["getset/A4-clocks-off", "getset/A4-their-fast-host"]),
    ("A4/slow-host", &["getset/A4-clocks-off", "getset/A4-their-slow-host"]),
    ("A4/losers-overwrite", &["getset/A4-losers-overwrite", "getset/A4-their-losers-overwrite"]),
    ("A4/getset-finds-nothing", &["getset/38-herd", "getset/A4-their-getset-finds-nothing"]),
    ("A4/late-release", &["getset/A4-late-release", "getset/A4-their-late-release"]),
    ("A4/two-step-release", &["getset/A4-two-step-release", "getset/A4-their-two-step-release"]),
    ("A4/equal-milliseconds", &["getset/06-reply-lost", "getset/A4-their-equal-milliseconds"]),
    ("A4/forgetful", &["getset/04-wait-given-up", "getset/A4-their-forgetting"]),
    ("A4d/del-setnx", &["getset/A4-losers-overwrite", "getset/A4d-their-del-setnx"]),
    ("A5/late-release", &["set-nx/A5-late-release", "set-nx/A5-their-late-release"]),
    ("A6/two-step-release", &["set-nx/A6-two-step-release", "set-nx/A6-their-two-step-release"]),
    ("A6/repeating-token", &["set-nx/39-given-twice", "set-nx/39-given-and-released"]),
    ("A6/long-work", &["set-nx/25-fixed-lease", "set-nx/01-careful-holder-paused"]),
    ("A6/data-lost", &["set-nx/11-killed-without-persistence"]),
    ("A6/clock-jump", &["set-nx/21-clock-ahead"]),
    ("A7/no-slack", &["set-nx/05-request-lost"]),
    ("A7/blind-expire", &["set-nx/A7-late-renewal", "set-nx/A7-their-blind-expire"]),
    ("A7/set-xx", &["set-nx/A7-late-renewal", "set-nx/A7-their-set-xx"]),
    ("A7/late-renewal", &["set-nx/08-late-renewal"]),
    ("A8/pooled-acquire", &["watch/A8-acquire", "watch/A8-their-pooled-acquire"]),
    ("A8/pooled-release", &["watch/A8-release", "watch/A8-their-pooled-release"]),
    ("B1/evicted", &["memcached/27-evicted"]),
    ("B1/restarted", &["memcached/11-killed-without-persistence", "memcached/29-flushed"]),
    ("B1/two-step-release", &["memcached/01-holder-paused"]),
    ("B2/evicted", &["memcached/27-evicted"]),
    ("B2/application-clock", &["memcached/23-wall-clock-set"]),
    ("B4/session-expired", &["zookeeper/01-session-ended"]),
    ("B4/stale-write", &["zookeeper/01-holder-paused"]),
    ("redisson/errors-are-logged", &["redisson/05-request-lost", "redisson/15-partition"]),
    ("redisson/lease-ignored", &["redisson/25-fixed-lease"]),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::Kind;

    #[test]
    fn each_broken_lock_of_an_article_on_one_server_has_some_that_are_played() {
        let items = crate::items();
        let scenarios: BTreeSet<&str> =
            items.iter().filter(|item| item.kind == Kind::Scenario).map(|item| item.id.as_str()).collect();
        for lock in items.iter().filter(|item| item.kind == Kind::BrokenLock && item.id.starts_with(['A', 'B'])) {
            assert!(!of(&lock.id).is_empty(), "{} has none", lock.id);
        }
        for (lock, rows) in COUNTERPARTS {
            assert!(items.iter().any(|item| item.id == *lock), "{lock} is no broken lock");
            for row in *rows {
                assert!(scenarios.contains(row), "{row} of {lock} is no row");
            }
        }
    }
}
