//! The result of a command, on stdout.

use std::io::{ErrorKind, Write, stdout};

use rustix::process::Signal;

use crate::exit::{DAMAGED, Failure, by_signal};

/// Writes the result of a command to stdout.
///
/// # Errors
/// Silent where the reader has closed the pipe, as `head` does: the code is that of a death by SIGPIPE.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::told(by_signal(Signal::PIPE.as_raw())),
        _ => Failure::new(DAMAGED, format!("the result cannot be written to stdout, {error}; give it a place to go")),
    })
}
