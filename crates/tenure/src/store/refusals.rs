//! How long refusals are taken for an outage.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::{Error, ErrorKind};

/// For how long a server may refuse that has accepted: some take so long to hand a new password to each of their machines.
const ROTATION: Duration = Duration::from_secs(120);

/// Refusals of one server that has accepted before: for 120 s they are taken for an outage. For authors of stores. Clones count
/// together.
#[derive(Clone, Debug, Default)]
pub struct Refusals(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    has_accepted: bool,
    /// The first and the last of those in a row.
    refused: Option<(Instant, Instant)>,
}

impl Refusals {
    /// Notes that the server has accepted.
    pub fn accepted(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = State { has_accepted: true, refused: None };
    }

    /// Notes that the server refuses. Returns whether it may accept again soon.
    pub fn is_for_now(&self) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        // After a long time without a question, nobody knows what the answers would have been.
        let first = state.refused.filter(|(_, last)| now.duration_since(*last) < ROTATION).map_or(now, |(first, _)| first);
        state.refused = Some((first, now));
        state.has_accepted && now.duration_since(first) < ROTATION
    }

    /// Notes a refusal. Returns it as [`Unavailable`](ErrorKind::Unavailable) where the server may accept again soon.
    #[must_use]
    pub fn judge(&self, refusal: Error) -> Error {
        if self.is_for_now() { refusal.with_kind(ErrorKind::Unavailable) } else { refusal }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn refusals_in_a_row_are_an_outage_for_two_minutes() {
        let refusals = Refusals::default();
        let after = async |secs| {
            tokio::time::advance(Duration::from_secs(secs)).await;
            refusals.is_for_now()
        };
        assert!(!after(0).await, "it has never accepted");
        refusals.accepted();
        assert_eq!([after(60).await, after(60).await, after(60).await, after(1).await], [true, true, false, false]);
        assert_eq!([after(600).await, after(60).await, after(60).await], [true, true, false], "nobody has asked for long");
        refusals.accepted();
        assert!(after(600).await);
    }
}
