//! Errors of PostgreSQL, in the classes of [`tenure::ErrorKind`].

use std::error::Error as _;

use tenure::{Error, ErrorKind};
use tokio_postgres::error::{DbError, SqlState};

use super::statements::{CREATE, TABLE, VERSION};
use crate::table::Failed;
use crate::table::failure::{self, Meaning, one_line};

/// Codes of errors after which the session is over, or should be: another server may be in charge.
const SESSION_OVER: &[&str] = &["57P", "08", "25006", "XX"];

/// Codes of errors that do not say whether the statement was applied.
const OPEN: &[&str] = &["57P01", "57P02", "57P05", "08", "40003", "XX"];

const REPLICA: Meaning<&str> = Meaning {
    codes: &["25006"],
    kind: ErrorKind::Unavailable,
    what: "the server is read-only: it is a replica, or has become one",
    fix: "point the store URL at the primary, or name all servers in it: postgres://one,two/db",
};

const MEANINGS: &[Meaning<&str>] = &[
    Meaning {
        codes: &["28", "3D000"],
        kind: ErrorKind::Refused,
        what: "the server does not let this user in",
        fix: "correct the user, the password (TENURE_PASSWORD) and the database of the store URL, or the server's pg_hba.conf",
    },
    Meaning {
        codes: &["42501"],
        kind: ErrorKind::Refused,
        what: "this user may not do that",
        fix: "grant it SELECT, INSERT, UPDATE and DELETE on the table",
    },
    REPLICA,
    Meaning {
        codes: &["53300"],
        kind: ErrorKind::Overloaded,
        what: "the server takes no more connections",
        fix: "raise its max_connections, or the limit of the user or the database",
    },
    Meaning {
        codes: &["53", "57P03", "58", "XX"],
        kind: ErrorKind::Unavailable,
        what: "the server cannot serve now",
        fix: "look at its log, its disk and its memory",
    },
    Meaning {
        codes: &["55P03"],
        kind: ErrorKind::Overloaded,
        what: "another session keeps the row of the name locked",
        fix: "end the transaction that has it: see pg_stat_activity and pg_blocking_pids",
    },
    Meaning {
        codes: &["57014"],
        kind: ErrorKind::Overloaded,
        what: "the statement took too long: another session keeps the row of the name locked, or the server is slow",
        fix: "end the transaction that has it, see pg_stat_activity and pg_blocking_pids, or raise the user's statement_timeout",
    },
    Meaning {
        codes: &["40001", "40P01"],
        kind: ErrorKind::Overloaded,
        what: "others were faster again and again",
        fix: "try again",
    },
    Meaning { codes: &["54000"], kind: ErrorKind::Refused, what: LIMIT, fix: "see what the server says of its limits" },
    Meaning { codes: &["40", "57P"], kind: ErrorKind::Unavailable, what: "the server gave the statement up", fix: "try again" },
    Meaning { codes: &["08"], kind: ErrorKind::Unreachable, what: "the connection is over", fix: "see whether the server runs" },
    Meaning {
        codes: &["42"],
        kind: ErrorKind::Damaged,
        what: "the table is not as tenure made it",
        fix: "make another with tenure's migration, and name it in the store URL: table=NAME",
    },
    Meaning {
        codes: &["22P05", "22021"],
        kind: ErrorKind::Invalid,
        what: "the database cannot keep this text",
        fix: "use a database with the encoding UTF8",
    },
];

const LIMIT: &str = "the server has reached a limit";

/// A division by zero in a statement that was to be undone as a whole.
const UNDONE: &str = "it was undone as a whole";

/// Translates an error of a statement. An error of the server means that it was not applied, unless
/// its session is over. Any other leaves that open.
pub(super) fn translate(error: &tokio_postgres::Error, table: &str) -> Error {
    let Some(server) = error.as_db_error() else {
        return Error::unreachable(format!("the connection failed: {}", chain(error))).maybe_applied();
    };
    let error = of_server(server, table);
    if starts(server.code(), OPEN) { error.maybe_applied() } else { error }
}

fn of_server(server: &DbError, table: &str) -> Error {
    let code = server.code();
    if *code == SqlState::UNDEFINED_TABLE {
        return missing(table);
    }
    if *code == SqlState::DIVISION_BY_ZERO {
        return Error::unavailable(UNDONE);
    }
    failure::answered(meaning(code), server.message(), code.code())
}

/// The first meaning that a code begins with.
fn meaning(code: &SqlState) -> Option<&'static Meaning<&'static str>> {
    MEANINGS.iter().find(|meaning| starts(code, meaning.codes))
}

