//! Errors that are the same for every database.

use std::fmt::Display;
use std::time::Duration;

use tenure::{Error, ErrorKind};

/// The meaning of errors of a server, which it tells apart by a code.
pub(crate) struct Meaning<C: 'static> {
    pub(crate) codes: &'static [C],
    pub(crate) kind: ErrorKind,
    pub(crate) what: &'static str,
    pub(crate) fix: &'static str,
}

impl<C> Meaning<C> {
    /// The error without the server's own words.
    pub(crate) fn error(&self) -> Error {
        Error::new(self.kind, self.what).with_hint(self.fix)
    }
}

/// The error of a server, with its own words and its code. `meaning`: none if it is not known.
pub(crate) fn answered<C>(meaning: Option<&Meaning<C>>, said: &str, code: impl Display) -> Error {
    let said = one_line(said);
    match meaning {
        Some(Meaning { kind, what, fix, .. }) => Error::new(*kind, format!("{what}: {said}")).with_hint(*fix),
        None => Error::refused(format!("the server answered: {said} ({code})")),
    }
}

const MISSING: &str = "there is no table";

/// The table is not there. `migration` makes it.
pub(crate) fn missing(table: &str, migration: &str) -> Error {
    let fix = format!("let tenure make it, with create=yes in the store URL, or run: {}", one_line(migration));
    Error::new(ErrorKind::Damaged, format!("{MISSING} {table} in the database")).with_hint(fix)
}

/// Whether an error says that the table is not there.
pub(crate) fn is_missing(error: &Error) -> bool {
    error.kind() == ErrorKind::Damaged && error.to_string().contains(MISSING)
}

/// The table was dropped, and the next connection makes it anew.
pub(crate) fn dropped() -> Error {
    Error::unavailable("the table was dropped, and is made anew, as create=yes says; who held or waited does not any more")
}

/// The table is not of the version that is `known`, or its own row is gone, which `row` makes.
pub(crate) fn other_version(table: &str, found: Option<impl Display>, known: impl Display, row: &str) -> Error {
    let (what, fix) = match found {
        Some(newer) => (
            format!("the table {table} is of version {newer}, and this tenure knows version {known}"),
            "update tenure, or name another table in the store URL: table=NAME".to_owned(),
        ),
        None => {
            (format!("the table {table} has lost its own row, the one with the empty name"), format!("run: {}", one_line(row)))
        }
    };
    Error::new(ErrorKind::Damaged, what).with_hint(fix)
}

/// Nothing came within the limit.
pub(crate) fn no_answer(limit: Duration) -> Error {
    Error::unreachable(format!("the server did not answer within {limit:?}"))
}

/// The server has answered other calls meanwhile.
pub(crate) fn no_turn(limit: Duration) -> Error {
    let what = format!("the server answered other calls before this one, which got no answer within {limit:?}");
    Error::overloaded(what).with_hint("see whether somebody keeps rows locked, or give the process fewer locks at once")
}

/// A pool lends a connection in which somebody has left a transaction open.
pub(crate) fn open_transaction() -> Error {
    Error::unavailable("the pool lent a connection with an open transaction")
        .with_hint("end each transaction before its connection goes back to the pool")
}

/// An answer that no server of this protocol gives.
pub(crate) fn unexpected(what: impl Display) -> Error {
    Error::refused(format!("the server gave an answer that makes no sense here: {what}")).maybe_applied()
}

pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
