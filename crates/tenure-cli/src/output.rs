//! The result of a command, on stdout.

use std::io::{self, ErrorKind, Write, stdout};
use std::os::fd::AsFd as _;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::Signal;

use crate::exit::{DAMAGED, Failure, by_signal};

/// Writes the result of a command to stdout.
///
/// # Errors
/// Silent where the reader has closed the pipe, as `head` does: the code is that of a death by
/// SIGPIPE.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    write(text).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::told(by_signal(Signal::PIPE.as_raw())),
        _ => unwritten(&error),
    })
}

/// Fails as [`print`] does if the reader has closed the pipe, although there is nothing to write.
pub(crate) fn is_read() -> Result<(), Failure> {
    let out = stdout();
    let mut polled = [PollFd::new(out.as_fd(), PollFlags::empty())];
    let is_gone = poll(&mut polled, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
        && polled[0].revents().is_some_and(|events| events.contains(PollFlags::POLLERR));
    if is_gone { Err(Failure::told(by_signal(Signal::PIPE.as_raw()))) } else { Ok(()) }
}

/// Writes a result that somebody has to read, such as a token.
pub(crate) fn deliver(text: &str) -> Result<(), Failure> {
    write(text).map_err(|error| unwritten(&error))
}

/// Rows below a head, in columns.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let rows: Vec<_> = std::iter::once(head.map(String::from)).chain(rows.iter().cloned()).collect();
    let mut text = String::new();
    for row in &rows {
        for (column, cell) in row.iter().enumerate() {
            let width = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
            let padding = if column + 1 == row.len() { 0 } else { width - cell.chars().count() + 2 };
            text.push_str(cell);
            text.extend(std::iter::repeat_n(' ', padding));
        }
        text.push('\n');
    }
    text
}

/// A span as a number of JSON.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn write(text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

fn unwritten(error: &io::Error) -> Failure {
    Failure::new(DAMAGED, format!("the result cannot be written to stdout, {error}; give it a place to go"))
}
