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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_timeout_is_added_to_any_url() {
        assert_eq!(patient("redis://a", "5s"), "redis://a?timeout=5s");
        assert_eq!(patient("redis://a?scheme=php", "5s"), "redis://a?scheme=php&timeout=5s");
    }

    #[tokio::test]
    async fn a_transient_error_is_tried_again_and_another_is_not() {
        let tries = Cell::new(0);
        let open = async |last: Error| {
            tries.set(tries.get() + 1);
            if tries.get() < 3 { Err(Error::unreachable("not yet")) } else { Err::<(), _>(last) }
        };
        let error = patiently(async || open(Error::invalid("never")).await).await.unwrap_err();
        assert_eq!((error.kind(), tries.get()), (tenure::ErrorKind::Invalid, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_try_that_took_all_the_time_is_not_the_last() {
        let tries = Cell::new(0);
        let opened = patiently(async || {
            tries.set(tries.get() + 1);
            if tries.get() > 1 {
                return Ok(());
            }
            sleep(2 * LONGEST).await;
            Err(Error::unreachable("no reply within 1s"))
        });
        opened.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn it_comes_to_an_end() {
        let open = patiently(async || Err::<(), _>(Error::unreachable("gone")));
        let error = tokio::time::timeout(2 * LONGEST, open).await.expect("it goes on").unwrap_err();
        assert_eq!(error.kind(), tenure::ErrorKind::Unreachable);
    }
}
