//! Meanings of the errors of Redis.

use tenure::ErrorKind;

/// How to fix a grant counter that cannot be used.
pub(crate) const COUNTER_FIX: &str = "delete the key tenure:fence (your prefix= stands in front): the next grant makes it anew from the \
     server's clock, and fences that were made of the old one may be larger than the next";

/// Code of the error for a full submission queue.
pub(super) const CROWDED: &str = "TENURECROWDED";

/// Code of the error of a node of a quorum that does not vote, or is another run of the server than the client knows.
pub(super) const LOST: &str = "TENURELOST";

/// Code of the error in place of an answer that makes no sense, while that is taken for an outage.
pub(super) const AWAY: &str = "TENUREAWAY";

pub(super) const NO_SENSE: &str = "the server, or a proxy before it, gives answers that make no sense";

pub(super) const NO_VOTE: &str = "the server may have lost its data, and does not vote";

/// The meaning of a server's error.
pub(super) struct Meaning {
    /// Beginnings of the error.
    pub(super) starts: &'static [&'static str],
    pub(super) kind: ErrorKind,
    pub(super) what: &'static str,
    pub(super) fix: &'static str,
    /// The command may have been applied.
    pub(super) maybe: bool,
}

/// Beginnings of the errors of a replica. The last two answer durability=.
pub(super) const REPLICA: &[&str] =
    &["READONLY", "ERR WAIT cannot be used with replica", "ERR WAITAOF cannot be used with replica"];
/// The same of one that has become a replica while a client waited for copies.
pub(super) const DEMOTED: &[&str] = &["UNBLOCKED"];
pub(super) const CUT_OFF: &[&str] = &["MASTERDOWN"];
/// Beginnings of the error of a script that touched a key again that it had deleted, in a slot that moves.
pub(super) const CUT_SHORT: &[&str] =
    &["ERR Script attempted to access a non local key", "Lua script attempted to access a non local key"];
/// Beginnings of the errors of a proxy that has no server behind it: Envoy's, and those of the system, which twemproxy passes on.
const NO_UPSTREAM: &[&str] = &[
    "upstream failure",
    "no upstream host",
    "ERR upstream failure",
    "ERR no upstream host",
    "ERR Connection refused",
    "ERR Connection reset by peer",
    "ERR Connection timed out",
    "ERR Host is down",
    "ERR No route to host",
];

const fn unavailable(starts: &'static [&'static str], what: &'static str, fix: &'static str) -> Meaning {
    Meaning { starts, kind: ErrorKind::Unavailable, what, fix, maybe: false }
}

const fn refused(starts: &'static [&'static str], what: &'static str, fix: &'static str) -> Meaning {
    Meaning { starts, kind: ErrorKind::Refused, what, fix, maybe: false }
}

pub(super) const MEANINGS: &[Meaning] = &[
    unavailable(REPLICA, "the server is a read-only replica", "point the store URL at the master"),
    Meaning {
        starts: DEMOTED,
        kind: ErrorKind::Unreachable,
        what: "the server has become a replica before copies were confirmed",
        fix: "point the store URL at the master",
        maybe: true,
    },
    unavailable(&["TRYAGAIN"], "the slot of the lock is being moved", "wait until it has"),
    Meaning { maybe: true, ..unavailable(CUT_SHORT, "the slot of the lock is being moved", "wait until it has") },
    unavailable(&["LOADING"], "the server is loading its data", "wait until it has"),
    unavailable(CUT_OFF, "the server is a replica without its master", "point the store URL at the master"),
    unavailable(&["CLUSTERDOWN"], "the cluster is down", "look at the state of its nodes"),
    unavailable(&[LOST], NO_VOTE, "look at `tenure show --servers`"),
    Meaning {
        starts: NO_UPSTREAM,
        kind: ErrorKind::Unavailable,
        what: "a proxy has no server behind it",
        fix: "look at the server",
        maybe: true,
    },
    Meaning { starts: &[AWAY], kind: ErrorKind::Unavailable, what: NO_SENSE, fix: "look at what answers there", maybe: true },
    unavailable(&[CROWDED], "too much waits to be sent to the server", "send less at once, or look at the link"),
    unavailable(&["BUSY"], "the server is busy with another client's script", "end it with SCRIPT KILL"),
    unavailable(&["OOM"], "the server is out of memory", "raise its maxmemory or free some"),
    unavailable(&["MISCONF"], "the server cannot save its data and takes no writes", "look at its log and its disk"),
    unavailable(
        &["NOREPLICAS"],
        "the server has too few replicas to take writes",
        "look at its replicas and min-replicas-to-write",
    ),
    unavailable(&["ERR max number of clients"], "the server has as many clients as it allows", "raise its maxclients"),
    refused(&["NOAUTH"], "the server wants a password", "set TENURE_PASSWORD or put it in the store URL"),
    refused(
        &["WRONGPASS", "ERR AUTH", "ERR invalid password"],
        "the server does not take this user name and password",
        "correct them",
    ),
    refused(
        &["NOPERM", "ERR The user executing the script", "ERR ACL failure in script", "The user executing the script"],
        "the server does not permit it to this user",
        "grant the user the command and the keys with ACL SETUSER",
    ),
    Meaning {
        starts: &["TENUREMORE"],
        kind: ErrorKind::Invalid,
        what: "the owner holds or waits for a smaller share than it asks for, or for one of another kind",
        fix: "release that first, or take the other share with an acquisition of its own",
        maybe: false,
    },
    Meaning {
        starts: &["WRONGTYPE", "TENUREKIND"],
        kind: ErrorKind::Mismatch,
        what: "the key holds another kind of value, so it is another kind of lock or no lock at all",
        fix: "use another name, or a prefix= of your own",
        maybe: false,
    },
    Meaning {
        starts: &["TENURETIMESTAMP"],
        kind: ErrorKind::Mismatch,
        what: "the value at the key is no timestamp value of this scheme",
        fix: "use the scheme= and unit= of those who share the key, or another name",
        maybe: false,
    },
    refused(
        &["TENURECLOCK"],
        "in this scheme every host judges by its own clock when a lease ends, and two clocks are more than a third of the ttl apart",
        "set the clocks, or use a scheme in which the server's clock decides, such as set-nx",
    ),
    refused(
        &["TENURECOUNTER", "ERR increment or decrement would overflow", "ERR value is not an integer"],
        "the grant counter cannot be used",
        COUNTER_FIX,
    ),
    refused(&["TENUREYEAR"], "no fence can be made", "set the clock of the server"),
    refused(
        &["MOVED", "ASK", "CROSSSLOT"],
        "the server is a node of a cluster",
        "write redis+cluster:// (or rediss+cluster://) and the same address",
    ),
    refused(
        &["ERR This instance has cluster support disabled"],
        "the server is no node of a cluster",
        "write redis:// (or rediss://) and the same address",
    ),
];

pub(super) const UNKNOWN: Meaning = refused(&[], "the server refused", "make sure that it is Redis 6.2 or newer, or a Valkey");
