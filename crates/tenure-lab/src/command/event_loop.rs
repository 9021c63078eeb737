//! The event loop of a command.

use super::exit::{Failure, UNREACHABLE};

/// Runs on this thread alone, as `tenure run` does: what a benchmark measures is the client as the command has it.
pub(super) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tenure::BootTime::check()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let no_runtime = |error| Failure::new(UNREACHABLE, format!("no event loop, {error}; nothing was done; see `ulimit -n`"));
    runtime.map_err(no_runtime)?.block_on(work)
}
