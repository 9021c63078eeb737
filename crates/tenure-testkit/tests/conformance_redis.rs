//! Conformance of the Redis store, in its native layout, on a real server behind a proxy that can fall silent; with functions and,
//! where the user may not load any, with scripts alone.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops where its set-up does")]

#[path = "redis/subject.rs"]
mod subject;

use subject::Redis;

fn subject() -> Redis {
    Redis::start("", "", &[])
}

tenure_testkit::conformance!(subject);

mod by_script {
    use super::*;

    fn subject() -> Redis {
        let subject = super::subject();
        // A server that knows no such command has no functions either.
        let _ = subject.server.command(&["ACL", "SETUSER", "default", "-function"]);
        subject
    }

    tenure_testkit::conformance!(subject);
}

/// Not a case: the workers of these tests begin here.
#[test]
fn worker() {
    tenure_testkit::worker::entry();
}
