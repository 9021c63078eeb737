//! How long a thread waits for other processes before it reports the file as busy.

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

use super::failure::Failure;

thread_local! {
    static UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Runs `work`, and waits until then if the file is locked.
pub(super) fn until<T>(until: Instant, work: impl FnOnce() -> T) -> T {
    let before = UNTIL.replace(Some(until));
    let done = work();
    UNTIL.set(before);
    done
}

/// SQLite's busy handler: waits a little and says whether to retry.
///
/// A transaction takes some tens of microseconds, so the handler that SQLite brings, with its steps
/// of up to 100 ms, would idle and starve. The jitter keeps processes that were refused together
/// from coming back together.
pub(super) fn wait(times: i32) -> bool {
    let left = UNTIL.get().map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
    if left.is_zero() {
        return false;
    }
    let longest = 100_u64 << times.clamp(0, 5);
    thread::sleep(Duration::from_micros(fastrand::u64(longest / 4..=longest)).min(left));
    true
}

/// Number of tries for a file that cannot be opened: another process may create or delete a
/// companion just then.
const TRIES: i32 = 12;

fn is_passing(failure: &Failure, times: i32) -> bool {
    failure.is_busy() || matches!(failure, Failure::Replaced) || (failure.is_cannot_open() && times < TRIES)
}

/// Retries calls that SQLite gives up without the busy handler.
pub(super) fn persist<T>(mut work: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    let mut times = 0;
    loop {
        match work() {
            Err(failure) if is_passing(&failure, times) && wait(times) => times += 1,
            done => return done,
        }
    }
}
