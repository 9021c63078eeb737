//! Errors of MariaDB and MySQL, in the classes of [`tenure::ErrorKind`].

use std::fmt::Display;

use mysql_async::{DriverError, Error as Answer, IoError, ServerError};
use tenure::{Error, ErrorKind};

use super::statements::{CREATE, TABLE, VERSION};
use crate::table::Failed;
use crate::table::failure::{self, Meaning, one_line};

const DEADLOCK: u16 = 1_213;
/// The row was changed since the transaction began to read. Only newer servers look.
const CHANGED: u16 = 1_020;
/// The row is there already.
const DUPLICATE: u16 = 1_062;
/// The session to end has ended.
const NO_SESSION: u16 = 1_094;
const NO_TABLE: u16 = 1_146;
/// The session was killed, or the server shuts down.
const SESSION_OVER: &[u16] = &[1_053, 1_077, 1_080, 1_152, 1_158, 1_159, 1_160, 1_161, 1_927, 3_169, 4_031];
/// Another server may be in charge.
const READ_ONLY: &[u16] = &[1_290, 1_792, 1_836, 3_032];

const REPLICA: Meaning<u16> = Meaning {
    codes: READ_ONLY,
    kind: ErrorKind::Unavailable,
    what: "the server is read-only: it is a replica, or has become one",
    fix: "point the store URL at the primary",
};

const MEANINGS: &[Meaning<u16>] = &[
    Meaning {
        codes: &[1_044, 1_045, 1_049, 1_129, 1_130, 1_251, 1_698, 3_118, 3_159, 4_151],
        kind: ErrorKind::Refused,
        what: "the server does not let this user in",
        fix: "correct the user, the password (TENURE_PASSWORD) and the database of the store URL, or the user's rights",
    },
    Meaning {
        codes: &[1_142, 1_143, 1_227],
        kind: ErrorKind::Refused,
        what: "this user may not do that",
        fix: "grant it SELECT, INSERT, UPDATE and DELETE on the table",
    },
    REPLICA,
    Meaning {
        codes: &[1_205, 3_572],
        kind: ErrorKind::Overloaded,
        what: "another session keeps the row of the name locked",
        fix: "end the transaction that has it: see information_schema.innodb_trx",
    },
    Meaning {
        codes: &[1_317, 1_969, 3_024],
        kind: ErrorKind::Overloaded,
        what: "the statement took too long: another session keeps the row of the name locked, or the server is slow",
        fix: "end the transaction that has it: see information_schema.innodb_trx",
    },
    Meaning {
        codes: &[DEADLOCK, CHANGED, 1_412, 1_615],
        kind: ErrorKind::Overloaded,
        what: "others were faster again and again",
        fix: "try again",
    },
    Meaning {
        codes: &[1_040, 1_203, 1_226],
        kind: ErrorKind::Overloaded,
        what: "the server takes no more connections or statements of this user",
        fix: "raise its max_connections, or the limits of the user",
    },
    Meaning {
        codes: &[1_047],
        kind: ErrorKind::Unavailable,
        what: "the server is no working member of its cluster now",
        fix: "see its wsrep_cluster_status and wsrep_local_state_comment, or name another member in the store URL",
    },
    Meaning {
        codes: &[1_021, 1_037, 1_038, 1_041, 1_114],
        kind: ErrorKind::Unavailable,
        what: "the server cannot serve now",
        fix: "look at its log, its disk and its memory",
    },
    Meaning {
        codes: SESSION_OVER,
        kind: ErrorKind::Unreachable,
        what: "the server has ended the connection",
        fix: "see whether the server runs",
    },
    Meaning {
        codes: &[1_054, 1_091, 1_364],
        kind: ErrorKind::Damaged,
        what: "the table is not as tenure made it",
        fix: "make another with tenure's migration, and name it in the store URL: table=NAME",
    },
    Meaning {
        codes: &[1_264, 1_366, 1_406, 1_153],
        kind: ErrorKind::Invalid,
        what: "the table cannot keep this",
        fix: "use a shorter name or token, or fewer holders of one name",
    },
];