/// Translates an error of the first steps of a connection, in which no statement was sent.
pub(super) fn translate_contact(error: &tokio_postgres::Error, table: &str) -> Error {
    if let Some(server) = error.as_db_error() {
        return of_server(server, table);
    }
    let said = chain(error);
    // The client library has no other sign for it.
    if said.contains("password missing") || said.contains("authentication") {
        return Error::refused(format!("the login failed: {said}"))
            .with_hint("set TENURE_PASSWORD, or put the password into the store URL");
    }
    if said.contains("TLS") {
        return Error::unreachable(format!("no TLS with the server: {said}"))
            .with_hint("see sslmode= and ca= of the store URL, and the server's certificate");
    }
    Error::unreachable(format!("the server cannot be reached: {said}"))
}

/// The failure of a statement.
pub(super) fn failed(error: &tokio_postgres::Error, table: &str) -> Failed {
    Failed { error: translate(error, table), answered: error.as_db_error().is_some(), is_over: ends_session(error) }
}

/// Whether the session should not be used any more.
fn ends_session(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_none_or(|server| starts(server.code(), SESSION_OVER))
}

/// Whether a write found some rows changed, and was undone.
pub(super) fn was_undone(error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable && error.to_string() == UNDONE
}

/// Whether the server has reached a limit, as with a full queue of notifications. Any user can fill that.
pub(super) fn is_beyond_limit(error: &Error) -> bool {
    error.kind() == ErrorKind::Refused && error.to_string().starts_with(LIMIT)
}

/// How often a statement is run that the server has undone because of another transaction.
const TRIES: u32 = 10;

/// Runs a statement again, [`TRIES`] times at most, while the server undoes it because of another
/// transaction.
pub(super) async fn while_overtaken<T, F: Future<Output = Result<T, tokio_postgres::Error>>>(
    mut run: impl FnMut() -> F,
) -> Result<T, tokio_postgres::Error> {
    let mut answer = run().await;
    for _ in 1..TRIES {
        match answer {
            Err(error) if is_overtaken(&error) => answer = run().await,
            _ => break,
        }
    }
    answer
}

fn is_overtaken(error: &tokio_postgres::Error) -> bool {
    [Some(&SqlState::T_R_SERIALIZATION_FAILURE), Some(&SqlState::T_R_DEADLOCK_DETECTED)].contains(&error.code())
}

/// Whether a lent connection was in a transaction, which may have failed already.
pub(super) fn is_in_transaction(error: &tokio_postgres::Error) -> bool {
    [Some(&SqlState::INVALID_TRANSACTION_TERMINATION), Some(&SqlState::IN_FAILED_SQL_TRANSACTION)].contains(&error.code())
}

/// The table is not there.
pub(super) fn missing(table: &str) -> Error {
    failure::missing(table, &CREATE.replace(TABLE, table))
}

/// The table is of another version, or its own row is gone.
pub(super) fn other_version(table: &str, found: Option<i64>) -> Error {
    failure::other_version(table, found, VERSION, &CREATE.replace(TABLE, table))
}

pub(super) fn read_only() -> Error {
    REPLICA.error()
}

fn starts(code: &SqlState, beginnings: &[&str]) -> bool {
    beginnings.iter().any(|start| code.code().starts_with(start))
}

/// The error with all below it, which its own text leaves out.
fn chain(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(source) = below {
        let said = source.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        below = source.source();
    }
    one_line(&text)
}

#[cfg(test)]
mod tests {
    use tenure_testkit::page::errors;

    use super::*;

    /// docs/errors.md has each line of the table, and says of it what the table does.
    #[test]
    fn the_page_of_errors_is_true() {
        let page = errors("PostgreSQL");
        for (code, [kind, applied]) in &page {
            let state = SqlState::from_code(code);
            let told = meaning(&state).map_or(ErrorKind::Refused, |meaning| meaning.kind);
            assert_eq!((format!("{told:?}"), starts(&state, OPEN)), (kind.clone(), applied == "maybe"), "{code}");
        }
        for meant in MEANINGS {
            for start in meant.codes {
                let is_it = |code: &str| meaning(&SqlState::from_code(code)).is_some_and(|found| found.what == meant.what);
                assert!(page.iter().any(|(code, _)| code.starts_with(start) && is_it(code)), "{start} is not on the page");
            }
        }
        for start in OPEN {
            assert!(page.iter().any(|(code, _)| code.starts_with(start)), "{start} is not on the page");
        }
    }

    #[test]
    fn a_session_that_may_be_over_is_left() {
        for (code, ends) in
            [("55P03", false), ("53300", false), ("40003", false), ("25006", true), ("57P03", true), ("XX000", true)]
        {
            assert_eq!(starts(&SqlState::from_code(code), SESSION_OVER), ends, "{code}");
        }
    }
}
