//! Wire dialects: how locks are kept at a server, and who else keeps them so.

use std::str::FromStr;

use tenure::Error;

/// How locks are kept at the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scheme {
    /// Ours: every kind of lock, with fences and queues. A mutex is a string key that holds its owner, so that clients of `SET NX PX` which
    /// delete by comparison exclude us, and we them. They have no place in our queue: while
    /// somebody of ours is always in it, they may get no turn.
    #[default]
    Native,
    /// `SETNX`, then `EXPIRE`, then `DEL`. The other side may lock a name for ever by dying between its first two commands, and may delete
    /// a lock that is no longer its own; ours does neither.
    SetnxExpire,
    /// The same with the first two in one script. What is left of the other side's faults is that it may delete a lock of others.
    SetnxExpireLua,
    /// The key `Lock:<name>` holds when the lease was to end, in Unix seconds with up to four decimals, and has a ttl of at least 5 s: the PHP
    /// class that takes over locks whose holder died before it set the ttl. Ours takes them over when they were to end, and not before it
    /// saw them without a ttl for 5 s.
    Php,
    /// `SETNX`, `GET`, `GETSET` with the end of the lease as the value, in Unix milliseconds or, with [`Options::seconds`](crate::Options::seconds),
    /// seconds, and no ttl. Every host judges by its own clock whether a lease has ended, so ours takes nothing while its clock and
    /// the server's are apart by more than a third of the ttl. Others who find a lease ended at the same time may change its value although they come too late:
    /// then ours is lost.
    Getset,
    /// `WATCH`, `GET`, `MULTI`, `SET` with `PX`, `EXEC`, and no scripts: every kind of lock, with fences and queues, in one value that other
    /// clients may see and not read. Two round trips for each call, one call after another; while the server is out of memory nothing can be
    /// renewed or given up.
    Watch,
    /// `SET key owner NX PX ttl`, and nothing beside it: what most libraries do, see [`Options::profile`](crate::Options::profile).
    SetNx,
}

const ALL: [Scheme; 7] =
    [Scheme::Native, Scheme::SetnxExpire, Scheme::SetnxExpireLua, Scheme::Php, Scheme::Getset, Scheme::Watch, Scheme::SetNx];

impl Scheme {
    /// What `scheme=` calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::SetnxExpire => "setnx-expire",
            Self::SetnxExpireLua => "setnx-expire-lua",
            Self::Php => "php",
            Self::Getset => "getset",
            Self::Watch => "watch",
            Self::SetNx => "set-nx",
        }
    }
}

const SPOKEN: &str = "scheme= is one of native, set-nx, setnx-expire, setnx-expire-lua, php, getset and watch";

impl FromStr for Scheme {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        ALL.into_iter().find(|scheme| scheme.name() == text).ok_or_else(|| {
            Error::invalid(format!("scheme={text} is no lock dialect that this version speaks on Redis")).with_hint(SPOKEN)
        })
    }
}

/// Where a library keeps the lock of a name: what stands in front of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Profile {
    name: &'static str,
    /// `*` is the user's prefix.
    key: &'static str,
    /// What the prefix is where the user says none; `None` where there is no such thing.
    prefix: Option<&'static str>,
}

const fn profile(name: &'static str, key: &'static str) -> Profile {
    Profile { name, key, prefix: Some("") }
}

/// Every one sets the key to an opaque value with `NX` and a ttl in ms, and gives it up by comparison unless it says otherwise.
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
    // Its prefix is the environment. It deletes without comparing.
    Profile { name: "shedlock", key: "job-lock:*:", prefix: Some("default") },
    // Its prefix is the registry's key.
    Profile { name: "spring", key: "*:", prefix: None },
    // With a majority of one; by itself it wants two of three keys.
    Profile { name: "rueidislock", key: "*:0:", prefix: Some("rueidislock") },
];

impl Profile {
    /// What stands in front of a name, for a user whose prefix is this.
    pub(crate) fn prefix(self, users: &str) -> Result<String, Error> {
        let users = match self.prefix {
            Some(usual) if users.is_empty() => usual,
            None if users.is_empty() => {
                let what = format!("profile={} keeps a lock at <registry key>:<name>", self.name);
                return Err(Error::invalid(what).with_hint("say the registry key as prefix="));
            }
            _ => users,
        };
        Ok(self.key.replace('*', users))
    }
}

impl FromStr for Profile {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        PROFILES.iter().find(|profile| profile.name == text).copied().ok_or_else(|| {
            let known: Vec<_> = PROFILES.iter().map(|profile| profile.name).collect();
            let what = format!("profile={text} is no library whose keys are known");
            Error::invalid(what)
                .with_hint(format!("say what it puts in front of a name as prefix=, or one of {}", known.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_where_each_library_has_them() {
        for (name, users, prefix) in [
            ("redis-py", "", ""),
            ("redis-py", "app:", "app:"),
            ("pottery", "", "redlock:"),
            ("redlock.net", "app:", "app:redlock:"),
            ("shedlock", "", "job-lock:default:"),
            ("shedlock", "live", "job-lock:live:"),
            ("spring", "locks", "locks:"),
            ("rueidislock", "", "rueidislock:0:"),
        ] {
            assert_eq!(name.parse::<Profile>().unwrap().prefix(users).unwrap(), prefix, "{name} {users:?}");
        }
        assert!("spring".parse::<Profile>().unwrap().prefix("").unwrap_err().to_string().contains("registry"));
        assert!("redlok".parse::<Profile>().unwrap_err().to_string().contains("redlock-py"));
    }
}
