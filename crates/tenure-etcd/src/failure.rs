//! From an answer of gRPC to an error.

use std::time::Duration;

use tenure::{Error, ErrorKind};
use tonic::{Code, Status};

/// A call that was not answered as it should be.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) code: Code,
    pub(crate) error: Error,
    /// Another connection may serve better.
    pub(crate) leaves: bool,
    /// An etcd has said so.
    pub(crate) heard: bool,
}

/// There is no login, so nothing was sent.
impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { leaves: false, ..Self::unsent(error) }
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        failed.error
    }
}

/// The meaning of etcd's own answers: with one of these codes, if there are any, and one of these texts.
struct Meaning {
    codes: &'static [Code],
    texts: &'static [&'static str],
    kind: ErrorKind,
    /// The request may go through yet.
    is_open: bool,
    /// Another member may serve better.
    leaves: bool,
    fix: &'static str,
}

/// The first that fits.
const MEANINGS: &[Meaning] = &[
    // A learner looks at no request of a client.
    Meaning { codes: &[], texts: &["for learner"], kind: ErrorKind::Unreachable, is_open: false, leaves: true, fix: "" },
    // A member that is without its leader, or lost it on the way.
    Meaning {
        codes: &[],
        texts: &["no leader", "leader changed", "request timed out", "server stopped", "unhealthy cluster"],
        kind: ErrorKind::Unreachable,
        is_open: true,
        leaves: true,
        fix: "",
    },
    Meaning {
        codes: &[Code::PermissionDenied, Code::Unauthenticated],
        texts: &[""],
        kind: ErrorKind::Refused,
        is_open: false,
        leaves: false,
        fix: "correct the user, its password or its roles",
    },
    Meaning {
        codes: &[Code::FailedPrecondition, Code::InvalidArgument],
        texts: &["auth", "user name"],
        kind: ErrorKind::Refused,
        is_open: false,
        leaves: false,
        fix: "correct the user and the password",
    },
    // A member compares its size with the quota once more after a write, and then refuses that one.
    Meaning {
        codes: &[Code::ResourceExhausted],
        texts: &["space"],
        kind: ErrorKind::Unavailable,
        is_open: true,
        leaves: false,
        fix: "compact and defragment it, then: etcdctl alarm disarm",
    },
    Meaning {
        codes: &[Code::ResourceExhausted],
        texts: &["too many requests"],
        kind: ErrorKind::Overloaded,
        is_open: false,
        leaves: false,
        fix: "give etcd fewer requests at once, or a faster disk",
    },
    Meaning { codes: &[], texts: &[""], kind: ErrorKind::Unavailable, is_open: false, leaves: false, fix: "" },
];

impl Meaning {
    fn of(code: Code, said: &str) -> Option<&'static Self> {
        let fits = |meaning: &&Self| {
            (meaning.codes.is_empty() || meaning.codes.contains(&code)) && meaning.texts.iter().any(|text| said.contains(text))
        };
        MEANINGS.iter().find(fits)
    }
}

impl Failed {
    /// The answer to a call that has so much time. The client library has a timer for it as well, and so has the server.
    pub(crate) fn in_time(status: &Status, server: &str, limit: Duration) -> Self {
        match status.message() {
            "Timeout expired" => Self::silent(server, limit),
            _ => Self::of(status, server),
        }
    }

    pub(crate) fn of(status: &Status, server: &str) -> Self {
        let (code, text) = (status.code(), status.message());
        let Some(said) = text.strip_prefix("etcdserver: ").or_else(|| text.strip_prefix("auth: ")) else {
            return Self::unheard(code, text, server);
        };
        let Some(Meaning { kind, is_open, leaves, fix, .. }) = Meaning::of(code, said) else {
            return Self::unheard(code, text, server);
        };
        let error = Error::new(*kind, format!("{server} says: {said}"));
        let error = if *is_open { error.maybe_applied() } else { error };
        let error = if fix.is_empty() { error } else { error.with_hint(*fix) };
        Self { code, error, leaves: *leaves, heard: true }
    }

