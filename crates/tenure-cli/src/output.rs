//! The result of a command, on stdout.

use std::io::{self, ErrorKind, Write, stdout};

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

/// Writes a result that somebody has to read, such as a token.
pub(crate) fn deliver(text: &str) -> Result<(), Failure> {
    write(text).map_err(|error| unwritten(&error))
}

fn write(text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

fn unwritten(error: &io::Error) -> Failure {
    Failure::new(DAMAGED, format!("the result cannot be written to stdout, {error}; give it a place to go"))
}
