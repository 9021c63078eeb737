//! Why a request failed, and the error that callers get.

use std::time::Duration;

use tenure::{Error, ErrorKind, format_duration};

use crate::wire::Reading;

pub(crate) const NO_NODE: i32 = -101;
pub(crate) const NODE_EXISTS: i32 = -110;
pub(crate) const UNIMPLEMENTED: i32 = -6;
pub(crate) const NO_AUTH: i32 = -102;
const NO_CHILDREN: i32 = -108;
const INVALID_ACL: i32 = -114;
pub(crate) const AUTH_FAILED: i32 = -115;
const BAD_ARGUMENTS: i32 = -8;
const SESSION_EXPIRED: i32 = -112;
const SESSION_MOVED: i32 = -118;
const NO_LOGIN: i32 = -124;
const QUOTA_EXCEEDED: i32 = -125;
const THROTTLED: i32 = -127;
const READ_ONLY: i32 = -119;

/// Why a request has no good answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// The server answered with this code: it was not done.
    Code(i32),
    /// The connection broke, or no server took the session up again. If it was not sent, it was not done.
    Cut { sent: bool },
    /// The ensemble has ended the session, and all its nodes with it.
    Over,
    /// The answer makes no sense.
    Garbled,
}

impl Failed {
    /// Reads the code of an answer; `None` if all is well.
    pub(crate) fn of(code: i32) -> Option<Self> {
        match code {
            0 => None,
            SESSION_EXPIRED => Some(Self::Over),
            code => Some(Self::Code(code)),
        }
    }

    /// Reads whether a transaction was done.
    pub(crate) fn of_transaction(answer: &[u8]) -> Result<(), Self> {
        let code = Reading(answer).code().ok_or(Self::Garbled)?;
        Self::of(code).map_or(Ok(()), Err)
    }

    /// Whether the server has this session at another place by now.
    pub(crate) fn is_moved(code: i32) -> bool {
        code == SESSION_MOVED
    }

    /// The error of a call that may change something.
    pub(crate) fn error(self) -> Error {
        match self {
            Self::Code(code) => answered(code),
            Self::Cut { sent: false } => Error::unreachable("there is no connection to ZooKeeper"),
            Self::Cut { sent: true } => {
                Error::unreachable("the connection to ZooKeeper broke before the answer came").maybe_applied()
            }
            // Nodes of a session that has ended are gone, so nothing of the call is left.
            Self::Over => Error::unreachable("ZooKeeper has ended the session"),
            Self::Garbled => Error::unreachable("ZooKeeper answered in a way that makes no sense").maybe_applied(),
        }
    }
}

/// Codes with what they mean, and what can be done about it.
const MEANINGS: &[(i32, ErrorKind, &str, &str)] = &[
    (
        NO_AUTH,
        ErrorKind::Refused,
        "ZooKeeper refuses this: the node is for others",
        "log in with a user and a password that its ACL names, or use another prefix=",
    ),
    (AUTH_FAILED, ErrorKind::Refused, "ZooKeeper refuses the login", "correct the user and the password"),
    (
        NO_LOGIN,
        ErrorKind::Refused,
        "ZooKeeper refuses clients that are not logged in",
        "give a user and a password, which a server has to take by its digest scheme",
    ),
    (
        INVALID_ACL,
        ErrorKind::Refused,
        "ZooKeeper refuses the ACL: nobody is logged in",
        "acl=creator needs a user and a password, which a server takes by its digest scheme",
    ),
    (
        NO_CHILDREN,
        ErrorKind::Mismatch,
        "a node above the name is ephemeral, and can have no locks below it",
        "use another name, or another prefix=",
    ),
    (BAD_ARGUMENTS, ErrorKind::Invalid, "ZooKeeper takes no such path", "use plain characters in the name"),
    (
        QUOTA_EXCEEDED,
        ErrorKind::Unavailable,
        "the quota of a path above the name is used up",
        "raise it with setquota, or use another prefix=",
    ),
    (
        THROTTLED,
        ErrorKind::Overloaded,
        "ZooKeeper has more requests than it takes",
        "give it fewer at once, or raise zookeeper.request_throttle_max_requests",
    ),
    (
        READ_ONLY,
        ErrorKind::Unavailable,
        "the server of ZooKeeper serves only reads, without a majority",
        "see whether a majority of its servers runs",
    ),
];

fn answered(code: i32) -> Error {
    match MEANINGS.iter().find(|(known, ..)| *known == code) {
        Some((_, kind, what, fix)) => Error::new(*kind, *what).with_hint(*fix),
        None => Error::unavailable(format!("ZooKeeper answered with the code {code}")),
    }
}

/// No session can keep a lease for that long.
pub(crate) fn too_long(longest: Duration) -> Error {
    let what = format!("the ensemble keeps a lease for at most {}", format_duration(longest));
    Error::new(ErrorKind::Unsupported, what).with_hint("use a shorter ttl, or raise maxSessionTimeout of the servers")
}

/// Nothing came within the limit.
pub(crate) fn no_answer(limit: Duration) -> Error {
    Error::unreachable(format!("ZooKeeper did not answer within {limit:?}")).maybe_applied()
}

#[cfg(test)]
mod tests {
    use tenure_testkit::page::{errors, told};

    use super::*;

    /// docs/errors.md has each line of the table, and says of it what the table does.
    #[test]
    fn the_page_of_errors_is_true() {
        let page = errors("ZooKeeper");
        for (code, expected) in &page {
            assert_eq!(told(&Failed::of(code.parse().unwrap()).unwrap().error()), *expected, "{code}");
        }
        for (code, ..) in MEANINGS {
            assert!(page.iter().any(|(told, _)| *told == code.to_string()), "{code} is not on the page");
        }
    }
}
