//! What Redis says when something goes wrong, in the classes of [`tenure::ErrorKind`].

use redis::RedisError;
use tenure::{Error, ErrorKind};

/// How a server's error starts, what that means, and what to do about it.
const ANSWERS: &[(&str, ErrorKind, &str, &str)] = &[
    ("READONLY", ErrorKind::Unavailable, "the server is a read-only replica", "point the store URL at the master"),
    ("LOADING", ErrorKind::Unavailable, "the server is loading its data", "wait until it has"),
    ("MASTERDOWN", ErrorKind::Unavailable, "the server is a replica without its master", "point the store URL at the master"),
    ("CLUSTERDOWN", ErrorKind::Unavailable, "the cluster is down", "look at the state of its nodes"),
    ("TRYAGAIN", ErrorKind::Unavailable, "the slot of the lock is being moved", "wait until it has"),
    ("BUSY", ErrorKind::Unavailable, "the server is busy with another client's script", "end it with SCRIPT KILL"),
    ("OOM", ErrorKind::Unavailable, "the server is out of memory", "raise its maxmemory or free some"),
    ("MISCONF", ErrorKind::Unavailable, "the server cannot save its data and takes no writes", "look at its log and its disk"),
    (
        "NOREPLICAS",
        ErrorKind::Unavailable,
        "the server has too few replicas to take writes",
        "look at min-replicas-to-write and its replicas",
    ),
    ("ERR max number of clients", ErrorKind::Unavailable, "the server has as many clients as it allows", "raise its maxclients"),
    ("NOAUTH", ErrorKind::Refused, "the server wants a password", "set TENURE_PASSWORD or put it in the store URL"),
    ("WRONGPASS", ErrorKind::Refused, "the server does not take this user name and password", "correct them"),
    ("ERR AUTH", ErrorKind::Refused, "the server does not take this user name and password", "correct them"),
    ("ERR invalid password", ErrorKind::Refused, "the server does not take this user name and password", "correct them"),
    (
        "NOPERM",
        ErrorKind::Refused,
        "the server does not permit it to this user",
        "grant the user the command and the keys with ACL SETUSER",
    ),
    (
        "ERR The user executing the script",
        ErrorKind::Refused,
        "the server does not permit it to this user",
        "grant the user the command and the keys with ACL SETUSER",
    ),
    (
        "ERR ACL failure in script",
        ErrorKind::Refused,
        "the server does not permit it to this user",
        "grant the user the command and the keys with ACL SETUSER",
    ),
    (
        "WRONGTYPE",
        ErrorKind::Refused,
        "the key holds another kind of value, so it is another kind of lock or no lock at all",
        "use another name, or a prefix= of your own",
    ),
    (
        "TENURECOUNTER",
        ErrorKind::Refused,
        "the grant counter cannot be used",
        "correct or delete that key, or use a prefix= of your own",
    ),
    ("MOVED", ErrorKind::Refused, "the server is a node of a cluster", "this version speaks to single servers only"),
    ("ASK", ErrorKind::Refused, "the server is a node of a cluster", "this version speaks to single servers only"),
    ("CROSSSLOT", ErrorKind::Refused, "the server is a node of a cluster", "this version speaks to single servers only"),
];

/// Turns an error of the client library into ours. A server's error means that the command was not applied; anything else
/// leaves that open.
pub(crate) fn translate(error: &RedisError) -> Error {
    if error.code().is_some() {
        return translate_answer(&text_of(error));
    }
    if error.kind() == redis::ErrorKind::AuthenticationFailed {
        return translate_answer(&format!("WRONGPASS {}", error.detail().unwrap_or_default()));
    }
    if error.kind() == redis::ErrorKind::UnexpectedReturnType || error.kind() == redis::ErrorKind::Parse {
        return unexpected(error);
    }
    Error::unreachable(format!("the connection failed: {error}")).maybe_applied()
}

/// An answer that no server which speaks this protocol gives.
pub(crate) fn unexpected(what: impl std::fmt::Display) -> Error {
    Error::refused(format!("the server gave an answer that makes no sense here: {what}"))
        .maybe_applied()
        .fix("make sure that it is a Redis or Valkey server")
}

pub(crate) fn is_noscript(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

/// Whether the server is, or was, another than the one whose grant counter we know.
pub(crate) fn doubts_counter(error: &RedisError) -> bool {
    matches!(error.code(), Some("READONLY" | "MOVED" | "ASK" | "LOADING"))
}

fn text_of(error: &RedisError) -> String {
    let code = error.code().unwrap_or("ERR");
    let detail = error.detail().unwrap_or_default();
    // Where a script failed is of no use to the reader.
    let detail = detail.split(" script: ").next().unwrap_or_default();
    format!("{code} {detail}").trim_end().to_owned()
}

fn translate_answer(text: &str) -> Error {
    let known = ANSWERS.iter().find(|(start, ..)| text.starts_with(start) || text.trim_start_matches("ERR ").starts_with(start));
    let (kind, what, fix) = match known {
        Some((_, kind, what, fix)) => (*kind, *what, *fix),
        None => (ErrorKind::Refused, "the server refused", "make sure that it is Redis 6.2 or newer, or a Valkey"),
    };
    Error::new(kind, format!("{what} ({text})")).fix(fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_answer_has_a_class() {
        for (text, kind) in [
            ("READONLY You can't write against a read only replica.", ErrorKind::Unavailable),
            ("OOM command not allowed when used memory > 'maxmemory'.", ErrorKind::Unavailable),
            ("ERR max number of clients reached", ErrorKind::Unavailable),
            ("BUSY Redis is busy running a script.", ErrorKind::Unavailable),
            ("NOAUTH Authentication required.", ErrorKind::Refused),
            ("NOPERM this user has no permissions to run the 'eval' command", ErrorKind::Refused),
            ("ERR The user executing the script can't run this command or subcommand", ErrorKind::Refused),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", ErrorKind::Refused),
            ("ERR something new", ErrorKind::Refused),
        ] {
            let error = translate_answer(text);
            assert_eq!((error.kind(), error.may_have_been_applied()), (kind, false), "{text}");
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
