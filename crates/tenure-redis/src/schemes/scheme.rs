//! Schemes: how locks are kept at a server, and which libraries keep them so.

use std::str::FromStr;

use tenure::Error;

/// How locks are kept at the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scheme {
    /// The native layout: every kind of lock, with fences and queues. A mutex is a string key that
    /// holds its owner. So clients of `SET NX PX` that delete by comparison exclude tenure's, and
    /// the other way round. They have no entry in the queue: while it always has one, they may get
    /// no turn.
    #[default]
    Native,
    /// `SETNX`, then `EXPIRE`, then `DEL`. The other side may lock a name for ever by dying between
    /// its first two commands, and may delete a lock that is no longer its own. Tenure does
    /// neither.
    SetnxExpire,
    /// The same with the first two in one script. The other side may still delete a lock of others.
    SetnxExpireLua,
    /// The lock of a PHP class. The key `Lock:<name>` holds the time when the lease was to end, in
    /// Unix seconds with up to four decimals, and has a ttl of at least 5 s. The class takes over
    /// locks whose holder died before it set the ttl. Tenure does so at their end, but not before
    /// it saw them without a ttl for 5 s.
    Php,
    /// `SETNX`, `GET`, `GETSET`, with the end of the lease as the value and no ttl. The value is in
    /// Unix milliseconds or, with [`Options::seconds`](crate::Options::seconds), seconds. Each host
    /// judges by its own clock whether a lease has ended. So tenure acquires nothing while its
    /// clock and the server's differ by more than a third of the ttl. A client that finds a lease
    /// ended at the same time as tenure may change its value although it comes too late: then
    /// tenure's lease is lost.
    Getset,
    /// `WATCH`, `GET`, `MULTI`, `SET` with `PX`, `EXEC`, and no scripts: every kind of lock, with
    /// fences and queues, in one value that other clients may see but not read. Each call takes two
    /// round trips, one call after another. While the server is out of memory nothing can be
    /// renewed or released.
    Watch,
    /// `SET key owner NX PX ttl`, and nothing beside it, as most libraries do. See
    /// [`Options::profile`](crate::Options::profile).
    SetNx,
    /// The locks of Redisson: waiters of either side are woken by the other's release. A mutex is an
    /// `RLock` or `RFencedLock`, which `RSpinLock` and `RNonReentrantLock` are as well; a reader or a
    /// writer has a share of an `RReadWriteLock`; permits are those of an
    /// `RPermitExpirableSemaphore` or an `RSemaphore`. Use one kind for a name: Redisson does not see
    /// that an `RLock` is held where it wants to read or write.
    ///
    /// The fence is the token of the `RFencedLock`, which tenure raises to the server's clock, in
    /// microseconds since 2026: so it does not fall when the server loses its data. Redisson's other
    /// locks count none: fences order those alone who count them. The prefix does what a `NameMapper`
    /// does.
    Redisson,
    /// The `RFairLock` of Redisson, and nothing but mutexes: clients of both sides are served in the
    /// order in which they came. Redisson counts on a `fairLockWaitTimeout` of 5 minutes, its default.
    RedissonFair,
}

const ALL: [Scheme; 9] = [
    Scheme::Native,
    Scheme::SetnxExpire,
    Scheme::SetnxExpireLua,
    Scheme::Php,
    Scheme::Getset,
    Scheme::Watch,
    Scheme::SetNx,
    Scheme::Redisson,
    Scheme::RedissonFair,
];

impl Scheme {
    /// The value of `scheme=`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::SetnxExpire => "setnx-expire",
            Self::SetnxExpireLua => "setnx-expire-lua",
            Self::Php => "php",
            Self::Getset => "getset",
            Self::Watch => "watch",
            Self::SetNx => "set-nx",
            Self::Redisson => "redisson",
            Self::RedissonFair => "redisson-fair",
        }
    }
}

const KNOWN: &str =
    "scheme= is one of native, set-nx, setnx-expire, setnx-expire-lua, php, getset, watch, redisson and redisson-fair";

impl FromStr for Scheme {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        ALL.into_iter().find(|scheme| scheme.name() == text).ok_or_else(|| {
            Error::invalid(format!("scheme={text} is no scheme of locks that this version knows on Redis")).with_hint(KNOWN)
        })
    }
}

/// Where a library keeps its locks, and how its waiters find out that one is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Profile {
    name: &'static str,
    /// In front of a name. `*` is the user's prefix.
    key: &'static str,
    /// The same of its further keys, if it takes a majority of several.
    further: &'static [&'static str],
    /// The default for the user's prefix. `None` if there is none.
    prefix: Option<&'static str>,
    wakes: Wakes,
    /// The same of the channel or the key by which it wakes waiters.
    beside: &'static str,
}

/// How a release wakes the waiters of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wakes {
    /// Not at all: they poll.
    No,
    /// They have the server notify them of each change of the key.
    Change,
    /// By a message on a channel.
    Message,
    /// By the one entry of a list.
    Entry,
}

