//! Patience with a store that is away, and with answers that are late.

use std::time::Duration;

use tenure::{Error, ReleaseOutcome};
use tokio::time::{Instant, sleep};

/// The longest that a call is tried, and the pause after each try.
const LONGEST: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(50);

/// Makes a call again for 20 s while its error is [transient](Error::is_transient). The server may just be
/// restarting, and a process that was stopped meanwhile finds its calls timed out.
///
/// # Errors
/// The last one of `call`.
pub async fn patiently<T>(call: impl AsyncFn() -> Result<T, Error>) -> Result<T, Error> {
    let until = Instant::now() + LONGEST;
    loop {
        // Before the try: a process may be stopped for all that time in the first one.
        let is_last = Instant::now() >= until;
        match call().await {
            Err(error) if error.is_transient() && !is_last => sleep(PAUSE).await,
            answer => return answer,
        }
    }
}

/// The store URL with an operation timeout that a pause of the server does not outlast, such as `5s`. Nothing is sent twice then.
#[must_use]
pub fn patient(url: &str, timeout: &str) -> String {
    format!("{url}{}timeout={timeout}", if url.contains('?') { '&' } else { '?' })
}

/// The outcome of a release that was answered. Panics with the error of one that was not: it may only be late.
pub fn answered(released: Result<ReleaseOutcome, Error>) -> ReleaseOutcome {
    let answered = match released.unwrap() {
        ReleaseOutcome::Unknown { error, .. } => Err(error),
        outcome => Ok(outcome),
    };
    answered.unwrap()
}

/// How many of `steps` alike steps a test takes: all of them with `TENURE_TEST_ALL` in the environment, else a fifth.
#[must_use]
pub fn some_of(steps: usize) -> usize {
    if std::env::var_os("TENURE_TEST_ALL").is_some() { steps } else { steps.div_ceil(5) }
}
