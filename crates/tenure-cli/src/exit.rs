//! How the command ends: the codes, and the one line that says why.

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tenure::{Error, ErrorKind};

/// Usage: a bad name, flag, value or URL.
pub(crate) const USAGE: u8 = 64;
/// The store gave no answer.
pub(crate) const UNREACHABLE: u8 = 69;
/// The embedded file is corrupt, full or read-only, or the table of a database is missing.
pub(crate) const DAMAGED: u8 = 74;
/// Another held the name for as long as we were willing to wait.
pub(crate) const NOT_ACQUIRED: u8 = 75;
/// The store refused.
pub(crate) const REFUSED: u8 = 77;
/// The configuration file, or a file it names.
pub(crate) const CONFIG: u8 = 78;
/// The tenure ended before the work did.
pub(crate) const LOST: u8 = 79;
/// The command exists but cannot be run.
pub(crate) const CANNOT_RUN: u8 = 126;
/// The command was not found.
pub(crate) const NOT_FOUND: u8 = 127;

/// The code for a death by signal `n`.
pub(crate) fn by_signal(n: i32) -> u8 {
    u8::try_from(128 + n).unwrap_or(u8::MAX)
}

/// The end of a command that did not do what it was asked to.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Exit code of the process.
    pub(crate) code: u8,
    /// Message: what, why and what to do. `None` if it was printed before.
    pub(crate) text: Option<String>,
    /// The signal that ended us, if one did.
    pub(crate) signal: Option<i32>,
    /// The store is there, and says that it cannot serve now.
    pub(crate) is_answer: bool,
}

impl Failure {
    /// A failure with a message of the form "what, why; fix".
    pub(crate) fn new(code: u8, text: impl Into<String>) -> Self {
        Self { code, text: Some(text.into()), signal: None, is_answer: false }
    }

    /// Something that the user must write differently.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::new(USAGE, text)
    }

    /// A failure whose message was printed before.
    pub(crate) fn told(code: u8) -> Self {
        Self { text: None, ..Self::new(code, "") }
    }

    /// The same, with more that is true of it.
    pub(crate) fn and(self, more: &str) -> Self {
        let text = self.text.map_or_else(|| more.to_owned(), |text| format!("{text}; {more}"));
        Self { text: Some(text), ..self }
    }

    /// The end by a signal. Its sender knows of it.
    pub(crate) fn signalled(signal: i32) -> Self {
        Self { signal: Some(signal), ..Self::told(by_signal(signal)) }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let is_answer = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Overloaded);
        Self { is_answer, ..Self::new(code_of(&error), error.to_string()) }
    }
}

/// A failure of something that was done about a lock, and names it.
pub(crate) fn about(name: impl fmt::Display, error: Error) -> Failure {
    match error.kind() {
        ErrorKind::Refused
        | ErrorKind::Mismatch
        | ErrorKind::Damaged
        | ErrorKind::Unreachable
        | ErrorKind::Unavailable
        | ErrorKind::Overloaded => error.context(format_args!("the lock {name}")).into(),
        _ => error.into(),
    }
}

/// The exit code of an error from the library.
pub(crate) fn code_of(error: &Error) -> u8 {
    match error.kind() {
        ErrorKind::Invalid | ErrorKind::Unsupported => USAGE,
        ErrorKind::TimedOut => NOT_ACQUIRED,
        ErrorKind::Lost => LOST,
        ErrorKind::Refused | ErrorKind::Mismatch => REFUSED,
        ErrorKind::Damaged => DAMAGED,
        _ => UNREACHABLE,
    }
}

/// How much is said on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Voice {
    /// Errors and losses only.
    Quiet,
    /// Also why nothing was done, and outages.
    Normal,
    /// Also who holds, and what was taken and released.
    Verbose,
}

impl Voice {
    /// The voice of the two flags.
    pub(crate) fn new(quiet: bool, verbose: bool) -> Self {
        match (quiet, verbose) {
            (true, _) => Self::Quiet,
            (_, true) => Self::Verbose,
            _ => Self::Normal,
        }
    }

    /// Says what a user wants to know unless asked to be quiet.
    pub(crate) fn say(self, text: impl fmt::Display) {
        if self >= Self::Normal {
            say(text);
        }
    }

