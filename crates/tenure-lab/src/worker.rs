//! The processes under test: the program that runs the lab becomes them when it is told so.

use std::io;

use crate::{bench, broken, soak};

/// Becomes the process that `arguments` name, until standard input ends.
///
/// # Errors
/// For arguments that name none, and where the process cannot go on.
pub fn serve(arguments: &[String]) -> io::Result<()> {
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["store", url] => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(tenure_testkit::worker::run(url));
            Ok(())
        }
        ["bench"] => tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(bench::serve()),
        ["soak"] => soak::serve(),
        ["broken-lock", id, who, scale] => {
            let who = who.parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, format!("{who:?} is no number")))?;
            broken::play(id, who, scale)
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "expected: store URL | bench | soak | broken-lock ID NUMBER SCALE")),
    }
}