/// The keys of a profile, for one prefix of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prefixes {
    /// In front of a name.
    pub(crate) name: String,
    /// In front of a name in its further keys, if there are any.
    pub(crate) further: Vec<String>,
    pub(crate) wakes: Wakes,
    /// In front of a name in the channel or the key by which waiters are woken.
    pub(crate) beside: String,
}

impl Prefixes {
    /// Keys of clients that poll.
    pub(crate) const fn of(name: String) -> Self {
        Self { name, further: Vec::new(), wakes: Wakes::No, beside: String::new() }
    }
}

const fn profile(name: &'static str, key: &'static str) -> Profile {
    Profile { name, key, further: &[], prefix: Some(""), wakes: Wakes::No, beside: "" }
}

/// Each of them sets the key to an opaque value with `NX` and a ttl, and deletes it by comparison,
/// unless a comment says otherwise.
const PROFILES: &[Profile] = &[
    profile("redsync", "*"),
    profile("redislock", "*"),
    profile("node-redlock", "*"),
    profile("redis-py", "*"),
    profile("rslock", "*"),
    profile("redlock-rs", "*"),
    profile("redlock-rb", "*"),
    profile("aioredlock", "*"),
    profile("redis-plus-plus", "*"),
    profile("redlock-php", "*"),
    profile("redlock-py", "*"),
    profile("madelson", "*"),
    profile("redlock.net", "*redlock:"),
    profile("pottery", "*redlock:"),
    profile("redis-semaphore", "*mutex:"),
    profile("distributed-lock-rs", "*distributed-lock:"),
    // The user's prefix is the environment. It deletes without comparing.
    Profile { prefix: Some("default"), ..profile("shedlock", "job-lock:*:") },
    // The user's prefix is the registry's key.
    Profile { prefix: None, wakes: Wakes::Message, beside: "*-channel:*:", ..profile("spring", "*:") },
    Profile { wakes: Wakes::Entry, beside: "lock-signal:*", ..profile("python-redis-lock", "lock:*") },
    // It takes two of three keys.
    Profile { further: &["*:1:", "*:2:"], prefix: Some("rueidislock"), wakes: Wakes::Change, ..profile("rueidislock", "*:0:") },
    // With a majority of one.
    Profile { prefix: Some("rueidislock"), wakes: Wakes::Change, ..profile("rueidislock-one", "*:0:") },
];

impl Profile {
    /// Where its locks are, for this prefix of the user.
    pub(crate) fn prefixes(self, users: &str) -> Result<Prefixes, Error> {
        let users = match self.prefix {
            Some(usual) if users.is_empty() => usual,
            None if users.is_empty() => {
                let what = format!("profile={} keeps a lock at <registry key>:<name>", self.name);
                return Err(Error::invalid(what).with_hint("give the registry key as prefix="));
            }
            _ => users,
        };
        let of_user = |key: &str| key.replace('*', users);
        let further = self.further.iter().map(|key| of_user(key)).collect();
        Ok(Prefixes { name: of_user(self.key), further, wakes: self.wakes, beside: of_user(self.beside) })
    }
}

impl FromStr for Profile {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        PROFILES.iter().find(|profile| profile.name == text).copied().ok_or_else(|| {
            let known: Vec<_> = PROFILES.iter().map(|profile| profile.name).collect();
            let what = format!("profile={text} is no library whose keys are known");
            Error::invalid(what)
                .with_hint(format!("give what it puts in front of a name as prefix=, or one of {}", known.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_where_each_library_has_them() {
        for (name, users, prefix, beside) in [
            ("redis-py", "", "", ""),
            ("redis-py", "app:", "app:", ""),
            ("pottery", "", "redlock:", ""),
            ("redlock.net", "app:", "app:redlock:", ""),
            ("shedlock", "", "job-lock:default:", ""),
            ("shedlock", "live", "job-lock:live:", ""),
            ("spring", "locks", "locks:", "locks-channel:locks:"),
            ("python-redis-lock", "app:", "lock:app:", "lock-signal:app:"),
            ("rueidislock-one", "app", "app:0:", ""),
        ] {
            let found = name.parse::<Profile>().unwrap().prefixes(users).unwrap();
            assert_eq!((&*found.name, &found.further[..], &*found.beside), (prefix, &[][..], beside), "{name} {users:?}");
        }
        let found = "rueidislock".parse::<Profile>().unwrap().prefixes("").unwrap();
        assert_eq!(
            (&*found.name, &found.further[..]),
            ("rueidislock:0:", &["rueidislock:1:".to_owned(), "rueidislock:2:".to_owned()][..])
        );
        assert!("spring".parse::<Profile>().unwrap().prefixes("").unwrap_err().to_string().contains("registry"));
        assert!("redlok".parse::<Profile>().unwrap_err().to_string().contains("redlock-py"));
    }
}
