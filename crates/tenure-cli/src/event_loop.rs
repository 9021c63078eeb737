//! The runtime that everything runs on.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic;

use tokio::runtime::{Builder, Runtime};

use crate::exit::{self, Failure};

/// Descriptors that the shortest run needs, and a few more. Some code can only panic without one.
const DESCRIPTORS: usize = 32;

/// Whether there are enough descriptors to begin anything that has to be ended.
fn has_descriptors() -> io::Result<()> {
    let spare: io::Result<Vec<OwnedFd>> = (0..DESCRIPTORS).map(|_| io::stdin().as_fd().try_clone_to_owned()).collect();
    spare.map(drop)
}

/// The runtime, which panics where it gets no sockets to hear of signals by.
fn event_loop() -> io::Result<Runtime> {
    let before = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let built = panic::catch_unwind(|| Builder::new_current_thread().enable_all().build());
    panic::set_hook(before);
    built.unwrap_or_else(|_| Err(io::Error::other("the system gives no sockets for signals")))
}

/// Runs on this thread alone: a child dies with the thread that started it, and one thread starts
/// fastest.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tenure::BootTime::check()?;
    let runtime = has_descriptors().and_then(|()| event_loop());
    let runtime =
        runtime.map_err(|e| Failure::new(exit::UNREACHABLE, format!("no event loop, {e}; nothing was done; see `ulimit -n`")))?;
    let ended = runtime.block_on(work);
    // A name look-up that hangs must not hold up our end.
    runtime.shutdown_background();
    ended
}
