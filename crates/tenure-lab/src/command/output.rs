//! Prints the result of a command.

use std::io::{Write, stdout};

use clap::ValueEnum;

use super::exit::{DAMAGED, Failure};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// For people and shells
    #[default]
    Text,
    /// For programs
    Json,
}

/// Prints the result of a command.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    let mut out = stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|e| match e.kind() {
        // The reader has enough. A filter ends like this by its signal.
        std::io::ErrorKind::BrokenPipe => Failure { code: 128 + 13, text: None },
        _ => Failure::new(DAMAGED, format!("the result cannot be written to stdout, {e}; give it a place to go")),
    })
}