    /// No answer of etcd: the connection broke, or something else answered.
    fn unheard(code: Code, text: &str, server: &str) -> Self {
        let error = match code {
            Code::Unimplemented | Code::Unauthenticated | Code::PermissionDenied => {
                Error::refused(format!("{server} does not answer as etcd: {text}"))
            }
            // A member waits for its leader as long as the client does.
            _ if text == "context deadline exceeded" => {
                Error::unreachable(format!("{server} could not answer in time: it may be without a leader")).maybe_applied()
            }
            Code::OutOfRange => {
                let error = Error::unavailable(format!("the answer of {server} is too large: {text}")).maybe_applied();
                return Self { code, error, leaves: false, heard: false };
            }
            _ => Error::unreachable(format!("the connection to {server} broke: {text}")).maybe_applied(),
        };
        Self { code, error, leaves: true, heard: false }
    }

    /// The values of other programs have made the answer longer than the client takes.
    pub(crate) fn is_too_large(&self) -> bool {
        self.code == Code::OutOfRange && !self.heard
    }

    /// The answer is of no use: it tells of other locks.
    pub(crate) fn of_another_cluster(server: &str) -> Self {
        let error = Error::refused(format!("a member of {server} is of another cluster")).maybe_applied();
        let error = error.with_hint("name members of one cluster; if it was replaced, start this program again");
        Self { code: Code::FailedPrecondition, error, leaves: true, heard: true }
    }

    pub(crate) fn silent(server: &str, limit: Duration) -> Self {
        let error = Error::unreachable(format!("{server} did not answer within {limit:?}")).maybe_applied();
        Self { code: Code::DeadlineExceeded, error, leaves: true, heard: false }
    }

    /// The connection could not be made, so nothing was sent.
    pub(crate) fn unsent(error: Error) -> Self {
        Self { code: Code::Unavailable, error, leaves: true, heard: false }
    }

    /// A member knows no such user and password. One that was away knows the old ones.
    pub(crate) fn is_no_login(&self) -> bool {
        matches!(self.code, Code::InvalidArgument | Code::Unauthenticated)
    }

    /// The token of the login has expired, or the server has forgotten it.
    pub(crate) fn needs_login(&self) -> bool {
        let text = self.error.to_string();
        self.code == Code::Unauthenticated
            || (self.error.kind() == ErrorKind::Refused && text.contains("user name is empty"))
            || text.contains("revision of auth store is old")
    }
}

/// Nothing can be written until somebody makes room.
pub(crate) fn is_full(error: &Error) -> bool {
    error.to_string().contains("database space exceeded")
}

/// An answer that etcd does not give.
pub(crate) fn unexpected(why: &str) -> Error {
    Error::unavailable(format!("etcd's answer cannot be used: {why}")).maybe_applied()
}

#[cfg(test)]
mod tests {
    use tenure_testkit::page::{errors, told};

    use super::*;

    /// docs/errors.md has each line of the table, and says of it what the table does.
    #[test]
    fn the_page_of_errors_is_true() {
        let codes = (0..17).map(Code::from_i32);
        let status = |answer: &str| {
            let (code, text) = answer.split_once(": ").unwrap();
            Status::new(codes.clone().find(|known| format!("{known:?}") == code).unwrap(), text)
        };
        let page = errors("etcd");
        for (answer, expected) in &page {
            assert_eq!(told(&Failed::of(&status(answer), "etcd at x").error), *expected, "{answer}");
        }
        for text in MEANINGS.iter().flat_map(|meaning| meaning.texts) {
            assert!(page.iter().any(|(answer, _)| answer.contains(text)), "{text} is not on the page");
        }
    }

    #[test]
    fn a_write_that_fills_the_database_may_be_there() {
        let of = |text: &str| Failed::of(&Status::resource_exhausted(text), "etcd at x");
        let full = of("etcdserver: mvcc: database space exceeded");
        assert!(full.error.may_have_been_applied() && is_full(&full.error) && !full.leaves, "{full:?}");
        let busy = of("etcdserver: too many requests");
        assert!(!busy.error.may_have_been_applied() && !is_full(&busy.error), "{busy:?}");
        assert_eq!(busy.error.kind(), ErrorKind::Overloaded, "it serves others: {busy:?}");
    }
}