    /// Says it without waiting for a reader who may have stopped.
    pub(crate) fn say_aside(self, text: impl fmt::Display) -> Aside {
        if self >= Self::Normal { say_aside(text.to_string()) } else { Aside(None) }
    }

    /// Says what a user wants to know only when asked to be verbose.
    pub(crate) fn detail(self, text: impl fmt::Display) {
        if self >= Self::Verbose {
            say(text);
        }
    }

    /// The same without waiting for a reader who may have stopped.
    pub(crate) fn detail_aside(self, text: impl fmt::Display) -> Aside {
        if self >= Self::Verbose { say_aside(text.to_string()) } else { Aside(None) }
    }
}

/// Writes one line to stderr, in one piece.
pub(crate) fn say(text: impl fmt::Display) {
    let line = format!("tenure: {}\n", one_line(&text.to_string()));
    // A caller that closed our stderr does not want to know.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Asks on the terminal; whether the answer is yes.
pub(crate) fn ask(question: impl fmt::Display) -> bool {
    let question = format!("tenure: {} [y/N] ", one_line(&question.to_string()));
    let mut answer = String::new();
    let asked = std::io::stderr().write_all(question.as_bytes());
    asked.is_ok() && std::io::stdin().read_line(&mut answer).is_ok() && ["y", "yes"].contains(&&*answer.trim().to_lowercase())
}

/// A line that is being written while more urgent things are done.
#[derive(Debug)]
pub(crate) struct Aside(Option<JoinHandle<()>>);

/// Writes one line to stderr from a thread of its own: the reader may have stopped.
pub(crate) fn say_aside(text: String) -> Aside {
    let line = Arc::new(text);
    let theirs = Arc::clone(&line);
    let thread = Builder::new().name("tenure-stderr".into()).stack_size(128 * 1024).spawn(move || say(theirs));
    if thread.is_err() && takes_a_line() {
        say(line);
    }
    Aside(thread.ok())
}

/// Whether stderr takes a line at once.
fn takes_a_line() -> bool {
    let stderr = std::io::stderr();
    let mut polled = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    poll(&mut polled, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

impl Aside {
    /// Gives a reader a moment to take the line before another follows, or we exit. A reader that takes
    /// lines is not what is slow: then a busy machine keeps our thread, and it gets more time.
    pub(crate) async fn finish(&self) {
        const MOMENT: u32 = 50;
        const MORE: u32 = 2_500;
        for turn in 0..MORE {
            if self.0.as_ref().is_none_or(JoinHandle::is_finished) || (turn >= MOMENT && !takes_a_line()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// The text without anything that could break the line or drive the terminal: labels and values
/// come from others.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.trim_end().chars() {
        match c {
            '\n' | '\t' | '\r' => line.push(' '),
            c if c.is_control() => {
                // Writing to a String cannot fail.
                let _ = write!(line, "{}", c.escape_default());
            }
            c => line.push(c),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_error_has_its_code() {
        let table = [
            (ErrorKind::Invalid, 64),
            (ErrorKind::Unsupported, 64),
            (ErrorKind::TimedOut, 75),
            (ErrorKind::Lost, 79),
            (ErrorKind::Unreachable, 69),
            (ErrorKind::Unavailable, 69),
            (ErrorKind::Overloaded, 69),
            (ErrorKind::Refused, 77),
            (ErrorKind::Mismatch, 77),
            (ErrorKind::Damaged, 74),
        ];
        for (kind, code) in table {
            assert_eq!(code_of(&Error::new(kind, "x")), code, "{kind:?}");
        }
    }

    #[test]
    fn a_message_is_one_line_and_moves_no_cursor() {
        assert_eq!(one_line("a\nb\x1b[2Jc\n"), "a b\\u{1b}[2Jc");
    }

    #[tokio::test]
    async fn a_line_that_a_reader_would_take_is_waited_for() {
        let aside = Aside(Some(std::thread::spawn(|| std::thread::sleep(Duration::from_millis(700)))));
        aside.finish().await;
        assert!(aside.0.is_some_and(|thread| thread.is_finished()), "the process would exit without its last line");
    }

    #[test]
    fn signals_count_from_128() {
        assert_eq!(by_signal(15), 143);
        assert_eq!(by_signal(9), 137);
    }
}
