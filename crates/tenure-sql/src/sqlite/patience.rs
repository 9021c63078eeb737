//! How long a thread lets other processes finish before it calls the file busy.

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

use super::failure::Failure;

thread_local! {
    static UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Runs `work` with patience until then. Whoever finds the file locked earlier than that waits.
pub(super) fn until<T>(until: Instant, work: impl FnOnce() -> T) -> T {
    let before = UNTIL.replace(Some(until));
    let done = work();
    UNTIL.set(before);
    done
}

/// SQLite's busy handler: waits a little and says whether to try again.
///
/// A transaction takes some tens of microseconds, so the handler that SQLite brings, with its steps of up to 100 ms, would idle
/// and starve. The jitter keeps processes that were refused together from coming back together.
pub(super) fn wait(times: i32) -> bool {
    let left = UNTIL.get().map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
    if left.is_zero() {
        return false;
    }
    let longest = 100_u64 << times.clamp(0, 5);
    thread::sleep(Duration::from_micros(fastrand::u64(longest / 4..=longest)).min(left));
    true
}

/// How often a file that cannot be opened is tried: a companion beside it may come or go just then with another process.
const TRIES: i32 = 12;

fn is_passing(failure: &Failure, times: i32) -> bool {
    failure.is_busy() || matches!(failure, Failure::Replaced) || (failure.is_cannot_open() && times < TRIES)
}

/// Repeats what SQLite gives up on without asking the busy handler.
pub(super) fn persist<T>(mut work: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    let mut times = 0;
    loop {
        match work() {
            Err(failure) if is_passing(&failure, times) && wait(times) => times += 1,
            done => return done,
        }
    }
}
