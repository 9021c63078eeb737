//! Conformance of the Redis store, in its native layout, on a real server behind a proxy that can fall silent; with functions and,
//! where the user may not load any, with scripts alone.

use crate::subject::Redis;

fn subject() -> Redis {
    Redis::start("", "", &[])
}

tenure_conformance::conformance!(subject);

/// A server that sentinels name: another source of connections. Sentinels do not take part in a fault, so none of them begins a failover.
mod by_sentinels {
    use super::*;

    fn subject() -> Redis {
        Redis::named_by_sentinels()
    }

    tenure_conformance::conformance!(subject, Variant);
}

/// A server with a replica, which confirms each grant and each renewal.
mod confirmed {
    use super::*;

    fn subject() -> Redis {
        Redis::confirmed()
    }

    tenure_conformance::conformance!(subject, Contract);
}

mod by_script {
    use super::*;

    fn subject() -> Redis {
        let subject = super::subject();
        // A server that knows no such command has no functions either.
        let _ = subject.server.command(&["ACL", "SETUSER", "default", "-function"]);
        subject
    }

    tenure_conformance::conformance!(subject, Variant);
}
