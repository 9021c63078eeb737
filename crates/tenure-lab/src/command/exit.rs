//! Exit codes, and the one line that says why. They are those of the `tenure` command.

use std::fmt;
use std::io::Write as _;

use tenure::{Error, ErrorKind};

/// A bad flag, value or URL.
pub(crate) const USAGE: u8 = 64;
/// The store gave no answer, or a program that is needed is not there.
pub(crate) const UNREACHABLE: u8 = 69;
/// A file cannot be read or written.
pub(crate) const DAMAGED: u8 = 74;
/// The store refused.
pub(crate) const REFUSED: u8 = 77;
/// A setting of the environment cannot be used.
pub(crate) const CONFIG: u8 = 78;
/// Exit code of a result that was not expected.
pub(crate) const UNEXPECTED: u8 = 1;

/// The end of a command that did not do what it was asked to.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// Problem, reason and fix; `None` if they were printed before.
    pub(crate) text: Option<String>,
}

impl Failure {
    pub(crate) fn new(code: u8, text: impl Into<String>) -> Self {
        Self { code, text: Some(text.into()) }
    }

    /// Something that the user must write differently.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::new(USAGE, text)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::Invalid | ErrorKind::Unsupported => USAGE,
            ErrorKind::Refused | ErrorKind::Mismatch => REFUSED,
            ErrorKind::Damaged => DAMAGED,
            _ => UNREACHABLE,
        };
        Self::new(code, error.to_string())
    }
}

/// Writes one line to stderr. Control characters are escaped: labels and values come from others.
pub(crate) fn say(text: impl fmt::Display) {
    let mut line = String::from("tenure: ");
    for c in text.to_string().trim_end().chars() {
        match c {
            '\n' | '\t' | '\r' => line.push(' '),
            c if c.is_control() => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    line.push('\n');
    let _ = std::io::stderr().write_all(line.as_bytes());
}
