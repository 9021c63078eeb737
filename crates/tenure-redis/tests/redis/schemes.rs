//! Conformance of the schemes of other clients, on a real server behind a proxy that can fall silent.

/// A point in time at a key is all that is a lock.
const NO_OTHER_VALUE: &[&str] = &["a_foreign_lock_and_ours_exclude_each_other", "a_lock_without_expiry_is_told"];

/// Which cases run, the parameters of a URL, what its keys have in front of a name, and what it cannot do.
macro_rules! schemes {
    ($($scheme:ident, $tier:ident: $parameters:literal, $before:literal, $exceptions:expr;)*) => {
        $(mod $scheme {
            use tenure_conformance::exceptions::MUTEXES_ONLY;

            #[allow(unused_imports, reason = "some know other values")]
            use super::NO_OTHER_VALUE;
            use crate::subject::Redis;

            fn subject() -> Redis {
                const EXCEPTIONS: &[&[&str]] = $exceptions;
                Redis::start($parameters, $before, EXCEPTIONS)
            }

            tenure_conformance::conformance!(subject, $tier);
        })*
    };
}

schemes! {
    set_nx, Contract: "?scheme=set-nx", "", &[MUTEXES_ONLY];
    // The same keys for another library: a name is what it puts behind its own prefix.
    pottery, Variant: "?scheme=set-nx&profile=pottery", "redlock:", &[MUTEXES_ONLY];
    spring, Variant: "?scheme=set-nx&profile=spring&prefix=app", "app:", &[MUTEXES_ONLY];
    python_redis_lock, Variant: "?scheme=set-nx&profile=python-redis-lock", "lock:", &[MUTEXES_ONLY];
    // A name is taken at two more keys, which a foreign lock has as well.
    rueidislock, Variant: "?scheme=set-nx&profile=rueidislock", "rueidislock:0:", &[MUTEXES_ONLY];
    php, Variant: "?scheme=php", "Lock:", &[MUTEXES_ONLY];
    getset, Contract: "?scheme=getset", "", &[MUTEXES_ONLY, NO_OTHER_VALUE];
    getset_in_seconds, Variant: "?scheme=getset&unit=s&win=past", "", &[MUTEXES_ONLY, NO_OTHER_VALUE];
    setnx_expire, Variant: "?scheme=setnx-expire&prefix=app:", "app:", &[MUTEXES_ONLY];
    setnx_expire_lua, Variant: "?scheme=setnx-expire-lua", "", &[MUTEXES_ONLY];
}

mod redisson {
    use tenure_conformance::exceptions::{NO_QUEUE, ONE_BY_ONE};

    use crate::subject::Redis;

    fn subject() -> Redis {
        Redis::start("?scheme=redisson", "", &[NO_QUEUE, ONE_BY_ONE])
    }

    tenure_conformance::conformance!(subject, Contract);
}

pub(crate) mod redisson_fair {
    use tenure_conformance::exceptions::{MUTEXES_ONLY, NO_PUSH, NO_QUEUE};

    use crate::subject::Redis;

    /// It has mutexes, with fences and a queue, and not the rest.
    pub(crate) fn exceptions() -> Vec<&'static str> {
        let counts = ["fences_rise_under_contention", "fences_rise_with_every_grant"];
        let of_readers = ["a_stream_of_readers_does_not_starve_a_writer", "readers_at_the_head_are_served_together"];
        let runs = |case: &str| counts.contains(&case) || (NO_QUEUE.contains(&case) && !of_readers.contains(&case));
        MUTEXES_ONLY.iter().copied().filter(|case| !runs(case) || NO_PUSH.contains(case)).collect()
    }

    fn subject() -> Redis {
        Redis::start("?scheme=redisson-fair", "", &[&exceptions()])
    }

    tenure_conformance::conformance!(subject, Contract);
}

mod watch {
    use crate::subject::Redis;

    fn subject() -> Redis {
        Redis::start("?scheme=watch", "", &[])
    }

    tenure_conformance::conformance!(subject, Contract);
}
