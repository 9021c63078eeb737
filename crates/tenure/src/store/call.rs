//! One call to a store: its timeout, and the pause before the next one.

use std::time::Duration;

use crate::Error;

/// Runs one call, with an error if no answer comes within `limit`.
pub(crate) async fn within<T>(limit: Duration, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let no_answer = |_| Err(Error::unreachable(format!("the store did not answer within {limit:?}")).maybe_applied());
    tokio::time::timeout(limit, call).await.unwrap_or_else(no_answer)
}

/// Pause between calls that may take `limit` each. Long enough not to burden a store in trouble,
/// with jitter so that clients do not retry in step.
pub(crate) fn backoff(limit: Duration) -> Duration {
    let base = (limit / 4).clamp(Duration::from_millis(5), Duration::from_millis(250));
    base.mul_f64(0.75 + fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_between_tries_is_measured_and_out_of_step() {
        let secs = Duration::from_secs_f64;
        // A quarter of the operation timeout, within bounds.
        for (limit, base) in [(secs(0.01), 0.005), (secs(0.2), 0.05), (secs(0.5), 0.125), (secs(10.0), 0.25)] {
            let pauses: Vec<Duration> = (0..200).map(|_| backoff(limit)).collect();
            let (least, most) = (pauses.iter().min().unwrap(), pauses.iter().max().unwrap());
            assert!(*least >= secs(base * 0.75) && *most <= secs(base * 1.25), "{limit:?}: {least:?} to {most:?}");
            assert!(most.saturating_sub(*least) > secs(base * 0.2), "{limit:?}: clients march in step");
        }
    }
}
