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

fn answered(code: i32) -> Error {
    match code {
        NO_AUTH => Error::refused("ZooKeeper refuses this: the node is for others")
            .with_hint("log in with a user and a password that its ACL names, or use another prefix="),
        AUTH_FAILED => Error::refused("ZooKeeper refuses the login").with_hint("correct the user and the password"),
        NO_LOGIN => Error::refused("ZooKeeper refuses clients that are not logged in")
            .with_hint("give a user and a password, which a server has to take by its digest scheme"),
        INVALID_ACL => Error::refused("ZooKeeper refuses the ACL: nobody is logged in")
            .with_hint("acl=creator needs a user and a password, which a server takes by its digest scheme"),
        NO_CHILDREN => Error::new(ErrorKind::Mismatch, "a node above the name is ephemeral, and can have no locks below it")
            .with_hint("use another name, or another prefix="),
        BAD_ARGUMENTS => Error::invalid("ZooKeeper takes no such path").with_hint("use plain characters in the name"),
        QUOTA_EXCEEDED => Error::unavailable("the quota of a path above the name is used up")
            .with_hint("raise it with setquota, or use another prefix="),
        THROTTLED => Error::overloaded("ZooKeeper has more requests than it takes")
            .with_hint("give it fewer at once, or raise zookeeper.request_throttle_max_requests"),
        READ_ONLY => Error::unavailable("the server of ZooKeeper serves only reads, without a majority"),
        code => Error::unavailable(format!("ZooKeeper answered with the code {code}")),
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
    use super::*;

    /// A busy server is not an outage, and what a person has to mend is neither.
    #[test]
    fn each_code_has_its_kind() {
        use ErrorKind::{Invalid, Mismatch, Overloaded, Refused, Unavailable};
        for (code, kind) in [
            (THROTTLED, Overloaded),
            (READ_ONLY, Unavailable),
            (QUOTA_EXCEEDED, Unavailable),
            // Its connection loss and its timeout.
            (-4, Unavailable),
            (-7, Unavailable),
            (NO_AUTH, Refused),
            (AUTH_FAILED, Refused),
            (NO_LOGIN, Refused),
            (NO_CHILDREN, Mismatch),
            (BAD_ARGUMENTS, Invalid),
        ] {
            assert_eq!(answered(code).kind(), kind, "{code}");
        }
    }
}