/// Translates an error of a statement. An error of the server means that it was not applied, unless
/// its session is over. Any other leaves that open.
pub(super) fn failed(answer: &Answer, table: &str) -> Failed {
    let Answer::Server(server) = answer else {
        let error = Error::unreachable(format!("the connection failed: {}", one_line(&answer.to_string()))).maybe_applied();
        return Failed { error, answered: false, is_over: true };
    };
    let over = SESSION_OVER.contains(&server.code);
    let error = translate(server, table);
    let error = if over { error.maybe_applied() } else { error };
    Failed { error, answered: true, is_over: over || READ_ONLY.contains(&server.code) }
}

/// Translates an error of the first steps of a connection, in which no statement was sent.
pub(super) fn contact(answer: &Answer, table: &str) -> Error {
    match answer {
        Answer::Server(server) => translate(server, table),
        Answer::Io(IoError::Tls(_)) | Answer::Driver(DriverError::NoClientSslFlagFromServer) => no_tls(answer),
        Answer::Io(IoError::Io(error)) if is_of_tls(error) => no_tls(error),
        other => Error::unreachable(format!("the server cannot be reached: {}", one_line(&other.to_string()))),
    }
}

/// Whether the server has undone a statement because of another transaction.
pub(super) fn is_overtaken(server: &ServerError) -> bool {
    [DEADLOCK, CHANGED].contains(&server.code)
}

/// Whether a statement found nothing to do: the row is there already, or the session gone.
pub(super) fn is_without_effect(server: &ServerError) -> bool {
    [DUPLICATE, NO_SESSION].contains(&server.code)
}

fn is_of_tls(error: &std::io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.downcast_ref::<rustls::Error>().is_some())
}

fn no_tls(why: &dyn Display) -> Error {
    Error::unreachable(format!("no TLS with the server: {}", one_line(&why.to_string())))
        .with_hint("see sslmode= and ca= of the store URL, and the server's certificate")
}

pub(super) fn is_missing(answer: &Answer) -> bool {
    matches!(answer, Answer::Server(server) if server.code == NO_TABLE)
}

fn translate(server: &ServerError, table: &str) -> Error {
    if server.code == NO_TABLE {
        return missing(table);
    }
    let meaning = MEANINGS.iter().find(|meaning| meaning.codes.contains(&server.code));
    failure::answered(meaning, &server.message, server.code)
}

/// The table is not there.
fn missing(table: &str) -> Error {
    failure::missing(table, &CREATE.join("; ").replace(TABLE, table))
}

/// The table is of another version, or its own row is gone.
pub(super) fn other_version(table: &str, found: Option<u64>) -> Error {
    failure::other_version(table, found, VERSION, &CREATE[1].replace(TABLE, table))
}

pub(super) fn read_only() -> Error {
    REPLICA.error()
}

#[cfg(test)]
mod tests {
    use tenure_testkit::page::{errors, told};

    use super::*;

    /// docs/errors.md has each line of the table, and says of it what the table does.
    #[test]
    fn the_page_of_errors_is_true() {
        let page = errors("MariaDB and MySQL");
        for (code, expected) in &page {
            let code = code.parse().unwrap();
            let answer = Answer::Server(ServerError { code, message: String::new(), state: String::new() });
            let failed = failed(&answer, "t");
            assert_eq!(told(&failed.error), *expected, "{code}");
            assert_eq!(failed.is_over, SESSION_OVER.contains(&code) || READ_ONLY.contains(&code), "{code}");
        }
        for code in MEANINGS.iter().flat_map(|meaning| meaning.codes) {
            assert!(page.iter().any(|(told, _)| *told == code.to_string()), "{code} is not on the page");
        }
    }

    #[test]
    fn a_row_that_is_there_and_a_session_that_is_gone_are_no_errors() {
        let error = |code| ServerError { code, message: String::new(), state: String::new() };
        assert!(is_without_effect(&error(DUPLICATE)) && is_without_effect(&error(NO_SESSION)));
        assert!(!is_without_effect(&error(DEADLOCK)));
    }
}
